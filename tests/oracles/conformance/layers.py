"""Layers: convolutions, normalisation, pooling, resampling, attention, recurrence, embedding."""
# ruff: noqa: PLW0108  (what stands below is named late)

import torch
import torch.nn.functional as F
from torch import nn

from tests.oracles.conformance.registry import case, fn, ints, kinks, normal, positive

IMG = normal(2, 4, 9, 8)
SEQ = normal(2, 4, 11)
VOL = normal(1, 4, 5, 6, 4)

# ---- convolution

for _name, _layer, _x in (
    ("Conv1d", lambda **k: nn.Conv1d(4, 6, 3, **k), SEQ),
    ("Conv2d", lambda **k: nn.Conv2d(4, 6, 3, **k), IMG),
    ("Conv3d", lambda **k: nn.Conv3d(4, 6, 3, **k), VOL),
):
    case("convolution", _name, lambda b=_layer: b(), _x, bfloat16=_name == "Conv2d")
    case(
        "convolution", f"{_name}, stride 2, padding 1", lambda b=_layer: b(stride=2, padding=1), _x
    )
    case("convolution", f"{_name}, groups 2, no bias", lambda b=_layer: b(groups=2, bias=False), _x)
for _mode in ("reflect", "replicate", "circular"):
    case(
        "convolution",
        f"Conv2d, {_mode} padding",
        lambda m=_mode: nn.Conv2d(4, 6, 3, padding=2, padding_mode=m),
        IMG,
    )
case(
    "convolution",
    "Conv2d, 'same' padding, even kernel",
    lambda: nn.Conv2d(4, 6, 4, padding="same"),
    IMG,
)
case("convolution", "Conv2d, dilation 2", lambda: nn.Conv2d(4, 6, 3, dilation=2), IMG)
case("convolution", "Conv2d, depthwise × 2", lambda: nn.Conv2d(4, 8, 3, groups=4), IMG)
case("convolution", "Conv2d without batch", lambda: nn.Conv2d(4, 6, 3), normal(4, 7, 7))
case("convolution", "ConvTranspose1d", lambda: nn.ConvTranspose1d(4, 6, 3, 2), SEQ)
case(
    "convolution", "ConvTranspose2d", lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1), IMG, bfloat16=True
)
case(
    "convolution",
    "ConvTranspose2d, output padding, dilation",
    lambda: nn.ConvTranspose2d(4, 6, 3, 3, 1, 2, dilation=2),
    IMG,
)
case(
    "convolution",
    "ConvTranspose2d, groups 2",
    lambda: nn.ConvTranspose2d(4, 6, 3, 2, groups=2),
    IMG,
)
case(
    "convolution",
    "ConvTranspose2d, depthwise",
    lambda: nn.ConvTranspose2d(4, 8, 4, 2, 1, groups=4, bias=False),
    IMG,
)
case(
    "convolution",
    "ConvTranspose1d, groups 2",
    lambda: nn.ConvTranspose1d(4, 6, 3, 2, groups=2),
    SEQ,
)
case("convolution", "ConvTranspose3d", lambda: nn.ConvTranspose3d(4, 2, 3, 2), VOL)
case("convolution", "ConvTranspose2d with output_size", lambda: _SizedTranspose(), IMG)
case(
    "convolution",
    "Unfold then Fold",
    lambda: nn.Sequential(nn.Unfold(3, padding=1), nn.Fold((9, 8), 3, padding=1)),
    IMG,
)
case("convolution", "PixelShuffle", lambda: nn.PixelShuffle(2), IMG, bfloat16=True)
case("convolution", "PixelUnshuffle", lambda: nn.PixelUnshuffle(2), normal(2, 3, 6, 8))
case("convolution", "ChannelShuffle", lambda: nn.ChannelShuffle(2), IMG)
case("convolution", "Bilinear", lambda: _Bilinear(), normal(3, 4))
case("convolution", "Linear", lambda: nn.Linear(8, 5), IMG, bfloat16=True)


class _SizedTranspose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x, output_size=[18, 16])


class _Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Bilinear(4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x.flip(0))


# ---- normalisation

for _train in (True, False):
    _when = "training" if _train else "evaluation"
    case("normalisation", f"BatchNorm1d, {_when}", lambda: nn.BatchNorm1d(4), SEQ, train=_train)
    case(
        "normalisation",
        f"BatchNorm2d, {_when}",
        lambda: nn.BatchNorm2d(4),
        IMG,
        train=_train,
        bfloat16=True,
    )
    case("normalisation", f"BatchNorm3d, {_when}", lambda: nn.BatchNorm3d(4), VOL, train=_train)
    case(
        "normalisation",
        f"BatchNorm2d momentum=None, {_when}",
        lambda: nn.BatchNorm2d(4, momentum=None),
        IMG,
        train=_train,
    )
    case(
        "normalisation",
        f"BatchNorm2d untracked, not affine, {_when}",
        lambda: nn.BatchNorm2d(4, affine=False, track_running_stats=False),
        IMG,
        train=_train,
    )
    case(
        "normalisation",
        f"InstanceNorm2d tracked, affine, {_when}",
        lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        IMG,
        train=_train,
    )
    case("normalisation", f"SyncBatchNorm, {_when}", lambda: nn.SyncBatchNorm(4), IMG, train=_train)
case(
    "normalisation",
    "BatchNorm2d, large mean",
    lambda: nn.BatchNorm2d(4),
    lambda rng: normal(2, 4, 9, 8)(rng) + 300,
    train=True,
    tolerance=20,
)  # float32 holds 300 ± 1 to 5 digits
case(
    "normalisation",
    "BatchNorm2d frozen inside a training model",
    lambda: _FrozenNorm(),
    IMG,
    train=True,
)
case("normalisation", "InstanceNorm1d", lambda: nn.InstanceNorm1d(4), SEQ, train=True)
case(
    "normalisation",
    "InstanceNorm2d",
    lambda: nn.InstanceNorm2d(4, affine=True),
    IMG,
    train=True,
    bfloat16=True,
)
case("normalisation", "InstanceNorm3d", lambda: nn.InstanceNorm3d(4), VOL)
case("normalisation", "GroupNorm", lambda: nn.GroupNorm(2, 4), IMG, bfloat16=True)
case("normalisation", "LayerNorm", lambda: nn.LayerNorm([9, 8]), IMG, bfloat16=True)
case("normalisation", "LayerNorm without bias", lambda: nn.LayerNorm(8, bias=False), IMG)
case("normalisation", "RMSNorm", lambda: nn.RMSNorm(8), IMG, bfloat16=True)
case("normalisation", "LocalResponseNorm", lambda: nn.LocalResponseNorm(3), IMG)
case("normalisation", "F.normalize with a zero row", lambda: _Normalise(), kinks(6, 2))


class _FrozenNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def train(self, mode: bool = True) -> "_FrozenNorm":
        super().train(mode)
        self.b.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


class _Normalise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(torch.cat([x, torch.zeros(1, 2)]), dim=1)


# ---- pooling

for _d, _x in ((1, SEQ), (2, IMG), (3, VOL)):
    case("pooling", f"MaxPool{_d}d", lambda d=_d: getattr(nn, f"MaxPool{d}d")(2), _x)
    case("pooling", f"AvgPool{_d}d", lambda d=_d: getattr(nn, f"AvgPool{d}d")(2, 1, 1), _x)
    case(
        "pooling", f"AdaptiveAvgPool{_d}d", lambda d=_d: getattr(nn, f"AdaptiveAvgPool{d}d")(3), _x
    )
    case(
        "pooling", f"AdaptiveMaxPool{_d}d", lambda d=_d: getattr(nn, f"AdaptiveMaxPool{d}d")(3), _x
    )
    case(
        "pooling",
        f"MaxPool{_d}d then MaxUnpool{_d}d",
        lambda d=_d: _Unpool(d),
        normal(2, 3, *(6,) * _d),
    )
case(
    "pooling",
    "MaxPool2d, ceil mode, padding, stride",
    lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    IMG,
)
case("pooling", "MaxPool2d, dilation 2", lambda: nn.MaxPool2d(3, 1, 1, dilation=2), IMG)
case("pooling", "MaxPool2d, ties", lambda: nn.MaxPool2d(3, 2), kinks(2, 3, 9, 9))
case(
    "pooling",
    "MaxPool2d with indices",
    lambda: nn.MaxPool2d(3, 2, return_indices=True),
    kinks(2, 3, 9, 9),
)
case(
    "pooling",
    "AvgPool2d, ceil mode, no padding counted",
    lambda: nn.AvgPool2d(3, 2, 1, True, False),
    IMG,
)
case("pooling", "AvgPool2d, divisor 5", lambda: nn.AvgPool2d(3, divisor_override=5), IMG)
case("pooling", "AdaptiveAvgPool2d (None, 4)", lambda: nn.AdaptiveAvgPool2d((None, 4)), IMG)
case("pooling", "AdaptiveAvgPool2d to one", lambda: nn.AdaptiveAvgPool2d(1), IMG, bfloat16=True)
case("pooling", "AdaptiveMaxPool2d to one", lambda: nn.AdaptiveMaxPool2d(1), IMG)
case(
    "pooling",
    "AdaptiveMaxPool2d with indices, ties",
    lambda: nn.AdaptiveMaxPool2d((4, 3), return_indices=True),
    kinks(2, 3, 9, 8),
)
case("pooling", "LPPool2d", lambda: nn.LPPool2d(2, 3), positive(2, 3, 9, 9))
case("pooling", "amax over space, ties", lambda: _Amax(), kinks(2, 3, 4, 4))


class _Unpool(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{d}d")(2, return_indices=True)
        self.unpool = getattr(nn, f"MaxUnpool{d}d")(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.unpool(*self.pool(x))


class _Amax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.amax(x, (2, 3))


# ---- resampling

for _mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area"):
    for _size in ((13, 5), (18, 16), (4, 4)):
        fn(
            "resampling",
            f"interpolate {_mode} to {_size}",
            lambda x, m=_mode, s=_size: F.interpolate(x, s, mode=m),
            IMG,
            bfloat16=_size == (18, 16),
        )
for _mode in ("bilinear", "bicubic"):
    fn(
        "resampling",
        f"interpolate {_mode}, corners aligned",
        lambda x, m=_mode: F.interpolate(x, (5, 15), mode=m, align_corners=True),
        IMG,
    )
    fn(
        "resampling",
        f"interpolate {_mode}, factor 1.7 kept",
        lambda x, m=_mode: F.interpolate(x, scale_factor=1.7, mode=m),
        IMG,
    )
    fn(
        "resampling",
        f"interpolate {_mode}, factor recomputed",
        lambda x, m=_mode: F.interpolate(x, scale_factor=1.7, mode=m, recompute_scale_factor=True),
        IMG,
    )
    fn(
        "resampling",
        f"interpolate {_mode}, antialiased down",
        lambda x, m=_mode: F.interpolate(x, (4, 3), mode=m, antialias=True),
        IMG,
    )
    fn(
        "resampling",
        f"interpolate {_mode}, antialiased up",
        lambda x, m=_mode: F.interpolate(x, (12, 17), mode=m, antialias=True),
        IMG,
    )
fn("resampling", "interpolate linear 1-D", lambda x: F.interpolate(x, 7, mode="linear"), SEQ)
fn("resampling", "interpolate nearest 1-D", lambda x: F.interpolate(x, scale_factor=2), SEQ)
fn(
    "resampling",
    "interpolate trilinear",
    lambda x: F.interpolate(x, (7, 4, 9), mode="trilinear"),
    VOL,
)
fn("resampling", "interpolate nearest 3-D", lambda x: F.interpolate(x, (7, 4, 9)), VOL)
case(
    "resampling",
    "Upsample module",
    lambda: nn.Upsample(scale_factor=(2, 3), mode="bilinear", align_corners=True),
    IMG,
)
_GRID = lambda rng: rng.uniform(-1.3, 1.3, (2, 5, 6, 2)).astype("float32")  # noqa: E731
for _mode in ("bilinear", "nearest", "bicubic"):
    for _pad in ("zeros", "border", "reflection"):
        fn(
            "resampling",
            f"grid_sample {_mode}, {_pad}",
            lambda x, g, m=_mode, p=_pad: F.grid_sample(x, g, m, p, align_corners=False),
            IMG,
            _GRID,
        )
fn(
    "resampling",
    "grid_sample, corners aligned",
    lambda x, g: F.grid_sample(x, g, align_corners=True),
    IMG,
    _GRID,
)
fn(
    "resampling",
    "grid_sample 3-D",
    lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=False),
    VOL,
    lambda rng: rng.uniform(-1.2, 1.2, (1, 3, 4, 2, 3)).astype("float32"),
)
fn(
    "resampling",
    "affine_grid",
    lambda t: F.affine_grid(t, [2, 3, 5, 4], align_corners=False),
    normal(2, 2, 3),
)
for _mode in ("constant", "reflect", "replicate", "circular"):
    fn("resampling", f"pad {_mode}", lambda x, m=_mode: F.pad(x, (2, 1, 0, 3), mode=m), IMG)
fn("resampling", "pad, cropping on one side", lambda x: F.pad(x, (-2, 1, 3, -1), value=2.5), IMG)
case("resampling", "ReflectionPad3d", lambda: nn.ReflectionPad3d(1), VOL)

# ---- attention, recurrence, embedding

_QKV = (normal(2, 4, 5, 8), normal(2, 4, 7, 8), normal(2, 4, 7, 8))
fn("attention", "SDPA", F.scaled_dot_product_attention, *_QKV, bfloat16=True)
fn(
    "attention",
    "SDPA, boolean mask with an empty row",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m.bool()),
    *_QKV,
    lambda rng: (rng.random((5, 7)) < 0.6).astype("int32") * (rng.permutation(5) > 0)[:, None],
)
fn(
    "attention",
    "SDPA, additive mask that learns",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
    *_QKV,
    normal(2, 1, 5, 7),
)
fn(
    "attention",
    "SDPA, causal, own scale",
    lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3),
    _QKV[0],
)
fn(
    "attention",
    "SDPA, grouped queries",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    normal(2, 4, 5, 8),
    normal(2, 2, 7, 8),
    normal(2, 2, 7, 8),
)
case("attention", "MultiheadAttention with weights", lambda: _SelfAttention(), normal(2, 5, 8))
case(
    "attention", "MultiheadAttention, key padding mask", lambda: _PaddedAttention(), normal(2, 5, 8)
)
case(
    "attention",
    "TransformerEncoderLayer, evaluation",
    lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    normal(2, 5, 8),
)
case(
    "attention",
    "TransformerEncoderLayer, training, norm first",
    lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True),
    normal(2, 5, 8),
    train=True,
)
case("attention", "Transformer", lambda: _Transformer(), normal(5, 2, 8), normal(3, 2, 8))
for _cls in (nn.RNN, nn.LSTM, nn.GRU):
    case("recurrence", _cls.__name__, lambda c=_cls: c(6, 5, 2), normal(4, 2, 6))
    case(
        "recurrence",
        f"{_cls.__name__}, both directions",
        lambda c=_cls: c(6, 5, batch_first=True, bidirectional=True),
        normal(2, 4, 6),
    )
    case(
        "recurrence",
        f"{_cls.__name__}Cell",
        lambda c=_cls: getattr(nn, f"{c.__name__}Cell")(6, 5),
        normal(2, 6),
    )
case(
    "recurrence",
    "LSTM with proj_size",
    lambda: nn.LSTM(6, 5, num_layers=2, proj_size=3, bidirectional=True, bias=False),
    normal(4, 2, 6),
)
case("recurrence", "packed sequence", lambda: _Packed(), normal(4, 2, 6), refused="pad the batch")
case("embedding", "Embedding", lambda: nn.Embedding(10, 4), ints(10, 3, 5))
case(
    "embedding",
    "Embedding, padding index",
    lambda: nn.Embedding(6, 4, padding_idx=2),
    ints(6, 3, 5),
)
case(
    "embedding",
    "Embedding, scaled by frequency",
    lambda: nn.Embedding(6, 4, scale_grad_by_freq=True),
    ints(6, 3, 5),
)
case(
    "embedding",
    "Embedding, max_norm",
    lambda: nn.Embedding(6, 4, max_norm=1.0),
    ints(6, 3, 5),
    refused="max_norm",
)
fn("embedding", "one_hot", lambda i: F.one_hot(i, 7), ints(7, 3, 4))
fn(
    "embedding",
    "one_hot, number of classes unknown",
    lambda i: F.one_hot(i),
    ints(7, 3, 4),
    refused="num_classes",
)


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple:
        return self.mha(x, x, x)


class _PaddedAttention(_SelfAttention):
    def forward(self, x: torch.Tensor) -> tuple:
        hidden = torch.tensor([[False] * 5, [False, False, True, True, True]])
        return self.mha(x, x, x, key_padding_mask=hidden, need_weights=False)


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.inner(a, b, tgt_mask=nn.Transformer.generate_square_subsequent_mask(3))


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]))
        return self.rnn(packed)[0].data

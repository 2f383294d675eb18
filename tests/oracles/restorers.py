"""Networks of the published sizes, by spandrel's own classes, with random weights.

RLFN and CARN are not among spandrel's architectures; theirs are written here after their papers
(Kong et al., 2022; Ahn et al., 2018), and stand for a class of a user's.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.models.build import build_network
from jaxsr.models.libraries import import_library
from jaxsr.models.spandrel_weights import freeze_merged

Options = Mapping[str, Any]
_RGB = {"num_in_ch": 3, "num_out_ch": 3}
_SIX = {"depths": [6] * 6, "num_heads": [6] * 6, "embed_dim": 180, "img_size": 64, "mlp_ratio": 2}
_TWO = {"depths": [2], "num_heads": [2], "embed_dim": 12, "img_size": 16, "mlp_ratio": 2}

NETWORKS: Mapping[str, tuple[str, Options, Options]] = {
    "RRDBNet": ("ESRGAN.__arch.RRDB:RRDBNet", {"num_blocks": 23},
                {"num_filters": 16, "num_blocks": 1}),
    "RRDBNet x2": ("ESRGAN.__arch.RRDB:RRDBNet",
                   {"in_nc": 12, "num_blocks": 23, "shuffle_factor": 2},
                   {"in_nc": 12, "num_filters": 16, "num_blocks": 1, "shuffle_factor": 2}),
    "Compact": ("Compact.__arch.SRVGG:SRVGGNetCompact", {"num_conv": 32},
                {"num_feat": 16, "num_conv": 4}),
    "SPAN": ("SPAN.__arch.span:SPAN", _RGB, {**_RGB, "feature_channels": 16}),
    "RCAN": ("RCAN.__arch.rcan_arch:RCAN", {},
             {"n_resgroups": 1, "n_resblocks": 2, "n_feats": 16, "reduction": 4}),
    "SwinIR-M": ("SwinIR.__arch.SwinIR:SwinIR",
                 {**_SIX, "upscale": 4, "window_size": 8, "upsampler": "nearest+conv"},
                 {**_TWO, "upscale": 4, "window_size": 8, "upsampler": "nearest+conv"}),
    "Swin2SR": ("Swin2SR.__arch.Swin2SR:Swin2SR",
                {**_SIX, "upscale": 4, "window_size": 8, "upsampler": "pixelshuffle"},
                {**_TWO, "upscale": 4, "window_size": 8, "upsampler": "pixelshuffle"}),
    "HAT": ("HAT.__arch.HAT:HAT", {**_SIX, "upscale": 4, "window_size": 16},
            {**_TWO, "upscale": 4, "window_size": 8, "squeeze_factor": 3}),
    "DAT": ("DAT.__arch.DAT:DAT",
            {"upscale": 4, "split_size": [8, 32], "depth": [6] * 6, "num_heads": [6] * 6},
            {"upscale": 4, "img_size": 16, "split_size": [8, 8], "depth": [2], "embed_dim": 32,
             "num_heads": [2], "expansion_factor": 2}),
    "GRL": ("GRL.__arch.grl:GRL",
            {"embed_dim": 128, "upsampler": "pixelshuffle", "upscale": 4, "mlp_ratio": 2,
             "depths": [4] * 4, "num_heads_window": [2] * 4, "num_heads_stripe": [2] * 4,
             "window_size": 8, "img_size": 64},
            {"embed_dim": 16, "upsampler": "pixelshuffle", "upscale": 4, "depths": [2],
             "num_heads_window": [2], "num_heads_stripe": [2], "img_size": 32, "window_size": 8}),
    "RGT": ("RGT.__arch.rgt:RGT",
            {"upscale": 4, "split_size": [8, 32], "depth": [6] * 8, "num_heads": [6] * 8},
            {"upscale": 4, "depth": [2], "num_heads": [2], "embed_dim": 16, "split_size": [8, 8]}),
    "CRAFT": ("CRAFT.__arch.CRAFT:CRAFT", {},
              {"depths": [2], "num_heads": [2], "embed_dim": 16, "upscale": 4}),
    "DRCT": ("DRCT.__arch.drct_arch:DRCT",
             {**_SIX, "upscale": 4, "window_size": 16, "upsampler": "pixelshuffle"},
             {**_TWO, "embed_dim": 32, "gc": 8, "upscale": 4, "window_size": 8,
              "upsampler": "pixelshuffle"}),
    "OmniSR": ("OmniSR.__arch.OmniSR:OmniSR", {"res_num": 5}, {"num_feat": 16}),
    "SAFMN": ("SAFMN.__arch.safmn:SAFMN", {"dim": 36}, {"dim": 16, "n_blocks": 2}),
    "PLKSR": ("PLKSR.__arch.PLKSR:PLKSR", {}, {"dim": 16, "n_blocks": 2, "kernel_size": 7}),
    "RealPLKSR": ("PLKSR.__arch.RealPLKSR:RealPLKSR", {}, {"dim": 16, "n_blocks": 2}),
    "DITN": ("DITN.__arch.DITN_Real:DITN_Real", {}, {"dim": 12, "ITL_blocks": 1, "SAL_blocks": 1}),
    "MoSR": ("MoSR.__arch.mosr_arch:MoSR", {}, {"n_block": 2, "dim": 16}),
    "MoESR": ("MoESR.__arch.MoESR:MoESR", {}, {"dim": 16, "n_blocks": 2, "n_block": 1}),
    "FDAT": ("FDAT.__arch.fdat:FDAT", {},
             {"embed_dim": 16, "num_groups": 1, "depth_per_group": 2, "num_heads": 2}),
    "DCTLSA": ("DCTLSA.__arch.dctlsa:DCTLSA", {}, {"nf": 15}),
    "MMRealSR": ("MMRealSR.__arch.mmrealsr_arch:MMRRDBNet_test", _RGB,
                 {**_RGB, "num_feat": 16, "num_block": 1, "num_grow_ch": 8}),
    "RealCUGAN": ("RealCUGAN.__arch.upcunet_v3:UpCunet2x", {}, {}),
    "SwiftSRGAN": ("SwiftSRGAN.__arch.SwiftSRGAN:Generator", {},
                   {"num_channels": 16, "num_blocks": 2}),
    "FFTformer": ("FFTformer.__arch.fftformer_arch:FFTformer", {},
                  {"dim": 8, "num_blocks": [1, 1, 1], "num_refinement_blocks": 1}),
    "MixDehazeNet": ("MixDehazeNet.__arch.MixDehazeNet:MixDehazeNet", {},
                     {"embed_dims": [8, 16, 32, 16, 8], "depths": [1] * 5}),
    "RetinexFormer": ("RetinexFormer.__arch.retinexformer_arch:RetinexFormer", {},
                      {"n_feat": 8, "num_blocks": [1, 1, 1]}),
    "DnCNN": ("DnCNN.__arch.network_dncnn:DnCNN", {"in_nc": 3, "out_nc": 3, "nb": 20},
              {"in_nc": 3, "out_nc": 3, "nc": 16, "nb": 8}),
    "FDnCNN": ("DnCNN.__arch.network_dncnn:DnCNN",
               {"in_nc": 4, "out_nc": 3, "nc": 96, "nb": 20, "act_mode": "R", "mode": "FDnCNN"},
               {"in_nc": 4, "out_nc": 3, "nc": 16, "nb": 9, "act_mode": "R", "mode": "FDnCNN"}),
    "DRUNet": ("DRUNet.__arch.network_unet:DRUNet", {"in_nc": 4, "out_nc": 3},
               {"in_nc": 4, "out_nc": 3, "nc": [8] * 4, "nb": 2}),
    "FBCNN": ("FBCNN.__arch.FBCNN:FBCNN", {}, {"nc": [8, 8, 8, 512], "nb": 2}),
    "KBNet_s": ("KBNet.__arch.kbnet_s:KBNet_s", {},
                {"width": 8, "middle_blk_num": 1, "enc_blk_nums": [1, 1], "dec_blk_nums": [1, 1]}),
    "KBNet_l": ("KBNet.__arch.kbnet_l:KBNet_l", {},
                {"dim": 24, "num_blocks": [1] * 4, "num_refinement_blocks": 1}),
    "IPT": ("IPT.__arch.ipt:IPT", {"scale": [4]},
            {"n_feats": 8, "num_heads": 2, "num_layers": 1, "scale": [2]}),
    "SCUNet": ("SCUNet.__arch.SCUNet:SCUNet", {}, {"config": [1] * 7, "dim": 64}),
    "NAFNet": ("NAFNet.__arch.NAFNet_arch:NAFNet",
               {"width": 32, "middle_blk_num": 12, "enc_blk_nums": [2, 2, 4, 8],
                "dec_blk_nums": [2] * 4},
               {"width": 8, "enc_blk_nums": [1, 1], "dec_blk_nums": [1, 1]}),
    "RLFN": ("tests.oracles.restorers:RLFN", {}, {"features": 16, "blocks": 2}),
    "CARN": ("tests.oracles.restorers:CARN", {}, {"features": 16}),
}  # fmt: skip
"""Name -> class (below `spandrel.architectures` unless it is ours), its published and its small
sizes."""


def own_class(name: str) -> str | None:
    """The class to name in `--model`, where spandrel does not know the weights."""
    spec = NETWORKS[name][0]
    return spec if spec.startswith("tests.") else None


def options_of(name: str, *, small: bool) -> Options:
    """Keyword arguments of the class."""
    _, full, little = NETWORKS[name]
    return little if small else full


def published(name: str, *, small: bool = False) -> nn.Module:
    """A network whose results fill the range of a picture: saturated ones would hide differences.

    Args:
      name: of `NETWORKS`.
      small: of the small size.
    """
    import_library("spandrel")
    spec = own_class(name) or f"spandrel.architectures.{NETWORKS[name][0]}"
    torch.manual_seed(0)
    network = freeze_merged(build_network(spec, options_of(name, small=small)).eval())
    call = network if own_class(name) else _as_spandrel_calls(network)
    layers: list[nn.Module] = []
    hooks = [
        module.register_forward_hook(lambda module, *_: layers.append(module))
        for module in network.modules()
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)
    ]
    smooth = F.interpolate(torch.rand(1, 3, 16, 16), scale_factor=4, mode="bicubic")
    picture = smooth.clamp(0, 1)
    with torch.no_grad():
        output = call(picture)
        for hook in hooks:
            hook.remove()
        last: Any = layers[-1]
        spread = output.std().item()
        factor = 0.15 / spread if spread > 0.3 or spread < 0.02 else 1.0
        last.weight *= factor
        if last.bias is None:
            return network
        last.bias *= factor
        last.bias += (0.5 - call(picture).mean()) / getattr(network, "img_range", 1.0)
    return network


def _as_spandrel_calls(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """The network with what spandrel does around it: a map of noise, the first of two results."""
    import spandrel  # type: ignore[import-not-found]

    descriptor: Any = spandrel.ModelLoader("cpu").load_from_state_dict(dict(network.state_dict()))
    return partial(descriptor._call_fn, network)


def save(name: str, path: Path, *, small: bool = False) -> int:
    """Writes a `.pth` file as published ones are; returns the number of parameters."""
    network = published(name, small=small)
    torch.save({"params_ema": network.state_dict()}, path)
    return sum(parameter.numel() for parameter in network.parameters())


def _convolution(inputs: int, outputs: int, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2)


class _Esa(nn.Module):
    def __init__(self, features: int, inner: int) -> None:
        super().__init__()
        self.conv1, self.conv_f = nn.Conv2d(features, inner, 1), nn.Conv2d(inner, inner, 1)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=2)
        self.conv3, self.conv4 = _convolution(inner, inner), nn.Conv2d(inner, features, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.conv1(x)
        pooled = F.max_pool2d(self.conv2(first), kernel_size=7, stride=3)
        wide = F.interpolate(self.conv3(pooled), x.shape[-2:], mode="bilinear", align_corners=False)
        return x * torch.sigmoid(self.conv4(wide + self.conv_f(first)))


class _Rlfb(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = (_convolution(features, features) for _ in range(3))
        self.c5, self.esa = nn.Conv2d(features, features, 1), _Esa(features, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for convolution in (self.c1, self.c2, self.c3):
            y = F.leaky_relu(convolution(y), 0.05)
        return self.esa(self.c5(x + y))


class RLFN(nn.Module):
    """Residual local feature network."""

    def __init__(self, features: int = 52, blocks: int = 6, upscale: int = 4) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = _convolution(3, features), _convolution(features, features)
        self.blocks = nn.Sequential(*(_Rlfb(features) for _ in range(blocks)))
        self.upsampler = nn.Sequential(
            _convolution(features, 3 * upscale**2), nn.PixelShuffle(upscale)
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.conv_1(x)
        return self.upsampler(first + self.conv_2(self.blocks(first)))


class _Residual(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(features, features), nn.ReLU(), _convolution(features, features)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class _Cascade(nn.Module):
    """Three blocks, each fed with all before it through a 1 x 1 convolution."""

    def __init__(self, features: int, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.joins = nn.ModuleList(nn.Conv2d(features * k, features, 1) for k in (2, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        seen = x
        for block, join in zip(self.blocks, self.joins, strict=True):
            seen = torch.cat([seen, block(x)], 1)
            x = F.relu(join(seen))
        return x


class CARN(nn.Module):
    """Cascading residual network, × 4."""

    def __init__(self, features: int = 64) -> None:
        super().__init__()
        self.entry = _convolution(3, features)
        self.body = _Cascade(
            features,
            [_Cascade(features, [_Residual(features) for _ in range(3)]) for _ in range(3)],
        )
        steps = [(_convolution(features, 4 * features), nn.ReLU(), nn.PixelShuffle(2))] * 2
        self.enlarge = nn.Sequential(*(layer for step in steps for layer in step))
        self.exit = _convolution(features, 3)

    def forward(self, x: Tensor) -> Tensor:
        mean = torch.tensor([0.4488, 0.4371, 0.4040]).reshape(1, 3, 1, 1)
        return self.exit(self.enlarge(self.body(self.entry(x - mean)))) + mean

"""Folded networks against the same torch modules run by torch, and against themselves unfolded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.interop.folding.layout import fold, unfold
from jaxsr.interop.folding.policy import CHANNELS_LAST, LaneFolding, choose_folding
from jaxsr.interop.folding.resize import pool
from jaxsr.interop.folding.rules import first_largest
from jaxsr.interop.module import to_jax
from tests.interop.folding.images import (
    EVERYTHING,
    Plus,
    Residual,
    compiled,
    convolutions_of,
    each_way,
    same,
    turns,
)


class Network(nn.Module):
    """Convolutions with one operation between them that has a rule of its own."""

    def __init__(self, between: nn.Module, *, channels=4, after=None) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.between = between
        self.last = nn.Conv2d(after or channels, 3, 3, padding=1)

    def forward(self, x):
        return self.last(self.between(self.first(x)))


class Do(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Own(nn.Module):
    """A second image beside the first: plain, folded, in other parts."""

    def forward(self, x):
        pixels = torch.sin(x.sum((0, 1), keepdim=True))
        joined = torch.cat([x, x * pixels, pixels.expand_as(x[:, :2])], dim=1)
        return (joined * joined.mean(1, keepdim=True))[:, :4] + joined.amax(1, keepdim=True)


class SpatialAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x):
        return x * torch.sigmoid(self.conv(torch.cat([x.mean(1, True), x.amax(1, True)], 1)))


def _write(x):
    y = x * 2
    F.relu(y, inplace=True)
    y += x
    y[:, 1] = 0
    return y


def _enlarged(**options):
    return functools.partial(F.interpolate, **options)


BETWEEN = {
    "batch norm": nn.BatchNorm2d(4),
    "batch norm, cumulative": nn.BatchNorm2d(4, momentum=None),
    "instance norm": nn.InstanceNorm2d(4),
    "instance norm, affine": nn.InstanceNorm2d(4, affine=True),
    "group norm": nn.GroupNorm(2, 4),
    "prelu": nn.PReLU(4),
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "relu, in place": nn.ReLU(inplace=True),
    "writes": Do(_write),
    "log": Do(lambda x: torch.log(x.abs() + 1e-3)),
    "divided": Do(lambda x: 1 / (1e-1 + x * x) + x.exp()),
    "mean": Do(lambda x: x * x.mean((2, 3), keepdim=True) + x.mean(1, keepdim=True) - x.mean()),
    "amax": Do(lambda x: x * x.amax((2, 3), keepdim=True) + x.amax(1, keepdim=True)),
    "amin": Do(lambda x: x * x.amin((2, 3), keepdim=True) + x.amin(1, keepdim=True)),
    "equal largest": Do(lambda x: x + F.relu(x).amax(1, True) * torch.round(x).amax((2, 3), True)),
    "sums": Do(lambda x: x * torch.tanh(x.sum((0, 2, 3), keepdim=True)) - x.sum(1, keepdim=True)),
    "sum": Do(lambda x: x * torch.tanh(x.sum())),
    "max pool": nn.MaxPool2d(2),
    "max pool, whole numbers": Do(lambda x: F.max_pool2d((x > 0).int(), 2) * F.max_pool2d(x, 2)),
    "max pool, 3": nn.MaxPool2d(3, stride=2, padding=1),
    "mean pool": nn.AvgPool2d(2),
    "adaptive pool": Do(lambda x: x * F.adaptive_avg_pool2d(x, 1)),
    "bilinear": Do(_enlarged(scale_factor=2, mode="bilinear", align_corners=False)),
    "bilinear, corners": Do(_enlarged(scale_factor=2, mode="bilinear", align_corners=True)),
    "bicubic": Do(_enlarged(scale_factor=2, mode="bicubic")),
    "bilinear by 4": Do(_enlarged(scale_factor=4, mode="bilinear", align_corners=True)),
    "bilinear by 1.5": Do(_enlarged(scale_factor=1.5, mode="bilinear")),
    "nearest": Do(_enlarged(scale_factor=(1, 4), mode="nearest")),
    "cat": Do(lambda x: torch.cat([x, F.relu(x)], dim=1)[:, 2:6]),
    "cat, then convolution": nn.Sequential(
        Do(lambda x: torch.cat([x, x[:, :2], F.relu(x)], dim=1)), nn.Conv2d(10, 4, 3, padding=1)
    ),
    "cat, then 1 × 1": nn.Sequential(
        Do(lambda x: torch.cat([x, F.relu(x[:, :2]), x * x, x], dim=1)), nn.Conv2d(14, 4, 1)
    ),
    "residual": Residual(4),
    "residual, then unfolded": nn.Sequential(
        Plus(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 1))),
        nn.ReflectionPad2d(1),
    ),
    "parts": Own(),
    "attention": SpatialAttention(),
    "pixel shuffle": nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.PixelShuffle(2)),
    "pixel shuffle by 4": nn.Sequential(nn.Conv2d(4, 64, 1, padding=0), nn.PixelShuffle(4)),
    "pixel shuffle, wide": nn.Sequential(
        nn.Conv2d(4, 256, 1), nn.PixelShuffle(2), nn.Conv2d(64, 4, 1)
    ),
    "pixel shuffle, later": nn.Sequential(nn.Conv2d(4, 16, 1), nn.ReLU(), nn.PixelShuffle(2)),
    "pixel shuffle by 3": nn.Sequential(nn.Conv2d(4, 36, 1), nn.PixelShuffle(3)),
    "depthwise": nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "transposed": nn.ConvTranspose2d(4, 4, 2, stride=2),
    "stride": nn.Conv2d(4, 4, 3, stride=2, padding=1),
    "padded": nn.ReflectionPad2d(1),
    "detached": Do(lambda x: x * x.detach()),
    "dropout, off": Do(lambda x: F.dropout(x, training=False)),
    "view": Do(lambda x: x.view(x.shape[0], 2, 2, *x.shape[2:]).transpose(1, 2).flatten(1, 2)),
}  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("width", "foldings"),
    [
        pytest.param(8, [EVERYTHING], marks=pytest.mark.slow, id="8"),
        pytest.param(11, [EVERYTHING], id="11"),
        pytest.param(11, [CHANNELS_LAST], marks=pytest.mark.slow, id="11, channels last"),
    ],
)
@pytest.mark.parametrize("name", BETWEEN)
def test_every_operation_between_convolutions(name, width, foldings):
    torch.manual_seed(0)
    same(each_way(Network(BETWEEN[name]), (2, 3, 6, width), *foldings))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batch norm", "amax", "bilinear", "parts"])
def test_bfloat16_stays_within_its_rounding(name):
    torch.manual_seed(0)
    network = Network(BETWEEN[name])
    (_, (exact, _)), _ = each_way(network, (2, 3, 6, 8))[0]
    results = each_way(network, (2, 3, 6, 8), EVERYTHING, dtype="bfloat16")
    plain, folded = (result[0][1][0] for result in results)
    wrong = [float(jnp.abs(y.astype(jnp.float32) - exact).max()) for y in (plain, folded)]
    assert wrong[1] <= 2 * wrong[0] + 2**-8 * float(jnp.abs(exact).max())


@pytest.mark.parametrize(
    ("factor", "last", "kept"),
    [
        (2, nn.Conv2d(32, 3, 9, padding=4), True),
        pytest.param(
            2, nn.Conv2d(32, 1, (1, 5), padding=(0, 2), bias=False), True, marks=pytest.mark.slow
        ),
        pytest.param(4, nn.Conv2d(32, 2, 3, padding=1), True, marks=pytest.mark.slow),
        # Too many lanes for a group's outputs.
        pytest.param(4, nn.Conv2d(32, 32, 3, padding=1), False, marks=pytest.mark.slow),
        pytest.param(2, nn.Conv2d(32, 3, 3), False, marks=pytest.mark.slow),  # loses columns
        pytest.param(2, nn.Conv2d(32, 3, 3, padding=1, stride=2), False, marks=pytest.mark.slow),
    ],
)
def test_few_channels_after_a_pixel_shuffle_are_computed_where_the_pixels_lie(factor, last, kept):
    torch.manual_seed(0)
    slopes = nn.PReLU(32)
    torch.nn.init.uniform_(slopes.weight)  # one for all, as they start, has no order
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32 * factor**2, 3, padding=1),
        nn.PixelShuffle(factor), slopes, nn.ReLU(inplace=True),
        Do(lambda x: x * torch.rsqrt(x * x + 2)), last, nn.Tanh(),
    )  # fmt: skip
    folding = LaneFolding({32: 4})
    same(each_way(network, (2, 3, 6, 8), folding))
    model = to_jax(network, lane_folding=folding)
    jaxpr = jax.make_jaxpr(lambda x: model.apply(model.params, {}, x)[0])(jnp.zeros((2, 3, 6, 8)))
    convolutions = [e for e in jaxpr.eqns if e.primitive.name == "conv_general_dilated"]
    assert (convolutions[-1].invars[0].aval.shape == (2, 6, 2, 4 * 32 * factor**2)) is kept
    # Without a gradient the result takes another way to its pixels.
    x = torch.randn(2, 3, 6, 8)
    got = compiled(lambda x: model.apply(model.params, {}, x)[0], jnp.asarray(x.numpy()))
    want = network(x).detach().numpy()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_pixels_stay_in_a_shuffle_whatever_the_offset_of_the_image_before_it():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1),
        nn.Conv2d(32, 128, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(32, 3, 3, padding=1),
    )  # fmt: skip
    folding = LaneFolding({128: 4}, offset_bytes=4)
    same(each_way(network, (2, 3, 6, 64), folding))
    # The last computes two rows and eight columns of three channels at once.
    assert convolutions_of(network, (2, 3, 6, 64), "float32", folding)[-1] == (3, 16)


@pytest.mark.sample(1)
@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("factor", "channels", "size"), [(2, 8, 8), (4, 16, 4), (4, 32, 2)])
@pytest.mark.parametrize("width", [16, 13])
def test_an_image_shuffled_to_few_lanes_is_settled_at_once(factor, channels, size, width, bias):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.Conv2d(channels, 3 * factor**2, 3, padding=1, bias=bias),
        nn.PixelShuffle(factor),
        nn.PReLU(3),
    )
    folding = LaneFolding({48: size})
    same(each_way(network, (2, 3, 6, width), folding))
    assert turns(network, folding) <= 2


def attended():
    """Images weighted by channel, by pixel, and by pixel again."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        Do(lambda x: x * torch.sigmoid(2 * x.mean((2, 3), keepdim=True))),
        Do(lambda x: x * torch.sigmoid(x[:, :1]) / x[:, 1:2].exp()),
    )


def test_a_gradient_keeps_neither_maps_repeated_nor_what_is_made_value_by_value():
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        Do(lambda x: x * x[:, :, :1, :1]),
        Do(lambda x: x * torch.sigmoid(x[:, :1]) / x[:, 1:2].exp()),
    )
    model = to_jax(network, lane_folding=EVERYTHING)

    def gradient(x):
        return jax.vjp(lambda x: model.apply(model.params, model.buffers, x)[0], x)[1]

    residuals = jax.tree.leaves(jax.eval_shape(gradient, jnp.zeros((2, 3, 8, 12))))
    # In two groups of six columns of four channels: what the convolution leaves, from which that is
    # made again which the first map meets, and what the second meets.
    assert sum(a.shape == (2, 8, 2, 24) for a in residuals) == 2


class Saliency(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 2, 3, padding=1)
        )

    def forward(self, x):
        x.requires_grad_()
        y = self.features(x)
        return y, torch.autograd.grad(y.square().sum(), x)[0]


def test_gradients_that_a_network_takes_are_those_of_its_operations_unfolded():
    torch.manual_seed(0)
    network, x = Saliency(), torch.randn(2, 3, 8, 12)
    model = to_jax(network, lane_folding=EVERYTHING)
    results, _ = jax.jit(model.apply)(model.params, model.buffers, x.numpy())
    for result, expected in zip(results, network(x), strict=True):
        np.testing.assert_allclose(result, expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("width", [12, 16])  # without and with an offset
def test_derivatives_of_any_kind_pass_what_gradients_make_again(width):
    random = np.random.default_rng(0)
    x, dx = (jnp.asarray(random.standard_normal((2, 3, 6, width)), jnp.float32) for _ in range(2))

    def derivatives(folding):
        model = to_jax(attended(), lane_folding=folding)

        def loss(x):
            y = model.apply(model.params, model.buffers, x, train=True)[0]
            return jnp.sin(3 * y).sum()

        def length(x):
            return jnp.square(jax.grad(loss)(x)).sum()

        return jax.jvp(loss, (x,), (dx,)), jax.grad(length)(x), jax.jvp(length, (x,), (dx,))

    plain, folded = (compiled(lambda x, f=f: derivatives(f), x) for f in (None, EVERYTHING))
    for got, want in zip(jax.tree.leaves(folded), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(jnp.abs(want).max()))


def test_recomputed_blocks_hand_folded_images_over():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Conv2d(4, 3, 3, padding=1),
    )
    plain, folded = each_way(network, (2, 3, 6, 8), EVERYTHING, remat=("1",))
    for got, want in zip(jax.tree.leaves(folded), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    model = to_jax(network, lane_folding=EVERYTHING, remat=("1",))
    jaxpr = jax.make_jaxpr(lambda x: model.apply(model.params, model.buffers, x)[0])
    (block,) = [e for e in jaxpr(jnp.zeros((2, 3, 6, 8))).eqns if "policy" in e.params]
    # Six columns of four channels, in two groups.
    assert any(v.aval.shape == (2, 6, 2, 24) for v in block.invars)
    assert [v.aval.shape for v in block.outvars if v.aval.ndim == 4] == [(2, 6, 2, 24)]


@pytest.mark.parametrize(("size", "offset"), [(1, 0), (4, 0), (4, 3)])
def test_the_first_of_equal_pixels_gets_the_gradient_of_a_pooling(size, offset):
    random = np.random.default_rng(0)
    x = random.integers(0, 2, (2, 3, 4, 8)).astype(np.float32)
    image = torch.from_numpy(x).requires_grad_()
    pooled = F.max_pool2d(image, 2)
    weight = random.random(pooled.shape, dtype=np.float32)
    (pooled * torch.from_numpy(weight)).sum().backward()

    def loss(x):
        pooled = pool(fold(x, size, offset=offset), first_largest)
        assert pooled is not None
        return (unfold(pooled) * weight).sum()

    assert image.grad is not None
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(x), image.grad)


STAY = (
    "batch norm", "batch norm, cumulative", "instance norm", "instance norm, affine", "prelu",
    "silu", "gelu", "relu, in place", "log", "divided", "mean", "amax", "amin", "sums", "sum",
    "max pool", "mean pool", "adaptive pool", "bilinear", "bilinear, corners", "bicubic",
    "bilinear by 4", "nearest", "attention", "pixel shuffle", "pixel shuffle by 4", "stride",
    "dropout, off",
)  # fmt: skip


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "folding",
    [LaneFolding({4: 8, 64: 2}, fewest_lanes=16), CHANNELS_LAST],
    ids=["folded", "channels last"],
)
@pytest.mark.parametrize("name", STAY)
def test_no_image_is_turned_on_its_way(name, folding):
    # Into channels last at the start, and back at the end.
    assert turns(Network(BETWEEN[name]), folding) == 2


@pytest.mark.parametrize(("channels", "moves"), [(32, 2), (16, 4)])
def test_an_image_left_with_few_lanes_is_unfolded(channels, moves):
    """Pooling halves what four columns take to 64 or 32 lanes."""
    network = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, channels, 3, padding=1),
    )
    assert turns(network, LaneFolding({channels: 4})) == moves


def test_channels_stay_last_from_layer_to_layer():
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(4, 12, 1),
        nn.PixelShuffle(2), SpatialAttention(), nn.Conv2d(3, 3, 3),
    )  # fmt: skip
    model = to_jax(network, lane_folding=CHANNELS_LAST)

    def run(params, x):
        return model.apply(params, model.buffers, x)[0]

    hlo = jax.jit(run).lower(model.params, jnp.zeros((2, 3, 8, 8))).as_text()
    turns = [line for line in hlo.splitlines() if "dims = [0, 2, 3, 1]" in line]
    turns_back = [line for line in hlo.splitlines() if "dims = [0, 3, 1, 2]" in line]
    assert len(turns) == len(turns_back) == 1, turns + turns_back


def test_the_plain_network_is_untouched_without_folding():
    network = Network(nn.BatchNorm2d(4))
    model = to_jax(network)
    jaxpr = jax.make_jaxpr(lambda x: model.apply(model.params, model.buffers, x)[0])
    assert "NHWC" not in str(jaxpr(jnp.zeros((1, 3, 8, 8)))) and model.lane_folding is None


def test_who_folds():
    cpu = jax.devices("cpu")[0]
    assert choose_folding("auto", cpu) is CHANNELS_LAST and choose_folding("off", cpu) is None
    on = choose_folding("on", cpu)
    assert on is not None and not on.channels_last
    with pytest.raises(ValueError, match="auto, on or off"):
        choose_folding("yes", cpu)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inputs", "outputs", "width", "stride", "current", "size"),
    [
        (16, 16, 256, 1, None, 8),  # MSHNet's finest level
        (16, 16, 256, 1, 8, 8),
        (16, 32, 128, 1, 4, 4),  # pooled: columns and fold halve together
        (48, 16, 256, 1, 8, 8),
        (2, 1, 256, 1, 8, 64),  # spatial attention: its own, wider fold
        (3, 48, 32, 1, None, 2),  # SPAN
        (3, 64, 24, 1, None, 2),  # Fast-SRGAN
        (64, 64, 24, 1, 2, 2),
        (48, 256, 48, 1, 4, 2),  # after a pixel shuffle: both sides fuller than the lanes
        (128, 128, 32, 1, None, 1),  # full already
        (256, 256, 16, 1, None, 1),
    ],
)
def test_choices_for_known_shapes(inputs, outputs, width, stride, current, size):
    folding = choose_folding("on", jax.devices("cpu")[0])
    assert folding is not None
    fold = folding.choose(
        inputs=inputs, outputs=outputs, width=width, stride=stride, current=current
    )
    assert fold == size

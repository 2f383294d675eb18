"""Folded networks against the same torch modules run by torch, and against themselves unfolded."""

import copy
import functools
import json
import math
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from jax.interpreters import partial_eval as pe
from torch import nn

from benchmarks import lane_folding_table
from jaxsr.interop._folded import Folded, column_order, fold, refold, shifted, unfold
from jaxsr.interop._folded_convolution import _Convolution
from jaxsr.interop._folded_resize import pool
from jaxsr.interop._folded_rules import first_largest
from jaxsr.interop._lane_table import FOLDS
from jaxsr.interop.lane_folding import CHANNELS_LAST, LaneFolding, choose_folding
from jaxsr.interop.module import to_jax

# Compiling is most of the time here, and nothing is computed twice.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
EVERYTHING = LaneFolding({2: 8, 4: 6, 8: 4, 64: 2}, fewest_lanes=16, offset_bytes=4)
DRAWN = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile(compiler_options=QUICK)(*arguments)


def close(got, want, dtype, size):
    """Within rounding of sums whose terms' sizes sum up to `size`, element by element."""
    got, want, size = (np.asarray(a, np.float64) for a in (got, want, size))
    assert got.shape == want.shape == size.shape
    unit = 2.0**-8 if dtype == "bfloat16" else 2.0**-22
    assert (np.abs(got - want) <= 4 * unit * (size + 1e-3)).all(), np.abs(got - want).max()


@pytest.mark.parametrize("width", [1, 7, 8, 12, 13])
@pytest.mark.parametrize(
    ("size", "offset"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2), (6, 0), (6, 5), (8, 0), (8, 3)]
)
def test_folding_moves_pixels_and_changes_none(width, size, offset):
    x = np.arange(2 * 5 * 3 * width, dtype=np.float32).reshape(2, 5, 3, width)
    folded = fold(jnp.asarray(x), size, (2, 3), offset=offset)
    assert folded.array.shape == (2, 3, -(-(width + offset) // size), 5 * size)
    # Lane by lane, as the module's text says.
    order = column_order(size)
    for group, place in np.ndindex(folded.groups, size):
        column = group * size + order[place] - offset
        for channel in range(5):
            lane = place * 2 + channel if channel < 2 else 2 * size + place * 3 + channel - 2
            want = x[:, channel, :, column] if 0 <= column < width else 0
            np.testing.assert_array_equal(folded.array[:, :, group, lane], want)
    np.testing.assert_array_equal(unfold(folded), x)
    for other in ({}, {"offset": 1}):
        np.testing.assert_array_equal(unfold(refold(folded, 4, **other)), x)
        np.testing.assert_array_equal(unfold(refold(folded, size, offset=size // 2)), x)
    for by in (-3, 1):
        want = np.zeros_like(x)
        kept = slice(max(-by, 0), width - max(by, 0))
        if kept.start < kept.stop:
            want[..., kept] = x[..., kept.start + by : kept.stop + by]
        np.testing.assert_array_equal(unfold(shifted(folded, by)), want)


@st.composite
def convolutions(draw):
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 7)))
    options = {
        "stride": draw(st.sampled_from([1, 1, 2, (2, 1)])),
        "dilation": draw(st.sampled_from([1, 1, 2, 3])),
        "padding": draw(st.integers(0, 3)),
    }
    reach = options["dilation"] * (max(kernel) - 1) + 1
    shape = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 5)),
        draw(st.integers(reach, reach + 4)),
        draw(st.integers(max(reach, 2), reach + 17)),
    )
    weight = (draw(st.integers(1, 5)), shape[1], *kernel)
    folds = draw(
        st.sampled_from([LaneFolding({8: draw(st.integers(2, 8))}, fewest_lanes=1), CHANNELS_LAST])
    )
    dtype = draw(st.sampled_from(["float32", "float32", "bfloat16"]))
    return shape, weight, options, folds, dtype, draw(st.booleans()), draw(st.integers(0, 2**31))


def check_convolution(drawn):
    shape, weight_shape, options, folding, dtype, has_bias, seed = drawn
    random = np.random.default_rng(seed)
    convolution = nn.Conv2d(shape[1], weight_shape[0], weight_shape[2:], bias=has_bias, **options)
    kind = getattr(torch, dtype)
    convolution.to(kind)
    sizes = copy.deepcopy(convolution).float()
    x = torch.from_numpy(random.standard_normal(shape, dtype=np.float32)).to(kind)
    x.requires_grad_()
    want = convolution(x)
    cotangent = torch.from_numpy(random.standard_normal(want.shape, dtype=np.float32)).to(kind)
    want.backward(cotangent)
    # The same on numbers without their signs: a sum that cancels has rounded what it is made of.
    for parameter in sizes.parameters():
        parameter.data.abs_()
    x_sizes = x.detach().float().abs().requires_grad_()
    y_sizes = sizes(x_sizes)
    y_sizes.backward(cotangent.float().abs())
    model = to_jax(convolution, lane_folding=folding)
    assert folding.choose(
        inputs=shape[1], outputs=weight_shape[0], width=shape[3], stride=1, held=None
    )

    def run(params, x, cotangent):
        y, pullback = jax.vjp(lambda p, x: model.apply(p, {}, x)[0], params, x)
        return y, *pullback(cotangent)

    def given(tensor):
        return jnp.asarray(tensor.detach().float().numpy(), dtype)

    y, grads, into_x = compiled(run, model.params, given(x), given(cotangent))
    close(y, want.detach().float(), dtype, y_sizes.detach())
    assert x.grad is not None
    close(into_x, x.grad.float(), dtype, x_sizes.grad)
    for name, parameter in convolution.named_parameters():
        assert parameter.grad is not None
        close(grads[name], parameter.grad.float(), dtype, sizes.get_parameter(name).grad)


@settings(DRAWN, max_examples=20)
@given(convolutions())
def test_any_convolution_and_its_gradients(drawn):
    check_convolution(drawn)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(DRAWN, max_examples=1000)
@given(convolutions())
def test_a_thousand_convolutions_and_their_gradients(drawn):
    check_convolution(drawn)


def check_offsets(seed):
    """A convolution of an image with any offset, in several parts, to a result with any."""
    random = np.random.default_rng(seed)
    size, taps = (int(n) for n in random.integers((2, 1), (7, 8)))
    options: dict[str, Any] = {
        "stride": (1, int(random.choice([1, 1, 2]))),
        "dilation": (1, int(random.integers(1, 3))),
        "padding": (0, int(random.integers(0, 4))),
    }
    parts = tuple(int(n) for n in random.integers(1, 4, random.integers(1, 5)))
    width = int(random.integers(options["dilation"][1] * (taps - 1) + 1, 30))
    x = random.standard_normal((2, sum(parts), 2, width), dtype=np.float32)
    weight = random.standard_normal((3, sum(parts), 1, taps), dtype=np.float32)
    image, kernel = (torch.from_numpy(a).requires_grad_() for a in (x, weight))
    want = F.conv2d(image, kernel, **options)
    cotangent = random.standard_normal(want.shape, dtype=np.float32)
    want.backward(torch.from_numpy(cotangent))
    held = int(random.integers(size))
    offset = int(random.integers(size // math.gcd(size, options["stride"][1])))

    def run(x, weight, cotangent):
        def convolved(x, weight):
            folded = fold(x, size, parts, offset=held)
            # What fills the groups must not be read.
            filler = 1 - fold(jnp.ones_like(x), size, parts, offset=held).array
            filled = folded.holding(folded.array + 7 * filler)
            call = _Convolution(filled, weight, None, **options)
            return unfold(call.biased(offset % call.fold))

        y, pullback = jax.vjp(convolved, x, weight)
        return y, *pullback(cotangent)

    found = compiled(run, x, weight, cotangent)
    for got, expected in zip(found, (want.detach(), image.grad, kernel.grad), strict=True):
        assert expected is not None
        scale = float(expected.abs().max()) + 1
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * scale)


@settings(DRAWN, max_examples=20)
@given(st.integers(0, 2**31))
def test_any_offset_before_and_after_a_convolution(seed):
    check_offsets(seed)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@settings(DRAWN, max_examples=500)
@given(st.integers(0, 2**31))
def test_five_hundred_offsets_before_and_after_a_convolution(seed):
    check_offsets(seed)


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


class Plus(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Residual(nn.Module):
    """Three convolutions, what two of them make being read twice."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1) for _ in range(3)
        )

    def forward(self, x):
        one, two, three = self.convolutions
        first = F.silu(one(x))
        third = three(F.relu(two(first)))
        return (third + x) * (torch.sigmoid(third) - 0.5) + first


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


def each_way(network, shape, *foldings, dtype="float32", train=True, remat=(), seed=0):
    """Outputs, buffers and gradients, plain and with each of `foldings`."""
    random = np.random.default_rng(seed)
    x = jnp.asarray(random.standard_normal(shape, dtype=np.float32))
    results = []
    for folding in (None, *foldings):
        compute = None if dtype == "float32" else jnp.dtype(dtype)
        model = to_jax(network, lane_folding=folding, remat=remat, compute_dtype=compute)

        def loss(params, x, model=model):
            y, buffers = model.apply(params, model.buffers, x, train=train)
            return jnp.sin(3 * y.astype(jnp.float32)).mean(), (y, buffers)

        run = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        results.append(compiled(run, model.params, x))
    return results


def same(results):
    """Sums in another order: some tens of float32 roundings of the largest number about."""
    plain, *folded = results
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(plain[1]))
    for each in folded:
        assert jax.tree.structure(plain) == jax.tree.structure(each)
        for got, want in zip(jax.tree.leaves(each), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * max(scale, 1e-2))


@pytest.mark.parametrize(
    ("width", "foldings"),
    [
        pytest.param(8, [EVERYTHING], marks=pytest.mark.slow, id="8"),
        pytest.param(11, [EVERYTHING, CHANNELS_LAST], id="11"),
    ],
)
@pytest.mark.parametrize("name", BETWEEN)
def test_every_operation_between_convolutions(name, width, foldings):
    torch.manual_seed(0)
    same(each_way(Network(BETWEEN[name]), (2, 3, 6, width), *foldings))


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
        (4, nn.Conv2d(32, 32, 3, padding=1), False),  # too many lanes for a group's outputs
        (2, nn.Conv2d(32, 3, 3), False),  # loses columns
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
    assert turns(network, folding, width=64) == 2


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("factor", "channels", "size"), [(2, 8, 8), (4, 16, 4)])
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
        found = pool(fold(x, size, offset=offset), first_largest)
        assert found is not None
        return (unfold(found) * weight).sum()

    assert image.grad is not None
    np.testing.assert_array_equal(jax.grad(loss)(jnp.asarray(x)), image.grad)


def convolutions_of(network, shape, dtype, folding):
    """Columns of each kernel, and of each result the groups, of all convolutions that count."""
    model = to_jax(network, lane_folding=folding, compute_dtype=jnp.dtype(dtype))
    run = jax.make_jaxpr(lambda p, x: model.apply(p, model.buffers, x)[0])
    jaxpr = run(model.params, jnp.zeros(shape)).jaxpr
    jaxpr, _ = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    found: list[Any] = [e for e in jaxpr.eqns if e.primitive.name == "conv_general_dilated"]
    return [(e.invars[1].aval.shape[1], e.outvars[0].aval.shape[2]) for e in found]


@pytest.mark.parametrize(
    ("network", "taps", "width", "dtype", "found"),
    [
        # From the first on every other result begins with a column that is no part of the image.
        # The sum at the end, of images that have one, is moved by a product to be unfolded.
        ("two", 3, 64, "bfloat16", [(2, 33), (2, 32), (2, 33), (2, 32)]),
        ("two", 3, 64, "float32", [(3, 32), (3, 32), (3, 32)]),
        ("two", 3, 8, "bfloat16", [(3, 4), (3, 4), (3, 4)]),
        # A convolution at the end is made as unfolding wants it, its input moved.
        ("none", 3, 64, "bfloat16", [(2, 33), (2, 32), (3, 32)]),
        # The third is made as its sum with the input wants it; the first activation, which the
        # second convolution reads as it is, is moved by a product with ones.
        ("three", 1, 64, "bfloat16", [(1, 32), (2, 33), (2, 32), (3, 32), (2, 32)]),
    ],
)
def test_kernels_read_two_groups_where_the_result_may_begin_between_two(
    network, taps, width, dtype, found
):
    two = nn.Sequential(
        nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(48, 48, 3, padding=1)
    )
    block = {"two": Plus(two), "three": Residual(48), "none": two}[network]
    model = nn.Sequential(nn.Conv2d(3, 48, taps, padding=taps // 2), block)
    made = convolutions_of(model, (1, 3, 4, width), dtype, LaneFolding({48: 2}))
    assert sorted(made) == sorted(found)


STAY = (
    "batch norm", "batch norm, cumulative", "instance norm", "instance norm, affine", "prelu",
    "silu", "gelu", "relu, in place", "log", "divided", "mean", "amax", "amin", "sums", "sum",
    "max pool", "mean pool", "adaptive pool", "bilinear", "bilinear, corners", "bicubic",
    "bilinear by 4", "nearest", "attention", "pixel shuffle", "pixel shuffle by 4", "stride",
    "dropout, off",
)  # fmt: skip


@pytest.mark.parametrize(
    "folding",
    [LaneFolding({4: 8, 64: 2}, fewest_lanes=16), CHANNELS_LAST],
    ids=["folded", "channels last"],
)
@pytest.mark.parametrize("name", STAY)
def test_no_image_is_turned_on_its_way(name, folding):
    # Into channels last at the start, and back at the end.
    assert turns(Network(BETWEEN[name]), folding) == 2


def turns(network, folding, width=16):
    """How often images are moved between torch's order and channels last."""
    model = to_jax(network, lane_folding=folding)
    run = jax.make_jaxpr(lambda p, x: model.apply(p, model.buffers, x, train=True)[0])
    equations = run(model.params, jnp.zeros((5, 3, 6, width))).eqns
    shapes = [e.outvars[0].aval.shape for e in equations if e.primitive.name == "transpose"]
    # Not weights, nor maps of one or two channels, which are narrow folded as well.
    return len([s for s in shapes if len(s) == 4 and s[0] == 5 and not {1, 2} & set(s)])


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
    ("inputs", "outputs", "width", "stride", "held", "size"),
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
def test_choices_for_known_shapes(inputs, outputs, width, stride, held, size):
    folding = choose_folding("on", jax.devices("cpu")[0])
    assert folding is not None
    found = folding.choose(inputs=inputs, outputs=outputs, width=width, stride=stride, held=held)
    assert found == size


@pytest.mark.parametrize("chip", FOLDS)
def test_the_table_is_what_the_search_found(chip):
    found = json.loads(lane_folding_table.RESULTS.read_text())
    assert FOLDS[chip] == lane_folding_table.chosen(found[chip])
    assert all(len(found[chip][str(channels)]) > 2 for channels in lane_folding_table.CHANNELS)


def test_a_folded_image_is_a_pytree():
    image = fold(jnp.ones((1, 2, 3, 4)), 2)
    doubled = jax.tree.map(lambda x: 2 * x, image)
    assert isinstance(doubled, Folded) and doubled.layout == image.layout
    np.testing.assert_array_equal(unfold(doubled), 2)

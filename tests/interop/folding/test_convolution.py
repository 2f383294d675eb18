"""Convolutions of folded images, with an offset or without, against torch's."""

import copy
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
from torch import nn

from jaxsr.interop.folding.convolution import _Convolution
from jaxsr.interop.folding.layout import Folded, column_order, fold, refold, shifted, unfold
from jaxsr.interop.folding.policy import CHANNELS_LAST, LaneFolding
from jaxsr.interop.module import to_jax
from tests.interop.folding.images import Plus, Residual, compiled, convolutions_of

DRAWN = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def close(got, want, dtype, size):
    """Within rounding of sums whose terms' sizes sum up to `size`, element by element."""
    got, want, size = (np.asarray(a, np.float64) for a in (got, want, size))
    assert got.shape == want.shape == size.shape
    unit = 2.0**-8 if dtype == "bfloat16" else 2.0**-22
    assert (np.abs(got - want) <= 4 * unit * (size + 1e-3)).all(), np.abs(got - want).max()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "width", [1, 8, 13, *(pytest.param(width, marks=pytest.mark.slow) for width in (7, 12))]
)
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
        inside = slice(max(-by, 0), width - max(by, 0))
        if inside.start < inside.stop:
            want[..., inside] = x[..., inside.start + by : inside.stop + by]
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
        inputs=shape[1], outputs=weight_shape[0], width=shape[3], stride=1, current=None
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


@settings(DRAWN, max_examples=8)
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
    offset = int(random.integers(size))
    offset = int(random.integers(size // math.gcd(size, options["stride"][1])))

    def run(x, weight, cotangent):
        def convolved(x, weight):
            folded = fold(x, size, parts, offset=offset)
            # What fills the groups must not be read.
            filler = 1 - fold(jnp.ones_like(x), size, parts, offset=offset).array
            filled = folded.holding(folded.array + 7 * filler)
            call = _Convolution(filled, weight, None, **options)
            return unfold(call.biased(offset % call.fold))

        y, pullback = jax.vjp(convolved, x, weight)
        return y, *pullback(cotangent)

    results = compiled(run, x, weight, cotangent)
    for got, expected in zip(results, (want.detach(), image.grad, kernel.grad), strict=True):
        assert expected is not None
        scale = float(expected.abs().max()) + 1
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.slow
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


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("network", "taps", "width", "dtype", "found"),
    [
        # From the first on every other result begins with a column that is not part of the image.
        # The sum at the end, of images that have one, is moved by a product to be unfolded.
        ("two", 3, 64, "bfloat16", [(2, 33), (2, 32), (2, 33), (2, 32)]),
        ("two", 3, 64, "float32", [(3, 32), (3, 32), (3, 32)]),
        # Eight groups are the fewest.
        ("two", 3, 16, "bfloat16", [(2, 9), (2, 8), (2, 9), (2, 8)]),
        ("two", 3, 14, "bfloat16", [(3, 7), (3, 7), (3, 7)]),
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


def test_a_folded_image_is_a_pytree():
    image = fold(jnp.ones((1, 2, 3, 4)), 2)
    doubled = jax.tree.map(lambda x: 2 * x, image)
    assert isinstance(doubled, Folded) and doubled.layout == image.layout
    np.testing.assert_array_equal(unfold(doubled), 2)

"""The torch convention against `torch.nn.functional.interpolate` itself."""

from functools import lru_cache, partial

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxsr.ops import resize

# (height, width) before and after: odd, prime, one pixel, up, down, 0.7, 640/1080, 1/2, 1/4, x4.
SIZES = [
    ((13, 17), (29, 31)),
    ((97, 64), (41, 32)),
    ((100, 70), (70, 49)),
    ((1, 1), (5, 3)),
    ((7, 1), (3, 4)),
    ((108, 192), (54, 96)),
    ((135, 27), (80, 16)),
    ((24, 25), (96, 100)),
    ((64, 60), (16, 15)),
    ((33, 47), (33, 20)),
    ((9, 9), (1, 1)),
    ((500, 333), (777, 2)),
    ((30, 42), (50, 18)),
]
# method, antialias, align_corners
MODES = [
    ("nearest", False, None),
    ("nearest-exact", False, None),
    ("area", False, None),
    ("bilinear", False, False),
    ("bilinear", False, True),
    ("bilinear", True, False),
    ("bilinear", True, True),
    ("bicubic", False, False),
    ("bicubic", False, True),
    ("bicubic", True, False),
    ("bicubic", True, True),
    *[("lanczos", True, False)] * hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"),  # not in 2.11
]
# Two passes of at most 21 float32 products each of values in 0..1 whose weights' moduli sum to
# less than 1.6; torch's own sums carry as much rounding as ours.
ATOL = 2e-6


def photo(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    return values if dtype is np.float32 else np.round(values * 255).astype(np.uint8)


def all_modes(image: np.ndarray, modes: list, **arguments) -> list[np.ndarray]:
    """Every mode in one program: one compilation for a shape, which both layouts share."""
    return [np.asarray(out) for out in _program(tuple(modes), **arguments)(image)]


@lru_cache(maxsize=1)
def _program(modes: tuple, **arguments):
    def run(image):
        return [
            resize(image, method=m, antialias=a, align_corners=bool(c), axes=(-2, -1), **arguments)
            for m, a, c in modes
        ]

    return jax.jit(run)


@pytest.mark.sample(1)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_float32(before, after, channels_last):
    image = photo((2, 3, *before), np.float32)
    tensor = torch.from_numpy(image)
    if channels_last:  # torch has kernels of its own for this layout
        tensor = tensor.to(memory_format=torch.channels_last)
    for mode, got in zip(MODES, all_modes(image, MODES, size=after), strict=True):
        method, antialias, corners = mode
        want = F.interpolate(
            tensor, after, mode=method, antialias=antialias, align_corners=corners
        ).numpy()
        if method.startswith("nearest"):
            np.testing.assert_array_equal(got, want, err_msg=str(mode))
        else:
            np.testing.assert_allclose(got, want, atol=ATOL, rtol=0, err_msg=str(mode))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("before", "after"), [((300, 310), (411, 127)), ((97, 64), (41, 32))])
def test_float64(before, after):
    """torch's coordinates of float64 are float64 as well, but for the nearest pixel's."""
    image = np.random.default_rng(0).random((1, 1, *before))
    with jax.enable_x64(True):
        outputs = all_modes(image, MODES, size=after)
    for (method, antialias, corners), got in zip(MODES, outputs, strict=True):
        want = F.interpolate(
            torch.from_numpy(image), after, mode=method, antialias=antialias, align_corners=corners
        )
        np.testing.assert_allclose(got, want.numpy(), atol=1e-12, rtol=0, err_msg=method)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("before", "after"), [size for size in SIZES if size[1] != (1, 1)])
def test_uint8_is_bit_equal(before, after):
    # To 1x1 torch 2.13 stops at an internal assertion of its own.
    image = photo((2, 3, *before), np.uint8)
    modes = [mode for mode in MODES if mode[0] != "area"]  # which torch has for floats only
    for mode, got in zip(modes, all_modes(image, modes, size=after), strict=True):
        method, antialias, corners = mode
        want = F.interpolate(
            torch.from_numpy(image), after, mode=method, antialias=antialias, align_corners=corners
        ).numpy()
        np.testing.assert_array_equal(got, want, err_msg=str(mode))


@pytest.mark.sample(1)
@pytest.mark.parametrize("factor", [0.3, 0.5, 0.7, 1.3, 2.0, (0.9, 2.7)])
def test_scale_factor_is_used_as_given(factor):
    image = photo((1, 2, 41, 58), np.float32)
    modes = [mode for mode in MODES if mode[0] != "area" and not mode[2]]
    pair = factor if isinstance(factor, tuple) else (factor, factor)
    size = tuple(int(n * f) for n, f in zip(image.shape[-2:], pair, strict=True))
    for mode, got in zip(modes, all_modes(image, modes, size=size, scale=factor), strict=True):
        method, antialias, corners = mode
        want = F.interpolate(
            torch.from_numpy(image),
            scale_factor=factor,
            mode=method,
            antialias=antialias,
            align_corners=corners,
            recompute_scale_factor=False,
        ).numpy()
        np.testing.assert_allclose(got, want, atol=ATOL, rtol=0, err_msg=str(mode))


@pytest.mark.parametrize("method", ["nearest", "linear"])
def test_one_axis_and_three(method):
    line = photo((2, 3, 37), np.float32)
    ours = "bilinear" if method == "linear" else method
    want = F.interpolate(torch.from_numpy(line), 23, mode=method).numpy()
    got = resize(line, 23, method=ours, axes=(-1,))
    np.testing.assert_allclose(got, want, atol=ATOL, rtol=0)
    block = photo((2, 3, 7, 9, 11), np.float32)
    mode = "trilinear" if method == "linear" else method
    want = F.interpolate(torch.from_numpy(block), (5, 13, 22), mode=mode).numpy()
    got = resize(block, (5, 13, 22), method=ours, axes=(-3, -2, -1))
    np.testing.assert_allclose(got, want, atol=ATOL, rtol=0)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("method", "antialias", "after"),
    [("bilinear", False, (10, 40)), ("bicubic", False, (31, 9)), ("bicubic", True, (7, 5))],
)
def test_gradient(method, antialias, after):
    image = photo((1, 2, 21, 20), np.float32)
    tensor = torch.from_numpy(image).requires_grad_()
    out = F.interpolate(tensor, after, mode=method, antialias=antialias)
    weight = np.random.default_rng(1).random(tuple(out.shape), dtype=np.float32)
    (out * torch.from_numpy(weight)).sum().backward()
    call = partial(resize, size=after, method=method, antialias=antialias, axes=(-2, -1))
    got = jax.grad(lambda x: (call(x) * weight).sum())(image)
    assert tensor.grad is not None
    # A pixel collects up to 40 * 4 products of values below 1.
    np.testing.assert_allclose(got, tensor.grad.numpy(), atol=2e-5, rtol=0)


@pytest.mark.parametrize("after", [(1, 4), (5, 1)])
def test_gradient_of_one_pixel_between_aligned_corners(after):
    image = photo((1, 2, 7, 6), np.float32)
    tensor = torch.from_numpy(image).requires_grad_()
    F.interpolate(tensor, after, mode="bilinear", align_corners=True).square().sum().backward()
    call = partial(resize, size=after, method="bilinear", align_corners=True, antialias=False)
    gradient = jax.grad(lambda x: (call(x, axes=(-2, -1)) ** 2).sum())(image)
    assert tensor.grad is not None
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("after", [(40, 43), (9, 11)])
def test_a_gradient_that_is_not_finite_stays_with_the_pixels_read(after):
    tensor = torch.from_numpy(photo((2, 3, 21, 20), np.float32)).requires_grad_()
    weight = torch.ones(2, 3, *after)
    weight[0, 1, 4, 5], weight[1, 2, 0, 0] = torch.inf, torch.nan
    F.interpolate(tensor, after, mode="bilinear").backward(weight)
    call = partial(resize, size=after, method="bilinear", antialias=False, axes=(0, 1))
    _, pullback = jax.vjp(jax.vmap(jax.vmap(call)), tensor.detach().numpy())
    (gradient,) = pullback(weight.numpy())
    assert tensor.grad is not None
    # torch also multiplies what is not finite by the weight 0 of a neighbour.
    finite = tensor.grad.isfinite().numpy()
    assert 0 < (~np.isfinite(gradient)).sum() <= (~finite).sum() <= 8
    np.testing.assert_allclose(gradient[finite], tensor.grad.numpy()[finite], rtol=1e-5)


def test_bfloat16_is_float32_rounded_once():
    image = torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    narrow = image.to(torch.bfloat16)
    want = F.interpolate(narrow.float(), (16, 20), mode="bicubic").to(torch.bfloat16)
    array = jax.numpy.asarray(narrow.float().numpy(), jax.numpy.bfloat16)
    got = resize(array, (16, 20), method="bicubic", axes=(-2, -1))
    assert got.dtype == jax.numpy.bfloat16
    # Where float32 noise crosses a rounding boundary the results are neighbours: 2**-8 at most.
    np.testing.assert_allclose(got.astype(np.float32), want.float(), atol=0, rtol=2**-7)

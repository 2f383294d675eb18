"""Convolutions in the forms of `lowerings/convolution.py`, against torch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jaxsr.interop import to_jax
from jaxsr.interop.folding.policy import CHANNELS_LAST, LaneFolding
from jaxsr.interop.lowerings.convolution import LANES, WIDE, unit_stride_convolution

# An axis of two taps at stride 2 beside one with more taps than pixels.
STRIDED = functools.partial(nn.Conv2d, 4, 5, (3, 2), stride=2, padding=1)
COMPILER_CRASHES = {
    "strided": (STRIDED, (1, 4, 4, 4), None),
    "strided, channels last": (STRIDED, (1, 4, 4, 4), CHANNELS_LAST),
    "strided, folded": (
        functools.partial(nn.Conv2d, 4, 5, (2, 3), stride=2, padding=1),
        (1, 4, 4, 4),
        LaneFolding({8: 4}, fewest_lanes=1),
    ),
    "strided, three axes": (
        functools.partial(nn.Conv3d, 2, 3, (3, 2, 2), stride=2, padding=1),
        (1, 2, 4, 4, 6),
        None,
    ),
    "transposed": (
        functools.partial(nn.ConvTranspose2d, 4, 5, (3, 2), stride=2, padding=1),
        (1, 4, 2, 3),
        None,
    ),
    "transposed, bfloat16": (
        functools.partial(nn.ConvTranspose2d, 4, 5, (5, 2), stride=2, padding=(0, 1)),
        (2, 4, 2, 3),
        None,
    ),
    "transposed, its weights": (
        functools.partial(nn.ConvTranspose2d, 4, 5, (3, 4), stride=2, padding=(1, 3)),
        (1, 4, 2, 3),
        None,
    ),
}


@pytest.mark.parametrize("name", COMPILER_CRASHES)
def test_shapes_at_which_xla_ends_the_process(name):
    torch.manual_seed(0)
    make, shape, folding = COMPILER_CRASHES[name]
    convolution = make()
    dtype = jnp.dtype("bfloat16") if "bfloat16" in name else None
    x = torch.randn(shape, requires_grad=True)
    expected = convolution(x)
    expected.square().sum().backward()
    model = to_jax(convolution, lane_folding=folding, compute_dtype=dtype)

    def loss(params, x):
        y = model.apply(params, {}, x)[0].astype(jnp.float32)
        return (y**2).sum(), y

    run = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    (grads, into_x), y = run(model.params, jnp.asarray(x.detach().numpy()))
    assert x.grad is not None
    rtol, atol = (1e-5, 1e-4) if dtype is None else (2e-2, 0.2)
    np.testing.assert_allclose(y, expected.detach(), rtol, atol)
    np.testing.assert_allclose(into_x, x.grad, rtol, atol)
    for weight, parameter in convolution.named_parameters():
        np.testing.assert_allclose(grads[weight], parameter.grad, rtol, atol)


# ---- unit stride, in every mode of differentiation

# images, input and output channels, height, width, kernel, padding
SHAPES = {
    "few outputs, large kernel": (2, 24, 3, 13, 11, 9, 4),
    "many outputs": (2, WIDE, WIDE + 6, 5, 6, 3, 1),
    "more outputs than few inputs": (2, 16, 40, 9, 10, 3, 1),
    "one pixel": (3, 5, 17, 9, 10, 1, 0),
    "one pixel, padded": (2, 16, 5, 6, 6, 1, 2),
    "without padding": (1, 17, 4, 8, 7, 5, 0),
    "padding beyond the kernel": (2, 16, 5, 6, 6, 3, 4),
    "even kernel": (2, 16, 6, 9, 8, 4, 2),
    "too few inputs for the other way round": (2, LANES - 1, 6, 9, 8, 3, 1),
}


@pytest.fixture(params=[False, True], ids=["first", "last"])
def last(request):
    return request.param


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def case(request):
    n, c, o, h, w, k, pad = request.param
    rng = np.random.default_rng(0)
    image = rng.standard_normal((n, c, h, w), np.float32)
    weight = rng.standard_normal((o, c, k, k), np.float32) / (k * c**0.5)
    return image, weight, pad


def jax_convolution(pad, channels_last):
    def run(image, weight):
        if not channels_last:
            return unit_stride_convolution(image, weight, [(pad, pad)] * 2)
        out = unit_stride_convolution(
            jnp.moveaxis(image, 1, 3), weight, [(pad, pad)] * 2, channels_last=True
        )
        return jnp.moveaxis(out, 3, 1)

    return run


def torch_convolution(pad):
    return lambda image, weight: F.conv2d(image, weight, padding=pad)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-4, atol=1e-4)


def test_gradients(case, last):
    image, weight, pad = case
    tensors = [torch.from_numpy(a).requires_grad_() for a in (image, weight)]
    out = torch_convolution(pad)(*tensors)
    ct = torch.from_numpy(np.random.default_rng(1).standard_normal(out.shape).astype(np.float32))
    out.backward(ct)
    value, pullback = jax.vjp(jax_convolution(pad, last), image, weight)
    close(value, out)
    for gradient, tensor in zip(jax.jit(pullback)(ct.numpy()), tensors, strict=True):
        close(gradient, tensor.grad)


def test_forward_mode(case, last):
    image, weight, pad = case
    tangents = np.roll(image, 1), np.roll(weight, 1)
    tensors = [[torch.from_numpy(a) for a in pair] for pair in ((image, weight), tangents)]
    _, expected, *_ = torch.func.jvp(torch_convolution(pad), tuple(tensors[0]), tuple(tensors[1]))
    _, tangent = jax.jvp(jax_convolution(pad, last), (image, weight), tangents)
    close(tangent, expected)


def test_gradient_of_a_gradient_and_of_each_sample(case, last):
    image, weight, pad = case

    def loss(convolution):
        return lambda image, weight: (convolution(image, weight) ** 3).mean()

    def size(gradient):
        return lambda weight: (gradient(weight) ** 2).sum()

    tensor = torch.from_numpy(image)
    torch_gradient = torch.func.grad(loss(torch_convolution(pad)), 1)
    expected = torch.func.grad(size(lambda w: torch_gradient(tensor, w)))(torch.from_numpy(weight))
    jax_gradient = jax.grad(loss(jax_convolution(pad, last)), 1)
    close(jax.grad(size(lambda w: jax_gradient(image, w)))(jnp.asarray(weight)), expected)

    each = jax.vmap(jax_gradient, (0, None))(image[:, None], weight)
    close(each.mean(0), torch_gradient(tensor, torch.from_numpy(weight)))

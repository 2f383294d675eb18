"""Convolutions in forms of our own, against torch in every mode of derivation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from jaxsr.interop.lowerings.convolution import LANES, WIDE, unit_stride_convolution

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


def ours(pad, channels_last):
    def run(image, weight):
        if not channels_last:
            return unit_stride_convolution(image, weight, [(pad, pad)] * 2)
        out = unit_stride_convolution(
            jnp.moveaxis(image, 1, 3), weight, [(pad, pad)] * 2, channels_last=True
        )
        return jnp.moveaxis(out, 3, 1)

    return run


def theirs(pad):
    return lambda image, weight: F.conv2d(image, weight, padding=pad)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-4)


def test_gradients(case, last):
    image, weight, pad = case
    tensors = [torch.from_numpy(a).requires_grad_() for a in (image, weight)]
    out = theirs(pad)(*tensors)
    ct = torch.from_numpy(np.random.default_rng(1).standard_normal(out.shape).astype(np.float32))
    out.backward(ct)
    value, pullback = jax.vjp(ours(pad, last), image, weight)
    close(value, out)
    for got, tensor in zip(jax.jit(pullback)(ct.numpy()), tensors, strict=True):
        close(got, tensor.grad)


def test_forward_mode(case, last):
    image, weight, pad = case
    moved = np.roll(image, 1), np.roll(weight, 1)
    tensors = [[torch.from_numpy(a) for a in pair] for pair in ((image, weight), moved)]
    _, wanted, *_ = torch.func.jvp(theirs(pad), tuple(tensors[0]), tuple(tensors[1]))
    _, tangent = jax.jvp(ours(pad, last), (image, weight), moved)
    close(tangent, wanted)


def test_gradient_of_a_gradient_and_of_each_sample(case, last):
    image, weight, pad = case

    def loss(convolution):
        return lambda image, weight: (convolution(image, weight) ** 3).mean()

    def size(gradient):
        return lambda weight: (gradient(weight) ** 2).sum()

    tensor = torch.from_numpy(image)
    their_gradient = torch.func.grad(loss(theirs(pad)), 1)
    wanted = torch.func.grad(size(lambda w: their_gradient(tensor, w)))(torch.from_numpy(weight))
    our_gradient = jax.grad(loss(ours(pad, last)), 1)
    close(jax.grad(size(lambda w: our_gradient(image, w)))(jnp.asarray(weight)), wanted)

    each = jax.vmap(our_gradient, (0, None))(image[:, None], weight)
    close(each.mean(0), their_gradient(tensor, torch.from_numpy(weight)))

"""Convolutions at which XLA's own simplifier ends the process, against torch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.interop.folding.policy import CHANNELS_LAST, LaneFolding

# An axis of two taps at stride 2 beside one with more taps than pixels.
STRIDED = functools.partial(nn.Conv2d, 4, 5, (3, 2), stride=2, padding=1)
CASES = {
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


@pytest.mark.parametrize("name", CASES)
def test_output_and_gradients(name):
    torch.manual_seed(0)
    make, shape, folding = CASES[name]
    convolution = make()
    dtype = jnp.dtype("bfloat16") if "bfloat16" in name else None
    x = torch.randn(shape, requires_grad=True)
    want = convolution(x)
    want.square().sum().backward()
    model = to_jax(convolution, lane_folding=folding, compute_dtype=dtype)

    def loss(params, x):
        y = model.apply(params, {}, x)[0].astype(jnp.float32)
        return (y**2).sum(), y

    run = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    (grads, into_x), y = run(model.params, jnp.asarray(x.detach().numpy()))
    assert x.grad is not None
    rtol, atol = (1e-5, 1e-4) if dtype is None else (2e-2, 0.2)
    np.testing.assert_allclose(y, want.detach(), rtol, atol)
    np.testing.assert_allclose(into_x, x.grad, rtol, atol)
    for weight, parameter in convolution.named_parameters():
        np.testing.assert_allclose(grads[weight], parameter.grad, rtol, atol)

"""Outputs of a torch.autograd.Function that nothing reads: zeros or None in backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax


class _Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        if a is None:
            return b * 7
        return a * 11 if b is None else a + b


class _TwoOfZeros(_Two):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        return a * 5 + b * 13  # None would be an error


class Reads(nn.Module):
    def __init__(self, function: type, which: tuple[int, ...]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        self.function, self.which = function, which

    def forward(self, x):
        outputs = self.function.apply(x * self.w)
        return sum(outputs[i] for i in self.which)


@pytest.mark.sample(8)
@pytest.mark.parametrize("function", [_Two, _TwoOfZeros])
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("form", ["plain", "jit outside", "jit inside", "vmap"])
def test_unread_outputs(function, which, form):
    module = Reads(function, which)
    x = np.array([0.5, 2.0, -1.0], np.float32)
    (expected,) = torch.autograd.grad(module(torch.tensor(x)).sum(), [module.w])
    model = to_jax(module)

    def loss(params, x):
        apply = jax.jit(model.apply) if form == "jit inside" else model.apply
        return apply(params, model.buffers, x)[0].sum()

    gradient = jax.grad(loss)
    if form == "jit outside":
        gradient = jax.jit(gradient)
    if form == "vmap":
        ours = jax.vmap(gradient, (None, 0))(model.params, jnp.stack([x, x]))["w"][1]
    else:
        ours = gradient(model.params, x)["w"]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)

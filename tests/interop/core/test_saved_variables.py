"""torch.autograd.Function with torch's older name of its saved tensors, as OmniSR writes it."""

import jax
import numpy as np
import torch
from torch import nn

from jaxsr.interop import to_jax


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_variables
        return 3 * x * gradient


class Squares(nn.Module):
    def forward(self, x):
        return Square.apply(x)


def test_the_backward_reads_them():
    module = to_jax(Squares())
    gradient = jax.grad(lambda x: module.apply({}, {}, x)[0].sum())(np.full(2, 2.0, np.float32))
    np.testing.assert_array_equal(gradient, [6.0, 6.0])

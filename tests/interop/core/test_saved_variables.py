"""Saving in torch.autograd.Function: by torch's older name (OmniSR), in a list (Reformer)."""

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax


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


class Listed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, log):
        log.append(x * 2)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class ReadsList(nn.Module):
    def forward(self, x):
        log = []
        return Listed.apply(x, log) + log[0]


def test_a_tensor_that_a_list_carries_out_of_forward_is_refused():
    module = to_jax(ReadsList())
    with pytest.raises(
        UnsupportedTorchError, match=r"ReadsList at .*a list or an attribute kept it"
    ):
        module.apply({}, {}, np.ones(2, np.float32))

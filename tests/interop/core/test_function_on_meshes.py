"""`torch.autograd.Function` inside `shard_map`, and weights that all devices have."""

import jax
import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec
from torch import nn
from torch.autograd import Function

from jaxsr.interop import to_jax

P = PartitionSpec


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x * weight + bias

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0), torch.ones(3)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return Scaled.apply(x, self.weight, self.bias)


@pytest.mark.parametrize("check_vma", [True, False])
def test_the_gradient_of_a_replicated_weight_is_the_sum_of_all_rows(check_vma):
    module = Layer()
    model, mesh = to_jax(module), jax.make_mesh((2,), ("d",), (jax.sharding.AxisType.Auto,))
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

    def loss(params, x):
        out = jax.shard_map(
            lambda params, x: model.apply(params, {}, x)[0],
            mesh=mesh,
            in_specs=(P(), P("d")),
            out_specs=P("d"),
            check_vma=check_vma,
        )(params, x)
        return (out**2).sum()

    gradients, of_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(model.params, x)
    rows = torch.from_numpy(x).requires_grad_()
    module(rows).square().sum().backward()
    np.testing.assert_allclose(gradients["weight"], np.asarray(module.weight.grad), rtol=1e-5)
    np.testing.assert_allclose(of_x, np.asarray(rows.grad), rtol=1e-5)

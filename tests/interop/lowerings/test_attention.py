"""Scaled dot-product attention against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.interop import to_jax


class Attention(nn.Module):
    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def test_grouped_queries_with_other_heads_for_keys_than_for_values():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, h, 5, 8)).astype(np.float32) for h in (4, 2, 4)]
    tensors = [torch.from_numpy(a).requires_grad_() for a in arrays]
    expected = Attention()(*tensors)
    expected.sin().sum().backward()
    module = to_jax(Attention())

    def loss(*arrays):
        output = module.apply({}, {}, *arrays)[0]
        return jnp.sin(output).sum(), output

    gradients, output = jax.grad(loss, (0, 1, 2), has_aux=True)(*arrays)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-6)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(gradient, tensor.grad, atol=1e-5)


@pytest.mark.parametrize("heads", ["one for all", "one a head", "shared by rows"])
@pytest.mark.parametrize("kind", [bool, float])
def test_grouped_queries_with_masks(heads, kind):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn((2, 6, 5, 8), generator=generator)
    key, value = (torch.randn((2, 2, 7, 8), generator=generator) for _ in range(2))
    shape = {"one for all": (5, 7), "one a head": (2, 6, 5, 7), "shared by rows": (2, 1, 1, 7)}
    mask = torch.randn(shape[heads], generator=generator)
    mask = mask > -0.5 if kind is bool else mask

    class Grouped(nn.Module):
        def forward(self, query, key, value, mask):
            return F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)

    model = to_jax(Grouped())
    arrays = [jnp.asarray(t.numpy()) for t in (query, key, value, mask)]
    output = jax.jit(lambda *a: model.apply({}, {}, *a)[0])(*arrays)
    reference = Grouped()(query, key, value, mask).nan_to_num()
    np.testing.assert_allclose(output, reference.numpy(), rtol=0, atol=2e-6)

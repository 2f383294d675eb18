"""Scaled dot-product attention against torch."""

import jax
import numpy as np
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
        return jax.numpy.sin(output).sum(), output

    gradients, output = jax.grad(loss, (0, 1, 2), has_aux=True)(*arrays)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-6)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(gradient, tensor.grad, atol=1e-5)

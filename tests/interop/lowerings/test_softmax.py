"""Softmax against torch, where compilers round a product and a difference once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxsr.interop import to_jax


class Scaled(torch.nn.Module):
    """Masks, then scales: the largest negative number over a square root."""

    def forward(self, scores, mask):
        return torch.softmax((scores + mask) / 8**0.5, -1)


def _inputs(dtype=np.float32):
    scores = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(dtype)
    mask = np.zeros((5, 7), dtype)
    mask[2] = mask[4, 3:] = np.finfo(dtype).min
    return scores, mask


def test_rows_that_are_masked_whole_are_uniform_in_one_program():
    scores, mask = _inputs()
    reference = Scaled()(torch.from_numpy(scores), torch.from_numpy(mask)).numpy()
    model = to_jax(Scaled())
    output = jax.jit(lambda s, m: model.apply({}, {}, s, m)[0])(scores, mask)
    np.testing.assert_allclose(output, reference, rtol=0, atol=2e-7)


def test_its_gradient_is_torchs():
    scores, mask = _inputs()
    weights = np.random.default_rng(1).normal(size=scores.shape).astype(np.float32)
    x = torch.from_numpy(scores).requires_grad_()
    (Scaled()(x, torch.from_numpy(mask)) * torch.from_numpy(weights)).sum().backward()
    model = to_jax(Scaled())
    loss = jax.jit(lambda s: (model.apply({}, {}, s, mask)[0] * weights).sum())
    gradient = np.asarray(x.grad)
    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(scores)), gradient, rtol=0, atol=2e-7)


@pytest.mark.parametrize("row", [[np.inf, 0, 1], [np.nan, 0, 1], [-np.inf] * 3, [-np.inf, 0, 1]])
@pytest.mark.parametrize("function", [torch.softmax, torch.ops.aten._safe_softmax])
def test_numbers_that_are_not_finite_give_what_torch_gives(row, function):
    class Row(torch.nn.Module):
        def forward(self, x):
            return function(x, -1)

    x = np.array([row], np.float32)
    model = to_jax(Row())
    output = jax.jit(lambda x: model.apply({}, {}, x)[0])(x)
    np.testing.assert_allclose(output, function(torch.from_numpy(x), -1).numpy(), atol=1e-7)


def test_half_precision_is_computed_in_float32():
    x = np.random.default_rng(2).normal(size=(4, 300)).astype(np.float32)
    half = torch.from_numpy(x).bfloat16()
    model = to_jax(torch.nn.Softmax(-1))
    output = model.apply({}, {}, jnp.asarray(half.float().numpy(), jnp.bfloat16))[0]
    reference = torch.softmax(half, -1).float().numpy()
    np.testing.assert_array_equal(np.asarray(output, np.float32), reference)

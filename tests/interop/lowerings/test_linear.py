"""F.linear's gradients against float64 torch."""

import jax
import numpy as np
import torch
from torch import nn

from jaxsr.interop import to_jax


def test_a_bias_behind_equal_rows_has_an_exact_gradient():
    """Zero-padded windows, as in SAM 2's Hiera: 180 of each image's 196 gradients are the same."""
    rng = np.random.default_rng(0)
    gradient = np.empty((2, 14, 14, 1152), np.float32)
    gradient[:] = rng.standard_normal(1152)
    gradient[:, :4, :4] = rng.standard_normal((2, 4, 4, 1152))
    jm = to_jax(nn.Linear(4, 1152))

    def apply(params):
        return jm.apply(params, {}, np.zeros((2, 14, 14, 4), np.float32))[0]

    actual = jax.jit(lambda params: jax.vjp(apply, params)[1](gradient)[0])(jm.params)["bias"]
    rows = torch.from_numpy(gradient).reshape(-1, 1152)
    exact = rows.double().sum(0).numpy()
    step = np.abs(exact).max() * 2**-23
    assert np.abs(rows.sum(0).numpy() - exact).max() < 4 * step
    np.testing.assert_allclose(actual, exact, rtol=0, atol=4 * step)


def test_forward_mode_and_vmap_pass_a_large_bias():
    jm = to_jax(nn.Linear(4, 1152))
    x = np.random.default_rng(0).standard_normal((3, 256, 4)).astype(np.float32)
    tangents = {name: np.ones_like(array) for name, array in jm.params.items()}
    out, change = jax.jvp(lambda p: jm.apply(p, {}, x)[0], (jm.params,), (tangents,))
    np.testing.assert_allclose(
        change, np.broadcast_to(x.sum(-1, keepdims=True) + 1, out.shape), atol=1e-5
    )
    mapped = jax.vmap(lambda x: jm.apply(jm.params, {}, x)[0])(np.stack([x, x]))
    np.testing.assert_allclose(mapped[1], out, atol=1e-6)

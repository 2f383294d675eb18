"""Bounds of drawn numbers, as torch keeps them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxsr.interop import UnsupportedTorchError, to_jax
from tests.interop.core.function_net import FunctionNet


def drawn(function, x):
    network = to_jax(FunctionNet(lambda _, x: function(x)))
    return network.apply({}, {}, jnp.asarray(x), rng=jax.random.key(0))[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_never_draws_its_upper_bound(dtype):
    draws = drawn(lambda x: torch.rand(1 << 18, dtype=dtype).float() + x, 0.0)
    assert float(draws.min()) >= 0 and float(draws.max()) < 1
    draws = drawn(lambda x: x.to(dtype).uniform_(-2, 3).float(), np.zeros(1 << 18, np.float32))
    assert -2 <= float(draws.min()) < -1.9 and 2.9 < float(draws.max()) < 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shares_of_half_precision_are_torchs(dtype):
    p = torch.full((), 0.003, dtype=dtype)
    draws = drawn(
        lambda x: torch.bernoulli((x + p).to(dtype)).float(), np.zeros(1 << 18, np.float32)
    )
    assert abs(float(draws.mean()) - p.item()) < 5e-4  # 5 standard deviations

    def categories(x):
        return torch.multinomial((x + 1).to(dtype), 1 << 17, replacement=True)

    counts = np.bincount(drawn(categories, np.zeros(64, np.float32)), minlength=64)
    np.testing.assert_allclose(counts / (1 << 11), np.ones(64), atol=0.12)  # 5.4


def test_exponential_draws_have_logarithms(monkeypatch):
    monkeypatch.setattr(
        jax.random, "exponential", lambda key, shape, dtype: jnp.zeros(shape, dtype)
    )
    sample = drawn(F.gumbel_softmax, np.zeros((2, 3), np.float32))
    np.testing.assert_allclose(sample, np.full((2, 3), 1 / 3), rtol=1e-6)


def test_complex_numbers_and_booleans():
    parts = np.asarray(drawn(lambda x: torch.rand(1000, dtype=torch.complex64) + x, 0.0))
    assert abs(parts.mean() - (0.5 + 0.5j)) < 0.05 and parts.imag.min() >= 0
    assert set(np.asarray(drawn(lambda x: torch.randint(0, 2, (99,), dtype=torch.bool) & x, True)))


@pytest.mark.parametrize(("dtype", "low", "high"), [("uint8", 0, 256), ("int8", -128, 128)])
def test_all_values_of_narrow_integers_are_drawn(dtype, low, high):
    draw = getattr(torch, dtype)
    draws = drawn(lambda x: torch.randint(low, high, (20_000,), dtype=draw).int() + x, 0)
    assert np.unique(draws).tolist() == list(range(low, high))


@pytest.mark.parametrize("high", [2**31, 2**40])
def test_more_integers_than_jax_draws_are_refused(high):
    with pytest.raises(UnsupportedTorchError, match=r"JAX draws int32 from .* x64"):
        drawn(lambda x: torch.randint(0, high, (4,)) + x, 0)


def test_more_draws_than_categories_need_replacement():
    with pytest.raises(RuntimeError, match="draws 6 of 5 categories"):
        drawn(lambda x: torch.multinomial(x + 1, 6), np.zeros(5, np.float32))

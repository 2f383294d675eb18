"""`torch.poisson`: counts by SciPy's distribution, and torch's rules about rates and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy.stats import poisson
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.interop.errors import RefusedValueError

_KEY = jax.random.key(0)


class ShotNoise(nn.Module):
    """Counts of photons, as degradations of images have them."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.poisson(image * 4)


@pytest.mark.parametrize("rate", [0.0, 0.3, 4.0, 400.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_counts(rate: float, dtype: str):
    image = jnp.full((200, 200), rate, dtype)
    counts, _ = jax.jit(to_jax(ShotNoise()).apply)({}, {}, image, rng=_KEY)
    assert counts.dtype == dtype
    counts, mean = np.float64(counts), 4 * float(image[0, 0])
    # Five standard errors of 40,000 draws, and bfloat16's rounding of a count.
    rounding = mean * (2**-9 if dtype == "bfloat16" else 0)
    assert abs(counts.mean() - mean) <= 5 * (mean / 40_000) ** 0.5 + rounding
    if mean < 20:
        for count in range(8):
            expected = poisson.pmf(count, mean)
            assert abs((counts == count).mean() - expected) < 5 * (expected / 40_000) ** 0.5 + 1e-6


def test_no_gradient():
    model = to_jax(ShotNoise())

    def total(image: jax.Array) -> jax.Array:
        return model.apply({}, {}, image, rng=_KEY)[0].sum()

    image = torch.ones(3, 4, requires_grad=True)
    ShotNoise()(image).sum().backward()
    np.testing.assert_array_equal(jax.grad(total)(jnp.ones((3, 4))), image.grad)


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_rates_that_torch_refuses(value: float):
    with pytest.raises(RuntimeError):
        ShotNoise()(torch.tensor([1.0, value]))
    with pytest.raises(RefusedValueError, match="negative, NaN or beyond"):
        to_jax(ShotNoise()).apply({}, {}, jnp.array([1.0, value]), rng=_KEY)

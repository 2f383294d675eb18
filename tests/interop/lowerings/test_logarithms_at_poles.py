"""`erfcx`, and the slopes of x · log(y) at the logarithm's pole, against torch and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import torch

from jaxsr.interop import to_jax
from tests.calls import Call


@pytest.mark.parametrize(("function", "pole"), [(torch.xlogy, 0), (torch.special.xlog1py, -1)])
def test_a_cotangent_of_zero_wins_over_an_infinite_logarithm(function, pole):
    x, y = np.array([[0, 0, 1, 2, 0, 1], [1, 2, 1, 1, 0, 3]], np.float32)
    y = np.where(np.arange(6) < 4, pole, y).astype(np.float32)
    cotangent = np.array([0, 1, 0, 1, 0, 0], np.float32)
    tensors = [torch.tensor(array, requires_grad=True) for array in (x, y)]
    expected = torch.autograd.grad(function(*tensors), tensors, torch.from_numpy(cotangent))
    model = to_jax(Call(function))
    _, pullback = jax.vjp(lambda *arrays: model.apply({}, {}, *arrays)[0], x, y)
    for ours, theirs in zip(pullback(jnp.asarray(cotangent)), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_erfcx():
    """SciPy and torch in float64 are the referees."""
    x = np.concatenate([np.linspace(-6, 30, 400), [-100, 100, 1e10]]).astype(np.float32)
    model = to_jax(Call(torch.special.erfcx))
    values, pullback = jax.vjp(lambda x: model.apply({}, {}, x)[0], x)
    exact = scipy.special.erfcx(x.astype(float))
    np.testing.assert_allclose(values, exact.astype(np.float32), rtol=5e-6)
    reference = torch.from_numpy(x).double().requires_grad_()
    (slopes,) = torch.autograd.grad(torch.special.erfcx(reference).sum(), reference)
    np.testing.assert_allclose(pullback(jnp.ones_like(x))[0], slopes.float(), rtol=5e-6, atol=1e-6)
    ends = model.apply({}, {}, np.array([np.inf, -np.inf, np.nan], np.float32))[0]
    np.testing.assert_array_equal(ends, [0, np.inf, np.nan])

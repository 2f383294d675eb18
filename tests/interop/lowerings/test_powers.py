"""Powers at their limits, and logarithms of whole powers, in compiled programs against torch."""

import jax
import numpy as np
import pytest
import torch

from jaxsr.interop import to_jax
from tests.interop.core.function_net import FunctionNet

LIMITS = torch.tensor([-np.inf, -3, -2.5, -1, -0.5, -0.0, 0, 0.5, 1, 2, 2.2, 3, np.inf, np.nan])
BASES, EXPONENTS = (t.reshape(-1) for t in torch.meshgrid(LIMITS, LIMITS, indexing="ij"))
TWOS, TENS = 2.0 ** torch.arange(-30, 61), 10.0 ** torch.arange(12)
PLAIN = torch.rand(2000, generator=torch.Generator().manual_seed(0)) * 3 - 1

FUNCTIONS = {
    "of tensors": (BASES, lambda x: x**EXPONENTS),
    "of numbers": (LIMITS, lambda x: torch.stack([x ** float(e) for e in LIMITS])),
    "logarithm": (PLAIN, lambda x: torch.stack([(x**5).log(), (x**2.2).log(), (x**4).log2()])),
    "of tensors, logarithm": (BASES, lambda x: torch.log10(torch.pow(x, EXPONENTS))),
    "near 1": (1 + (PLAIN - 1) / 1e3, lambda x: torch.stack([x.log2(), x.log10()])),
    "bases 2 and 10": (PLAIN * 40, lambda x: torch.stack([x.log2(), x.log10(), x.exp2()])),
    "limits": (LIMITS, lambda x: torch.stack([x.log2(), x.log10(), x.exp2()])),
}


def compiled(function, x):
    network = to_jax(FunctionNet(lambda _, x: function(x)))
    return jax.jit(lambda x: network.apply({}, {}, x)[0])(x.numpy())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_torch(name):
    x, function = FUNCTIONS[name]
    np.testing.assert_allclose(compiled(function, x), function(x), rtol=1e-5, atol=1e-7)


def test_logarithms_of_whole_powers_are_whole():
    np.testing.assert_array_equal(compiled(torch.log2, TWOS), torch.arange(-30, 61))
    np.testing.assert_array_equal(compiled(torch.log10, TENS), torch.arange(12))
    np.testing.assert_array_equal(compiled(torch.exp2, torch.arange(-30.0, 61)), TWOS)

"""int64 numbers beyond 32 bits, while JAX's x64 mode is off."""

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax

INTEGERS = np.array([1, 2, 70000, 2**31 - 1, -5])
FLOATS = np.array([1.5, 3e9, 1e10, -7.0], np.float32)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


CASES = {
    "product": (lambda x: x * x % 1000003, INTEGERS),
    "hash": (lambda x: ((x * 73856093) ^ (x * 19349663)) % 1024, INTEGERS),
    "power": (lambda x: x**3 % 1009, INTEGERS),
    "square": (lambda x: x.square() % 7, INTEGERS),
    "sum of products": (lambda x: (x[:, None] * x).sum() % 13, INTEGERS),
    "running product": (lambda x: (x % 1000 + 1).cumprod(0) % 97, INTEGERS.repeat(3)),
    "product of all": (lambda x: (x % 1000 + 1).prod() % 97, INTEGERS.repeat(3)),
    "shift": (lambda x: (x << 20) % 1009, INTEGERS),
    "dot": (lambda x: (x[None] @ x[:, None]) % 13, INTEGERS),
    "cast": (lambda x: x.long() % 1000, FLOATS),
    "floor": (lambda x: (x * 1e3).floor().long() % 97, FLOATS),
    "clamped": (lambda x: (x * x).clamp(0, 50), INTEGERS),
    "compared": (lambda x: (x * x > 10**6).float(), INTEGERS),
    "kept": (lambda x: x * x, INTEGERS),
    "index": (lambda x: torch.arange(50)[(x * 2654435) % 50], INTEGERS),
    "branches": (lambda x: torch.where(x * x > 9, x * x, -x) % 1001, INTEGERS),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name):
    function, x = CASES[name]
    model = to_jax(Function(function))
    narrow = x.astype(np.int32) if x.dtype == np.int64 else x
    got = jax.jit(lambda x: model.apply(model.params, model.buffers, x)[0])(narrow)
    np.testing.assert_array_equal(got, function(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize(
    "function",
    [lambda x: x.clamp(0, 1000) * 640 + 3, lambda x: x % 64 * 4 + x % 4, lambda x: x + 1],
    ids=["clamped", "remainder", "sum"],
)
def test_numbers_within_32_bits_stay_there(function):
    model = to_jax(Function(function))
    shapes = jax.eval_shape(
        lambda x: model.apply(model.params, model.buffers, x)[0], INTEGERS.astype(np.int32)
    )
    assert shapes.dtype == np.int32


def test_a_number_that_32_bits_do_not_hold_is_refused():
    model = to_jax(Function(lambda x: x * 2654435761 % 4096))
    with pytest.raises(RuntimeError, match="beyond int32"):
        model.apply(model.params, model.buffers, INTEGERS.astype(np.int32))

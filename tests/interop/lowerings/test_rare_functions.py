"""Functions that few modules use, each against torch."""

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _caught(x):
    try:
        return x[torch.tensor([9])]
    except IndexError:
        return x * 2


def _segments(reduce):
    return lambda x: torch.segment_reduce(x, reduce, lengths=torch.tensor([3, 0, 3]))


CASES = {
    "bool << number": lambda x: (x > 0) << 2,
    "bool >> number": lambda x: (x > 0) >> 1,
    "number << bool": lambda x: torch.tensor(2) << (x > 0),
    "int32 << bool": lambda x: x.int() << (x > 0),
    "nonzero of whole numbers": lambda x: x[(x > 0).any(1).long().nonzero().squeeze(1)].sum(),
    "index by a mask of uint8": lambda x: x[(x[:, 0] > 0).to(torch.uint8) == 1].mean(),
    "negative index_fill": lambda x: x.index_fill(0, torch.tensor([-1, 0]), 3.0),
    "an index outside, caught": _caught,
    **{f"segment_reduce {r}": _segments(r) for r in ("sum", "mean", "max", "min", "prod")},
    "segment_reduce by offsets": lambda x: torch.segment_reduce(
        x[:, 0], "sum", offsets=torch.tensor([0, 2, 6])
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name):
    module = Function(CASES[name])
    got = jax.jit(lambda x: to_jax(module).apply({}, {}, x)[0])(X)
    expected = module(torch.from_numpy(X))
    np.testing.assert_allclose(got, expected, rtol=1e-5)

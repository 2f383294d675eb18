"""Reads and writes at places that only the program knows, against torch."""

import jax
import numpy as np
import pytest
import torch

from jaxsr.interop import UnsupportedTorchError, to_jax
from tests.interop.core.function_net import FunctionNet

X = torch.arange(24.0).reshape(2, 3, 4)
NUMBER, PLACES, ROW = torch.tensor(1), torch.tensor([2, 0]), torch.tensor([True, False, True])
COLUMNS = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])


def written(place, value):
    def write(x, i, v, row, columns):
        y = x.clone()
        y[place(i, v, row, columns)] = value
        return y

    return write


def last_of_many(x, i, v, row, columns):
    y = torch.zeros(200)
    y[(-i).to(torch.int8)] = x[(-i).to(torch.int8), 0, 0]
    return y


CASES = {
    "from the end, in eight bits": last_of_many,
    "leading axes of one": written(lambda i, v, r, c: i, torch.ones(1, 1, 3, 4)),
    "number": written(lambda i, v, r, c: (i, i), 3.0),
    "number and places": written(lambda i, v, r, c: (i, v), torch.ones(2, 4)),
    "number, axis, places": written(lambda i, v, r, c: (i, slice(None), v), torch.ones(3, 2)),
    "number between": written(lambda i, v, r, c: (..., i, v), 7.0),
    "read between": lambda x, i, v, r, c: x[:, i, v] + x[i, v, None].sum(),
    "places before": lambda x, i, v, r, c: x[torch.tensor([0, 1]), i, :2],
    "mask behind": written(lambda i, v, r, c: (slice(None), r), 5.0),
    "a row each": written(lambda i, v, r, c: (slice(None), r), torch.arange(8.0).reshape(2, 4)),
    "one each": written(lambda i, v, r, c: (slice(None), r), torch.arange(4.0)),
    "one for all": written(lambda i, v, r, c: (slice(None), r), torch.ones(2, 1, 1)),
    "mask of two axes": written(lambda i, v, r, c: (slice(None), c), torch.arange(7.0)),
    "number and mask": written(lambda i, v, r, c: (i, r), torch.arange(8.0).reshape(2, 4)),
    "mask and number": written(lambda i, v, r, c: (slice(None), r, i), 9.0),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name):
    network = to_jax(FunctionNet(lambda _, x: CASES[name](*x)))
    arguments = (X, NUMBER, PLACES, ROW, COLUMNS)
    got = jax.jit(lambda *a: network.apply({}, {}, a)[0])(*(a.numpy() for a in arguments))
    np.testing.assert_array_equal(got, CASES[name](*arguments))


def test_true_is_an_axis_that_only_torch_places():
    with pytest.raises(UnsupportedTorchError, match="is needed in Python"):
        to_jax(FunctionNet(lambda _, x: x[0][True, x[1]])).apply(
            {}, {}, (X.numpy(), NUMBER.numpy())
        )

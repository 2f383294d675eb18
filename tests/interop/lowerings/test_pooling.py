"""Pooling with large windows, against torch."""

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jaxsr.interop import to_jax

NUMBERS = np.random.default_rng(0)


class Pool(nn.Module):
    def __init__(self, ndim, *options):
        super().__init__()
        self.pool, self.options = getattr(F, f"max_pool{ndim}d"), options

    def forward(self, x):
        return self.pool(x, *self.options, return_indices=True)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 3, 41), (41,)),
        ((2, 3, 50), (37, 3, 11, 1, True)),
        ((2, 3, 17, 13), ((17, 13),)),
        ((2, 3, 16, 20), (13, 1, 6)),
        ((2, 2, 30, 20), ((7, 5), (2, 3), (3, 2), (2, 3), True)),
        ((1, 2, 7, 8, 9), ((5, 4, 3), 2, (2, 1, 0))),
    ],
)
def test_large_windows(shape, options):
    net = Pool(len(shape) - 2, *options)
    model = to_jax(net)
    x = NUMBERS.integers(-3, 3, shape).astype(np.float32)  # many equal maxima
    x[NUMBERS.random(shape) < 0.3] = -np.inf
    values, places = model.apply(model.params, model.buffers, x)[0]
    expected = net(torch.from_numpy(x))
    assert np.array_equal(values, expected[0]) and np.array_equal(places, expected[1])

    x = NUMBERS.normal(size=shape).astype(np.float32)
    weights = NUMBERS.normal(size=values.shape).astype(np.float32)
    leaf = torch.from_numpy(x).requires_grad_()
    (net(leaf)[0] * torch.from_numpy(weights)).sum().backward()

    def loss(x):
        return (model.apply(model.params, model.buffers, x)[0][0] * weights).sum()

    assert leaf.grad is not None
    np.testing.assert_allclose(jax.grad(loss)(x), leaf.grad, rtol=1e-5, atol=1e-6)


def test_a_window_of_the_whole_image_is_few_operations():
    model = to_jax(Pool(2, (56, 56)))
    x = np.zeros((1, 4, 56, 56), np.float32)
    program = jax.make_jaxpr(lambda x: model.apply(model.params, model.buffers, x)[0])(x)
    assert len(str(program).splitlines()) < 1000  # a maximum a tap had 50,000


def test_not_a_number_wins_in_a_large_window():
    net = Pool(2, (9, 8))
    x = NUMBERS.normal(size=(1, 2, 9, 8)).astype(np.float32)
    x[0, 0, 5, 3] = np.nan
    values, places = to_jax(net).apply({}, {}, x)[0]
    expected = net(torch.from_numpy(x))
    assert np.array_equal(values, expected[0], equal_nan=True)
    assert np.array_equal(places, expected[1])

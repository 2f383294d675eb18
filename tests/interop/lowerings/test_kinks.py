"""Gradients where slopes jump or end, against torch: whole numbers, equal elements, poles.

All of `torch`'s database rounded to whole numbers is `benchmarks.opinfo --dtype "float32 rounded"`.
"""

import math

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.interop import to_jax
from tests.oracles.conformance.registry import TORCH


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        out = self.function(*tensors)
        return out if isinstance(out, tuple) else (out,)


SCORES = [[0.0, 1.0, 2.0, 3.0, 1.0], [1.0, 0.0, 1.0, 2.0, -3.0]]
CASES = {
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, torch.tensor([2, 0])), SCORES),
    "multi_margin_loss of one sample": (
        lambda x: F.multi_margin_loss(x, torch.tensor(2), reduction="none"),
        SCORES[0],
    ),
    "multi_margin_loss of squares, weighted, summed": (
        lambda x: F.multi_margin_loss(
            x, torch.tensor([2, 0]), p=2, weight=torch.tensor([1.0, 2, 3, 4, 5]), reduction="sum"
        ),
        SCORES,
    ),
    "multilabel_margin_loss": (
        lambda x: F.multilabel_margin_loss(
            x, torch.tensor([[1, 3, -1, 0, 0], [-1, 2, 0, 0, 0]]), reduction="none"
        ),
        SCORES,
    ),
    "std of equal elements": (lambda x: (x.std(1), *torch.std_mean(x)), [[2.0, 2.0], [1.0, 3.0]]),
    "std of one element": (lambda x: x.std(1, correction=0), [[2.0], [1.0]]),
    "embedding_bag": (
        lambda w: F.embedding_bag(torch.tensor([[2, 0, 1], [1, 1, 0]]), w, mode="max"),
        [[1.0, 2.0], [1.0, 3.0], [1.0, 3.0]],
    ),
    "cdist": (
        lambda x: tuple(torch.cdist(x, x.detach(), p) for p in (1.0, 2.0, 3.0, math.inf)),
        [[0.0, 0.0], [1.0, 1.0], [0.0, 2.0]],
    ),
    "cdist by a product": (
        lambda x: torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist"),
        [[0.0, 0.0], [1.0, 1.0], [0.0, 2.0]],
    ),
    "pdist": (lambda x: F.pdist(x, math.inf), [[0.0, 0.0], [1.0, 1.0], [0.0, 2.0]]),
    "logit": (lambda x: (x.logit(), x.logit(eps=0.25)), [0.0, 0.25, 0.75, 1.0]),
    "entr": (torch.special.entr, [0.0, 1.0, 2.0, -1.0]),
    "ndtri": (torch.special.ndtri, [0.0, 0.5, 1.0]),
    "lgamma": (torch.lgamma, [0.0, 1.0, 2.5]),
    "mvlgamma": (lambda x: torch.mvlgamma(x, 3), [3.0, 1.0, 0.5]),
    "power of zero": (lambda x: torch.pow(0.0, x), [-1.0, 0.0, 2.0]),
    "softplus where its exponential overflows": (
        lambda x: (F.softplus(x), F.softplus(x, 2, 5)),
        [-100.0, 2.0, 2.5, 20.0, 21.0, 45.0, 89.0, 1e30, math.inf, -math.inf],
    ),
    "mish": (F.mish, [-100.0, 0.0, 20.0, 89.0, 1e30]),
    "hypot": (lambda x: torch.hypot(x, x.detach() * 2), [0.0, 1.0, -2.0]),
    "angle": (lambda x: torch.complex(x, x.detach() * 2).angle(), [0.0, 1.0, -2.0]),
    "absolute value of NaN": (lambda x: (x.abs(), F.l1_loss(x, x.detach() * 2)), [math.nan, 1.0]),
    "polar": (
        lambda x: torch.view_as_real(torch.polar(x, x.detach() + 1)), [0.0, 1.0, -2.0],
    ),
}  # fmt: skip
if TORCH >= (2, 13):  # before, torch has no such derivative
    CASES["nextafter"] = (lambda x: torch.nextafter(x, torch.zeros(3)), [0.0, 1.0, -2.0])


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_slopes_are_torch_s(name):
    function, values = CASES[name]
    x = torch.tensor(values, requires_grad=True)
    expected = Function(function)(x)
    cotangents = [torch.arange(1, out.numel() + 1.0).reshape(out.shape) for out in expected]
    (gradient,) = torch.autograd.grad(expected, x, cotangents)
    module = to_jax(Function(function))
    outputs, vjp = jax.vjp(lambda x: module.apply({}, {}, x)[0], np.asarray(values, np.float32))
    for out, other in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(out, other.detach(), rtol=1e-5, atol=1e-6)
    (actual,) = vjp(tuple(np.asarray(c) for c in cotangents))
    np.testing.assert_allclose(actual, gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(2)
@pytest.mark.parametrize("steps", [1, 7, 13, 29, 997])
def test_whole_numbers_between_tensors_are_rounded_as_torch_rounds(steps):
    def spaced(start, end):
        return torch.linspace(start, end, steps, dtype=torch.int64)

    rng = np.random.default_rng(steps)
    ends = [(-39, 37), (20, -60), (-57, 41), *rng.integers(-10_000_000, 10_000_000, (100, 2))]
    with jax.enable_x64(True):
        module = to_jax(Function(spaced))

        def apply(start, end):
            return module.apply({}, {}, start, end)[0][0]

        # Operation by operation XLA cannot join a product and a sum; in a program it may.
        for function, pairs in ((jax.jit(apply), ends), (apply, ends[:3])):
            for pair in pairs:
                np.testing.assert_array_equal(
                    function(*map(np.asarray, pair)), spaced(*map(torch.tensor, pair))
                )


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(3, 5), (512,), (300, 400)])
def test_identity_matrices_of_any_size(shape, dtype):
    module = to_jax(Function(lambda x: (torch.eye(*shape, dtype=dtype), x)))
    result = module.apply({}, {}, np.ones(1, np.float32))[0][0]
    np.testing.assert_array_equal(result, torch.eye(*shape, dtype=dtype))


@pytest.mark.sample(4)
@pytest.mark.parametrize("bins", [7, 10, 100])
@pytest.mark.parametrize(("low", "high"), [(-10, 0), (-3, 3), (1, 8), (0, 0)])
def test_numbers_on_the_edges_of_bins_are_counted_where_torch_counts_them(bins, low, high):
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(low, high, bins + 1), rng.integers(-11, 11, 50)])
    x = x.astype(np.float32)

    def counts(x):
        return torch.histc(x, bins, low, high)

    module = to_jax(Function(counts))
    actual = jax.jit(lambda x: module.apply({}, {}, x)[0][0])(x)
    np.testing.assert_array_equal(actual, counts(torch.from_numpy(x)))


def test_a_learned_number_over_a_large_array_has_an_exact_gradient():
    """StarReLU's, where terms cancel."""

    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return self.scale * x + self.shift

    rng = np.random.default_rng(0)
    x, cotangent = (rng.standard_normal((2, 64, 32, 32), np.float32) for _ in range(2))
    jm = to_jax(Shift())
    pull = jax.jit(lambda p: jax.vjp(lambda p: jm.apply(p, {}, x)[0], p)[1](cotangent)[0])
    for name, terms in (("shift", cotangent), ("scale", cotangent * x)):
        exact = terms.sum(dtype=np.float64)
        of_torch = abs(float(torch.from_numpy(terms).sum()) - exact)
        step = np.abs(terms).sum(dtype=np.float64) * 2**-24 / 64
        assert of_torch < step
        assert abs(float(pull(jm.params)[name][0]) - exact) < step, name

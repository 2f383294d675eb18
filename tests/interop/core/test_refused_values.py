"""Values that torch refuses: an error where known, else collected or NaN. Never finite."""

import jax
import numpy as np
import pytest
import torch
from torch import distributions
from torch.nn import functional as F

from jaxsr.interop import to_jax
from jaxsr.interop._core.index_bounds import checked_torch, collecting_indices
from jaxsr.interop.errors import RefusedValueError, UnsupportedTorchError
from tests.calls import Call

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
SINGULAR = torch.tensor([[1.0, 0], [0, 0]])
REGULAR = torch.tensor([[2.0, 1], [1, 2]])
NAN = float("nan")


def _whole(*numbers):
    return torch.tensor(numbers)


def _floats(*numbers):
    return torch.tensor(numbers, dtype=torch.float32)


def _written(mask):
    return X.masked_scatter(mask, X[0])


def _put(mask):
    out = X.clone()
    out[:, mask] = X[:, :2]
    return out


def _ctc(lengths):
    scores = X[:, None].log_softmax(-1)
    return F.ctc_loss(scores, _whole([1, 2]), lengths, _whole(2))


def _quantized(zero_point):
    return torch.fake_quantize_per_channel_affine(
        X, torch.full((4,), 0.1), zero_point.int().expand(4), 1, 0, 255
    )


# Function of one tensor, what it refuses, and what it takes. All fail in torch.
DIVISIONS = {
    "//": lambda b: 5 * torch.ones(2, dtype=torch.int64) // b,
    "%": lambda b: _whole(7, 8) % b,
    "fmod": lambda b: torch.fmod(_whole(7, 8), b),
    "trunc": lambda b: torch.div(_whole(7, 8), b, rounding_mode="trunc"),
    "number // tensor": lambda b: 5 // b,
    "in place": lambda b: _whole(7, 8).floor_divide_(b),
}
COUNTED = {
    **{name: (f, _whole(0, 2), _whole(3, -2)) for name, f in DIVISIONS.items()},
    "multinomial": (lambda p: torch.multinomial(p, 1), _floats(-1, 1), _floats(0, 1)),
    "multinomial of zeros": (lambda p: torch.multinomial(p, 1), _floats(0, 0), _floats(0, 1)),
    "multinomial of NaN": (lambda p: torch.multinomial(p, 1), _floats(NAN, 1), _floats(1, 0)),
    "bernoulli of integers": (
        lambda p: torch.zeros(2, dtype=torch.int32).bernoulli_(p), _floats(1.5, 0), _floats(1, 0),
    ),
    "row of a table": (lambda i: X[i[0]], _whole(7), _whole(-5)),
    "put": (lambda i: X.put(i, _floats(1)), _whole(20), _whole(-20)),
    "unpooling": (lambda i: F.max_unpool1d(X[:1, :2], i, [2]), _whole([9, 0]), _whole([3, 0])),
    "multilabel": (
        lambda i: F.multilabel_margin_loss(X[0], i), _whole(4, -1, 0, 0), _whole(3, -1, 0, 0),
    ),
    "masked_scatter": (_written, torch.ones(5, 4) > 0, X[:, :1] > 99),
    "values of a mask": (_put, torch.ones(4) > 0, _whole(1, 0, 0, 1) > 0),
    "bags": (lambda o: F.embedding_bag(_whole(0, 1), X, o), _whole(0, 9), _whole(0, 1)),
    "repeats": (
        lambda n: torch.repeat_interleave(X[:2], n, 0, output_size=3), _whole(1, 1), _whole(1, 2),
    ),
    "negative repeats": (
        lambda n: torch.repeat_interleave(X[:2], n, 0, output_size=3), _whole(-1, 4), _whole(0, 3),
    ),
    "lu_factor": (lambda a: torch.linalg.lu_factor(a)[0], SINGULAR, REGULAR),
    "assertion": (lambda x: (torch._assert_async((x > 0).all()), x)[1], _floats(-1), _floats(1)),
    "check": (lambda x: (torch._check_tensor_all(x > 0), x)[1], _floats(-1), _floats(1)),
    "rsample": (lambda s: 0 * distributions.Normal(0.0, s).rsample(), _floats(-1), _floats(1)),
    "probability": (
        lambda p: distributions.Bernoulli(p).log_prob(_floats(1)), _floats(1.5), _floats(0.5),
    ),
    "outcome": (
        lambda x: distributions.Categorical(logits=X[0]).log_prob(x), _whole(4), _whole(3),
    ),
    "bounds": (
        lambda x: distributions.Uniform(_floats(1), x).log_prob(_floats(1.5)), _floats(0),
        _floats(2),
    ),
    "covariance": (
        lambda s: distributions.MultivariateNormal(X[0, :2], s).log_prob(X[1, :2]),
        torch.tensor([[1.0, 2], [2, 1]]), REGULAR,
    ),
}  # fmt: skip
NAN_INSTEAD = {
    "binary_cross_entropy": (
        lambda p: F.binary_cross_entropy(p, _floats(1, 0)), _floats(1.5, 0.5), _floats(1, 0.5),
    ),
    "bernoulli": (torch.bernoulli, _floats(1.5, 1), _floats(0, 1)),
    "normal": (lambda s: 0 * torch.normal(0.0, s), _floats(-1, 1), _floats(0, 1)),
    "inv": (torch.linalg.inv, SINGULAR, REGULAR),
    "solve": (lambda a: torch.linalg.solve(a, _floats(1, 1)), SINGULAR, REGULAR),
    "matrix_power": (lambda a: torch.linalg.matrix_power(a, -1), SINGULAR, REGULAR),
    "cholesky": (torch.linalg.cholesky, -REGULAR, REGULAR),
    "cov": (lambda w: torch.cov(X, aweights=w), _floats(-1, 1, 1, 1), _floats(2, 1, 1, 1)),
    "gaussian_nll": (
        lambda v: F.gaussian_nll_loss(X[0, :2], X[1, :2], v), _floats(-1, 1), _floats(2, 1),
    ),
    "histc": (lambda x: torch.histc(x, 3), _floats(float("inf"), 1), _floats(0, 1)),
    "segment_reduce": (
        lambda n: torch.segment_reduce(X[:, 0].contiguous(), "sum", lengths=n), _whole(9, 1),
        _whole(4, 1),
    ),
    "ctc": (_ctc, _whole(9), _whole(5)),
    "fake_quantize": (_quantized, _whole(999), _whole(9)),
}  # fmt: skip


def _programs(function):
    model = to_jax(Call(function))

    def run(x):
        with collecting_indices() as values:
            result, _ = model.apply({}, {}, x, rng=jax.random.key(0))
        return result, values

    return run, jax.jit(run)


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", [*COUNTED, *NAN_INSTEAD])
def test_no_finite_value_stands_for_an_error_of_torch(name, monkeypatch):
    # torch's compiler, once loaded, turns it off for good.
    monkeypatch.setattr(distributions.Distribution, "_validate_args", True)
    function, refused, taken = {**COUNTED, **NAN_INSTEAD}[name]
    eager, compiled = _programs(function)
    expected = function(taken)
    for run in (eager, compiled):
        result, values = run(taken.numpy())
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        assert not any(values.values())
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        function(refused)
    result, values = compiled(refused.numpy())
    if name in NAN_INSTEAD:
        assert np.isnan(result).any() and not np.isfinite(result).all(), result
        return
    assert len(values) and any(values.values())
    with pytest.raises((RefusedValueError, ValueError)):
        eager(refused.numpy())


@pytest.mark.parametrize("name", ["//", "repeats", "bags", "masked_scatter"])
def test_plain_torch_is_held_to_the_same_rule(name):
    function, refused, _ = COUNTED[name]
    with (
        pytest.raises(RefusedValueError, match=r"at .*test_refused_values\.py:\d+"),
        checked_torch(),
    ):
        function(refused)


NUMBERS = {
    "% 0": (lambda x: x.long() % 0, "divides integers by 0"),
    "** -1": (lambda x: x.long() ** -1, "raises integers to a negative power"),
    "uniform_": (lambda x: x.clone().uniform_(1, 0), "from"),
    "exponential_": (lambda x: x.clone().exponential_(-1), "lambda"),
    "cauchy_": (lambda x: x.clone().cauchy_(0, -1), "sigma"),
    "log_normal_": (lambda x: x.clone().log_normal_(0, -1), "std"),
    "bernoulli_": (lambda x: x.clone().bernoulli_(1.5), "0 and 1|0, 1"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_torch_refuses_is_an_error(name):
    function, message = NUMBERS[name]
    with pytest.raises(RuntimeError):
        function(X)
    with pytest.raises((RuntimeError, RefusedValueError), match=message):
        _programs(function)[1](X.numpy())


def test_the_gradient_outside_is_nan_too():
    model = to_jax(Call(lambda p: F.binary_cross_entropy(p, _floats(1, 0))))
    slope = jax.grad(lambda p: model.apply({}, {}, p)[0])(np.array([1.5, 0.5], np.float32))
    assert np.isnan(slope[0]) and slope[1] == 1


def test_code_that_catches_the_error_is_refused():
    def caught(divisor):
        try:
            return 7 // divisor
        except RuntimeError:
            return divisor

    with pytest.raises(UnsupportedTorchError, match=r"divides integers by 0, inside `try` at"):
        _programs(caught)[1](np.array([1, 2]))


def test_floats_may_be_divided_by_zero():
    eager, _ = _programs(lambda x: torch.stack([x // 0, x / 0, x % 0]))
    x = X[0]
    np.testing.assert_array_equal(eager(x.numpy())[0], torch.stack([x // 0, x / 0, x % 0]))

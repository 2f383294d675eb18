"""torch's own database of operators and samples (OpInfo), as `benchmarks.opinfo` runs it."""

import pytest

pytest.importorskip("expecttest", reason="torch's operator database imports expecttest")

from tests.oracles.operators.row import run_pair
from tests.oracles.operators.samples import operators, pairs

pytestmark = pytest.mark.filterwarnings("ignore")  # of samples: layouts in beta state

# One of each way of judging: values, gauge-invariant forms, ties, draws, memory, refusals.
QUICK = {
    ("fmod", "bfloat16"): "right",
    ("linalg.eigvalsh", "float32"): "right",
    ("linalg.eig", "float32"): "right",
    ("kthvalue", "int64"): "right",
    ("empty_like", "bool"): "right",
    ("as_strided.partial_views", "int64"): "partly refused",
    ("nn.functional.dropout", "float32"): "right",
    ("sparse.sampled_addmm", "float32"): "refused",
    ("normal", "float32"): "right",
    ("logical_xor", "bool"): "right",
    ("hypot", "float32 slopes"): "right",
    ("nn.functional.logsigmoid", "float32 slopes"): "right",
    ("scatter_reduce.prod", "float32 slopes"): "right",
    ("pow", "float32 in place"): "right",
    ("square", "float32 in place"): "right",
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("pair", QUICK, ids="-".join)
def test_operators_are_judged(pair):
    row = run_pair(*pair)
    assert row["status"] == QUICK[pair], row
    counted = row["right"] + row["refused"] + row["wrong"] + row["torch_fails"]
    assert counted == row["samples"] > 0


def third_call(operator, other):
    """The operator, but for JAX's calls: torch runs it twice before JAX does."""
    calls = 0

    def alternating(*args, **kwargs):
        nonlocal calls
        calls += 1
        result = operator(*args, **kwargs)
        return other(result) if calls % 3 == 0 else result

    return alternating


def test_a_wrong_lowering_is_found(monkeypatch):
    op = operators()["sinh"]
    monkeypatch.setattr(op, "op", third_call(op.op, lambda result: result * 1.001))
    assert run_pair("sinh", "float32")["status"] == "wrong"


def test_a_sample_that_needs_float64_runs_in_x64_mode():
    row = run_pair("softmax.with_dtype", "int64")
    assert (row["status"], row["x64"]) == ("right", row["samples"]), row


def test_float64_that_has_been_float32_is_found(monkeypatch):
    op = operators()["softmax.with_dtype"]
    # A refusal is JAX's call too; torch runs twice before each.
    monkeypatch.setattr(op, "op", third_call(op.op, lambda result: result.float().double()))
    assert run_pair("softmax.with_dtype", "int64")["status"] == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize("pair", pairs(), ids="-".join)
def test_operator_is_right_or_refused(pair):
    row = run_pair(*pair)
    assert row["status"] != "wrong", row["reasons"]

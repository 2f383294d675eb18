"""torch's own database of operators and samples (OpInfo), by `benchmarks.opinfo`."""

import pytest

pytest.importorskip("expecttest", reason="torch's operator database imports expecttest")

from benchmarks._operator_samples import operators, pairs
from benchmarks.opinfo import run_pair

pytestmark = pytest.mark.filterwarnings("ignore")  # of samples: layouts in beta state

# One of each way of judging: values, gauge-invariant forms, ties, draws, memory, refusals.
QUICK = {
    ("fmod", "bfloat16"): "right",
    ("linalg.eigvalsh", "float32"): "right",
    ("linalg.eig", "float32"): "right",
    ("kthvalue", "int64"): "right",
    ("empty_like", "bool"): "partly refused",
    ("nn.functional.dropout", "float32"): "right",
    ("sparse.sampled_addmm", "float32"): "refused",
    ("normal", "float32"): "right",
    ("logical_xor", "bool"): "right",
}


@pytest.mark.parametrize("pair", QUICK, ids="-".join)
def test_operators_are_judged(pair):
    row = run_pair(*pair)
    assert row["status"] == QUICK[pair], row
    counted = row["right"] + row["refused"] + row["wrong"] + row["torch_fails"]
    assert counted == row["samples"] > 0


def test_a_wrong_lowering_is_found(monkeypatch):
    op = operators()["sinh"]
    calls = 0

    def alternating(x):
        """As torch runs it twice before JAX does, the third call is JAX's."""
        nonlocal calls
        calls += 1
        return x.sinh() * (1.001 if calls % 3 == 0 else 1)

    monkeypatch.setattr(op, "op", alternating)
    assert run_pair("sinh", "float32")["status"] == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize("pair", pairs(), ids="-".join)
def test_operator_is_right_or_refused(pair):
    row = run_pair(*pair)
    assert row["status"] != "wrong", row["reasons"]

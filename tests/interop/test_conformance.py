"""Every conformance case against plain torch on the CPU: outputs, gradients, buffers."""

import pytest

from jaxsr.interop import UnsupportedTorchError
from tests.oracles.conformance.every import CASES
from tests.oracles.conformance.registry import RTOL, differences, run_jaxsr, run_torch

SAME = [c for c in CASES.values() if c.refused is None]
REFUSED = [c for c in CASES.values() if c.refused is not None]


def check(case, *, rtol, bf16=False):
    """Whether the program calls kernels of other libraries."""
    reference = run_torch(case, bf16=bf16)
    result = run_jaxsr(case, bf16=bf16)
    assert not differences(result, reference, rtol)
    return bool(result.kernels)


@pytest.mark.sample(24)
@pytest.mark.parametrize("case", SAME, ids=lambda c: c.name)
def test_matches_torch(case):
    check(case, rtol=RTOL["float32"] * case.tolerance)


# By default tests/interop/lowerings hold these cases' operators to both.
@pytest.mark.slow
@pytest.mark.parametrize("case", SAME, ids=lambda c: c.name)
def test_matches_torch_by_xlas_kernels_alone(case, monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
    assert not check(case, rtol=RTOL["float32"] * case.tolerance)


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c.name)
def test_refuses_with_a_way_out(case):
    with pytest.raises(UnsupportedTorchError) as error:
        run_jaxsr(case, jit=False)
    assert case.refused in str(error.value)


@pytest.mark.sample(8)
@pytest.mark.parametrize("case", [c for c in SAME if c.bfloat16], ids=lambda c: c.name)
def test_matches_torch_in_bfloat16(case, monkeypatch):
    if check(case, rtol=RTOL["bfloat16"], bf16=True):
        monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
        assert not check(case, rtol=RTOL["bfloat16"], bf16=True)


def test_suite_is_broad():
    assert len(CASES) >= 150
    assert run_jaxsr(CASES["Conv1d"]).kernels

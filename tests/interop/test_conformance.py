"""Every conformance case against plain torch on the CPU: outputs, gradients, buffers."""

import pytest

from jaxsr.interop import UnsupportedTorchError
from tests.interop.conformance import functions, layers, modules, programs  # noqa: F401
from tests.interop.conformance.registry import CASES, RTOL, differences, run_jaxsr, run_torch

SAME = [c for c in CASES.values() if c.refused is None]
REFUSED = [c for c in CASES.values() if c.refused is not None]


def check(case, monkeypatch, *, rtol, bf16=False):
    reference = run_torch(case, bf16=bf16)
    result = run_jaxsr(case, bf16=bf16)
    assert not differences(result, reference, rtol)
    if not result.kernels:
        return
    # A program that calls kernels of other libraries, once more by XLA's alone.
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
    by_xla = run_jaxsr(case, bf16=bf16)
    assert not by_xla.kernels
    assert not differences(by_xla, reference, rtol)


@pytest.mark.parametrize("case", SAME, ids=lambda c: c.name)
def test_matches_torch(case, monkeypatch):
    check(case, monkeypatch, rtol=RTOL["float32"] * case.tolerance)


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c.name)
def test_refuses_with_a_way_out(case):
    with pytest.raises(UnsupportedTorchError) as error:
        run_jaxsr(case, jit=False)
    assert case.refused in str(error.value)


@pytest.mark.parametrize("case", [c for c in SAME if c.bfloat16], ids=lambda c: c.name)
def test_matches_torch_in_bfloat16(case, monkeypatch):
    check(case, monkeypatch, rtol=RTOL["bfloat16"], bf16=True)


def test_suite_is_broad():
    assert len(CASES) >= 150
    assert run_jaxsr(CASES["Conv1d"]).kernels

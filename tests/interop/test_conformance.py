"""Every conformance case against plain torch on the CPU: outputs, gradients, buffers."""

import pytest

from jaxsr.interop import UnsupportedTorchError
from tests.interop.conformance import functions, layers, modules, programs  # noqa: F401
from tests.interop.conformance.registry import CASES, RTOL, differences, run_jaxsr, run_torch

SAME = [c for c in CASES.values() if c.refused is None]
REFUSED = [c for c in CASES.values() if c.refused is not None]


@pytest.mark.parametrize("case", SAME, ids=lambda c: c.name)
def test_matches_torch(case):
    found = differences(run_jaxsr(case), run_torch(case), RTOL["float32"] * case.tolerance)
    assert not found, found


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c.name)
def test_refuses_with_a_way_out(case):
    with pytest.raises(UnsupportedTorchError) as error:
        run_jaxsr(case, jit=False)
    assert case.refused in str(error.value)


@pytest.mark.parametrize("case", [c for c in SAME if c.bfloat16], ids=lambda c: c.name)
def test_matches_torch_in_bfloat16(case):
    found = differences(run_jaxsr(case, bf16=True), run_torch(case, bf16=True), RTOL["bfloat16"])
    assert not found, found


def test_suite_is_broad():
    assert len(CASES) >= 150

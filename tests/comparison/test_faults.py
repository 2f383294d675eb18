"""Faults are found where they were planted, and none is found where there is none."""

import numpy as np
import pytest
import torch

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.compare_engines import compare_engines
from jaxsr.comparison.compare_traces import compare_traces
from jaxsr.comparison.recorded_trace import make_trace, open_backend
from jaxsr.comparison.summary import headline
from tests.comparison.faults import FAMILIES, FAULTS, JAX, TORCH, make_workload

BFLOAT16 = BackendSpec(engine="jax", platform="cpu", dtype="bfloat16")

# The others run on JAX when slow tests are asked for: compiling takes most of the time.
ON_JAX = ("slope off by 1e-4",)


def assert_found(comparison, fault):
    assert not comparison.agree
    first = comparison.findings[0].row
    assert (first.call.path, first.step) == (fault.path, fault.step), headline(comparison)
    assert first.call.operation in fault.operations, headline(comparison)
    assert fault.path in headline(comparison)


@pytest.mark.sample(9)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_found_between_two_torch_runs(subject, fault):
    comparison, *_ = compare_engines(
        subject(fault.family), TORCH, TORCH, other=fault.faulty(subject(fault.family))
    )
    assert_found(comparison, fault)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[] if fault.name in ON_JAX else [pytest.mark.slow])
        for fault in FAULTS
    ],
)
def test_found_between_torch_and_jax(subject, fault):
    comparison, *_ = compare_engines(
        subject(fault.family), TORCH, JAX, other=fault.faulty(subject(fault.family))
    )
    assert_found(comparison, fault)


@pytest.mark.slow
def test_found_from_jax_to_torch(subject):
    fault = next(f for f in FAULTS if f.name == "wrong eps of RMSNorm")
    comparison, *_ = compare_engines(
        subject("llama"), JAX, TORCH, other=fault.faulty(subject("llama"))
    )
    assert_found(comparison, fault)


def test_default_precision_of_a_tpu_is_found_at_the_first_convolution(subject):
    narrow = BackendSpec(engine="jax", platform="cpu", precision="bfloat16")
    comparison, *_ = compare_engines(subject("span"), TORCH, narrow)
    assert not comparison.agree
    assert {f.row.call.operation for f in comparison.findings} == {"conv2d"}
    convolutions = [r for r in comparison.rows if r.call.operation == "conv2d"]
    assert [f.row.number for f in comparison.findings] == [r.number for r in convolutions]


# The longest are slow tests; the planted faults run on them all.
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("llama", "mshnet") else ())
        for name in FAMILIES
    ],
)
def test_nothing_is_found_between_torch_and_jax(subject, family):
    comparison, *_ = compare_engines(subject(family), TORCH, JAX)
    assert comparison.findings == [] and comparison.agree, headline(comparison)
    assert comparison.checked == comparison.checked_locally == len(comparison.rows) > 25
    assert not comparison.outputs_above and comparison.weights == []
    # The same holds for what would be stored of the two runs.
    assert all(row.total is not None for row in comparison.rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ["span", *(pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES if f != "span")],
)
def test_nothing_is_found_between_float32_and_bfloat16(subject, family):
    comparison, *_ = compare_engines(subject(family), TORCH, BFLOAT16)
    assert comparison.findings == [] and comparison.agree, headline(comparison)


def stored(subject, fault=None, sides=(TORCH, TORCH)):
    runs = (subject, subject if fault is None else fault.faulty(subject))
    first = make_trace(runs[0], open_backend(runs[0], sides[0]))
    second = make_trace(runs[1], open_backend(runs[1], sides[1]))
    return compare_traces(first, second)


# What fades within rounding a few operations later is beyond stored traces: live engines are for
# that.
FADING = ("wrong eps of BatchNorm",)


@pytest.mark.sample(9)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_found_in_stored_traces(subject, fault):
    comparison = stored(subject(fault.family), fault)
    assert not comparison.local_checked and comparison.checked_locally == 0
    if fault.name in FADING:
        assert comparison.agree
        assert max(row.total.relative for row in comparison.rows if row.total) > 1e-5
    else:
        assert_found(comparison, fault)


@pytest.mark.parametrize("family", ["span", pytest.param("llama", marks=pytest.mark.slow)])
def test_nothing_is_found_in_stored_traces(subject, family):
    comparison = stored(subject(family), sides=(TORCH, JAX))
    assert comparison.findings == [] and comparison.agree


def test_a_constant_that_is_no_buffer(subject):
    """A tensor kept in an attribute is the second side's own, and so is its fault."""
    from dataclasses import replace

    from torch import nn

    class Table(nn.Module):
        def __init__(self, shift):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.table = torch.arange(4.0) + shift

        def forward(self, x):
            return self.layer(x) + self.table

    image = np.ones((2, 4), np.float32)
    networks = []
    for shift in (0.0, 1.0):
        torch.manual_seed(0)
        networks.append(Table(shift).requires_grad_(False).eval())
    first = replace(make_workload("span"), network=networks[0], inputs=((image,), {}))
    for side in (TORCH, JAX):
        comparison, *_ = compare_engines(
            first, TORCH, side, other=replace(first, network=networks[1])
        )
        assert comparison.findings[0].row.call.operation == "add"


def test_float64_says_which_side_is_wrong(subject):
    fault = next(f for f in FAULTS if f.name == "scale off by 1e-3")
    comparison, *_ = compare_engines(
        subject("mshnet"), TORCH, TORCH, other=fault.faulty(subject("mshnet")), reference=True
    )
    row = comparison.findings[0].row
    assert row.local is not None and row.exact is not None
    assert row.local.exact is not None
    first, second = row.local.exact
    assert first is not None and second is not None
    assert first < 1e-6 and 5e-4 < second < 2e-3  # a scale off by 1e-3
    assert row.exact[0] < 1e-5 < row.exact[1]


def test_local_errors_of_one_module_only(subject):
    comparison, *_ = compare_engines(subject("span"), TORCH, TORCH, within="blocks.1")
    looked = {row.call.path for row in comparison.rows if row.local is not None}
    assert looked and all(path.startswith("blocks.1") for path in looked)
    with pytest.raises(ValueError, match="is not a module of Span; there are conv_1"):
        compare_engines(subject("span"), TORCH, TORCH, within="stem")

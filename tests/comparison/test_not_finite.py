"""NaN and infinity are findings of their own, also where both sides have them; places of errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.comparison.check_module import check
from jaxsr.comparison.compare_engines import compare_engines
from jaxsr.comparison.compare_traces import compare_traces, sampled_error
from jaxsr.comparison.metrics import error_metrics, worst_of
from jaxsr.comparison.recorded_trace import make_trace, open_backend
from jaxsr.comparison.statistics import describe, sample_places
from jaxsr.comparison.summary import headline, ill_conditioned, notes
from jaxsr.comparison.tokens import compare_logits, in_words
from jaxsr.comparison.trace_file import load_trace, save_trace
from tests.comparison.faults import JAX, TORCH, single


class Net(nn.Module):
    """`square` overflows float32 for inputs of 1e20, and `log` has NaN below zero."""

    def __init__(self, kind="log"):
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 3), kind

    def forward(self, x):
        y = self.layer(x)
        if self.kind == "square":
            return (y * 1e30).square().clamp(max=1.0)
        if self.kind == "mask":
            return y.masked_fill(y > 0, float("-inf")).softmax(-1)
        return torch.log(y) + 1


def workload(kind="log", network=None):
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    return single(Net(kind) if network is None else network, x)


@pytest.mark.parametrize("second", [TORCH, JAX], ids=["torch", "jax"])
def test_nan_on_both_sides_is_the_finding(second):
    comparison, *_ = compare_engines(workload(), TORCH, second)
    assert not comparison.agree
    (finding,) = comparison.findings  # not the sum that inherits it
    with torch.no_grad():
        layer = workload().network.get_submodule("layer")
        y = layer(torch.from_numpy(workload().inputs[0][0]))
    count = int((y < 0).sum())
    assert (finding.kind, finding.row.call.operation) == ("nan", "log")
    assert finding.text == f"{count} of 6 values are NaN on both sides, from operands without any"
    line = next(
        number
        for number, text in enumerate(open(__file__), 1)  # noqa: SIM115
        if "return torch.log(y)" in text
    )
    assert f"(test_not_finite.py:{line})" in headline(comparison)
    assert headline(comparison).startswith("NOT A NUMBER: first found among 3 operations")


def test_check_says_that_torch_has_nan_as_well():
    result = check(Net(), torch.full((2, 4), -9.0), gradients=False, train=False, speed_s=0, mesh=1)
    assert result.ok
    assert any("values are NaN in torch as well" in note for note in result.notes)


def test_nan_in_the_weights_is_named(tmp_path):
    subject = workload("mask")
    with torch.no_grad():
        subject.network.get_parameter("layer.bias")[1] = torch.nan
    comparison, *_ = compare_engines(subject, TORCH, JAX)
    assert comparison.findings[0].row.call.operation == "linear"
    assert "from the weights: layer.bias holds NaN" in headline(comparison)
    # The same of stored traces, read back.
    for name, side in (("first", TORCH), ("second", JAX)):
        save_trace(make_trace(subject, open_backend(subject, side)), tmp_path / name)
    stored = compare_traces(load_trace(tmp_path / "first"), load_trace(tmp_path / "second"))
    assert not stored.agree
    assert "from the weights: layer.bias holds NaN" in headline(stored)


def test_masks_of_infinity_are_no_finding_and_overflow_is_noted():
    masked, *_ = compare_engines(workload("mask"), TORCH, JAX)
    assert masked.agree and not any(note.startswith("infinite") for note in notes(masked))
    overflow, *_ = compare_engines(workload("square"), TORCH, JAX)
    assert overflow.agree  # the clamp makes ordinary numbers of them
    (note,) = [note for note in notes(overflow) if note.startswith("infinite")]
    assert "square" in note and "6 infinite values on both sides" in note


def test_nan_on_one_side():
    first, other = workload("mask"), workload("mask")
    with torch.no_grad():
        other.network.get_parameter("layer.bias")[1] = torch.nan
    comparison, *_ = compare_engines(first, TORCH, TORCH, other=other)
    assert headline(comparison).startswith("NOT A NUMBER: the two sides have different weights")
    assert "2 of 6 values are NaN on the second side alone, from the weights" in headline(
        comparison
    )


class Moved(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.offset = torch.zeros(2, 4)
        self.offset[1, 2] = by

    def forward(self, x):
        return x + self.offset


def test_the_worst_element_is_named():
    first, other = workload(network=Moved(0.0)), workload(network=Moved(0.5))
    comparison, *_ = compare_engines(first, TORCH, JAX, other=other)
    value = float(first.inputs[0][0][1, 2])
    where = f"largest at [1, 2]: {value:.7g} against {np.float32(value + 0.5):.7g}"
    assert headline(comparison).endswith(where)
    row = comparison.rows[0]
    assert row.total is not None and row.worst_element(row.total) == where


@pytest.mark.parametrize(
    ("first", "second", "place", "pair"),
    [
        ([0.0, 1.0, 2.0], [0.0, 1.0, 2.5], 2, (2.0, 2.5)),
        (
            [np.inf, 1.0, 2.0],
            [np.inf, 1.5, 2.0],
            1,
            (1.0, 1.5),
        ),  # counted among all, not the finite
        ([0.0, np.inf, 2.0], [0.0, 1.0, 2.0], 1, (np.inf, 1.0)),
        ([0, 1, 2, 3], [0, 1, 5, 9], 2, (2, 5)),
        ([0.0, 0.0], [0.0, 3.0], 1, (0.0, 3.0)),
    ],
)
def test_the_worst_element_of_two_arrays(first, second, place, pair):
    error = error_metrics(np.array(first), np.array(second))
    assert (error.worst_at, error.worst_pair) == (place, pair)
    equal = error_metrics(np.array(first), np.array(first))
    assert worst_of([equal, error]) == replace(error, result=1)


def test_the_worst_sampled_element_is_counted_in_the_whole_tensor():
    first = np.random.default_rng(0).normal(size=5000)
    place = int(sample_places(5000)[100])
    second = first.copy()
    second[place] += 1.0
    assert sampled_error(describe(first), describe(second)).worst_at == place


def test_results_that_hold_nan_though_no_recorded_operation_does(tmp_path):
    subject = workload()
    trace = make_trace(subject, open_backend(subject, TORCH))
    comparison = compare_traces(replace(trace, records=[]), replace(trace, records=[]))
    assert not comparison.findings and not comparison.agree
    assert headline(comparison).startswith("DIFFER: the results of step 0 hold NaN")


def test_modules_of_torch_have_no_line_of_a_models_code():
    subject = workload(network=nn.Sequential(nn.Linear(4, 3)))
    trace = make_trace(subject, open_backend(subject, TORCH))
    assert [record.call.source for record in trace.records] == [""]


def test_logits_that_are_nan_are_not_equal_tokens():
    lost = np.full((1, 8), np.nan, np.float32)
    (step,) = compare_logits([(lost, lost)], rounding=1e-6)
    assert not step.agree and not step.tie and step.divergence == np.inf
    assert in_words(step, str) == "the logits of step 0 hold NaN: no token can be chosen by them"


def test_suppressed_tokens_are_no_difference():
    a = np.array([[1.0, 2.0, -np.inf, 0.5]], np.float32)
    (step,) = compare_logits([(a, a + np.float32(1e-3))], rounding=1e-6)
    assert step.agree and step.moved == pytest.approx(1e-3, rel=1e-3)
    assert step.divergence == pytest.approx(0, abs=1e-9)


def test_traces_without_the_new_fields_are_read(tmp_path):
    import json

    from jaxsr.interop.sealed_json import seal, unseal

    subject = workload("mask")
    save_trace(make_trace(subject, open_backend(subject, TORCH)), tmp_path)
    path = tmp_path / "trace.json"
    content = unseal(path.read_bytes(), source=path)
    for row in content["operations"]:
        del row["source"]
        for figures in row["figures"]:
            del figures["nan"], figures["infinite"]
    for row in content["weights"].values():
        del row["nan"], row["infinite"]
    path.write_text(seal(json.loads(json.dumps(content))))
    trace = load_trace(tmp_path)
    assert compare_traces(trace, trace).agree


@pytest.mark.parametrize(
    ("operation", "inherited", "ill"),
    [("sub", 1e-7, True), ("sub", 0.0, False), ("transpose", 1e-7, False)],
)
def test_what_makes_no_error_of_its_inputs_is_not_ill_conditioned(operation, inherited, ill):
    """A read of a cache has no operand that was compared; a transpose computes nothing."""
    comparison, *_ = compare_engines(workload("mask"), TORCH, TORCH)
    call = replace(comparison.rows[0].call, operation=operation)
    row = replace(
        comparison.rows[0],
        first=call,
        second=call,
        total=error_metrics(np.array([1.0, 2.0]), np.array([1.0, 2.5])),
        total_threshold=1e-6,
        inherited=inherited,
    )
    assert ill_conditioned(replace(comparison, rows=[row])) == ([row] if ill else [])

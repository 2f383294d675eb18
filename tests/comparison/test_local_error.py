"""Local errors: cancellation is not a fault, a failing operation is one, memory stays bounded."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.compare_engines import compare_engines
from tests.comparison.faults import JAX, TORCH, single

NARROW = BackendSpec(engine="torch", platform="cpu", dtype="bfloat16")


def subject_of(network, *shape):
    image = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return single(network, image)


class Code(nn.Module):
    """Runs a function of tensors."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_cancellation_is_tried_and_no_fault():
    """1000 + x is known to 4 in bfloat16; what is left after subtracting 1000 is rounding."""
    made = subject_of(Code(lambda x: torch.sub(x + 1000, x.abs() + 1000)), 4, 50)
    comparison, *_ = compare_engines(made, TORCH, NARROW)
    row = next(row for row in comparison.rows if row.call.operation == "sub")
    assert row.local is not None
    assert row.local.error.worst > 0.1  # of a result below 5
    assert row.local.tried and not row.local.above
    assert comparison.findings == []


def test_cancellation_does_not_hide_a_fault():
    good = subject_of(Code(lambda x: torch.sub(x + 1000, 1000.0)), 4, 50)
    bad = subject_of(Code(lambda x: torch.sub(x + 1000, 1000.1)), 4, 50)
    comparison, *_ = compare_engines(good, TORCH, TORCH, other=bad)
    (finding,) = comparison.findings
    local = finding.row.local
    assert finding.row.call.operation == "sub" and local is not None and local.tried


def test_an_operation_that_fails_on_equal_inputs_is_named():
    good = subject_of(Code(lambda x: (x @ x.new_ones(6, 5)).sum(1)), 4, 6)
    bad = subject_of(Code(lambda x: (x[:, :3] @ x.new_ones(3, 5)).sum(1)), 4, 6)
    comparison, *_ = compare_engines(good, TORCH, TORCH, other=bad)
    said = [finding.text for finding in comparison.findings]
    assert any("(6, 5) on one side, (3, 5) on the other" in text for text in said)
    assert not comparison.agree


@pytest.mark.parametrize("change", [lambda x: x.add_(1).mul_(2), lambda x: x.clamp_(min=0)])
def test_in_place_operations_get_what_stood_there_before(change):
    made = subject_of(Code(lambda x: change(x * 3) - 1), 3, 5)
    comparison, *_ = compare_engines(made, TORCH, TORCH)
    assert comparison.agree
    assert all(r.local is not None and r.local.error.worst == 0 for r in comparison.rows)


def test_memory_does_not_grow_with_the_number_of_operations():
    layers, size = 40, 1 << 18
    made = subject_of(Code(lambda x: _deep(x, layers)), 1, size)
    tracemalloc.start()
    comparison, first, second = compare_engines(made, TORCH, TORCH)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert comparison.checked == layers and comparison.agree
    # All results together are 40 MiB a side; figures of one take a few copies in float64.
    assert peak < 16 * 4 * size
    assert len(first.records) == len(second.records) == layers


def _deep(x, layers):
    for _ in range(layers):
        x = x * 1.01
    return x


class Forces(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(5, 6), nn.SiLU(), nn.Linear(6, 1))

    def forward(self, x):
        x.requires_grad_()
        energy = self.energy(x).sum()
        return energy, torch.autograd.grad(energy, x)[0]


def test_code_that_takes_gradients_has_its_operations_once():
    torch.manual_seed(0)
    comparison, first, second = compare_engines(subject_of(Forces(), 3, 5), TORCH, JAX)
    assert comparison.agree
    names = [[record.call.operation for record in trace.records] for trace in (first, second)]
    assert names[0] == names[1] == ["linear", "silu", "linear", "sum", "grad"]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.mul(x, x + 1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *grads):
        return grads[0] * (2 * ctx.saved_tensors[0] + 1)


def test_operations_inside_an_autograd_function_get_the_first_sides_values():
    made = subject_of(Code(lambda x: torch.neg(Doubled.apply(torch.sin(x)))), 4, 6)
    comparison, *_ = compare_engines(made, TORCH, JAX)
    assert comparison.agree, comparison.findings
    checked = [row.call.operation for row in comparison.rows if row.local is not None]
    assert checked == ["sin", "add", "mul", "neg"]

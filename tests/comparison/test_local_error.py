"""Local errors: cancellation is not a fault, a failing operation is one, memory stays bounded."""

import operator
import tracemalloc

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.compare_engines import compare_engines
from jaxsr.comparison.compare_traces import compare_traces
from jaxsr.comparison.recorded_trace import make_trace
from jaxsr.comparison.torch_backend import TorchBackend
from tests.comparison.faults import JAX, TORCH, single

NARROW = BackendSpec(engine="torch", platform="cpu", dtype="bfloat16")


def subject_of(network, *shape, **fields):
    image = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return single(network, image, **fields)


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


@torch.library.custom_op("jaxsr_test::double", mutates_args=("x",))
def double(x: torch.Tensor) -> None:
    x.mul_(2)


IN_PLACE = {
    "add_": lambda x: x.add_(1).mul_(2),
    "clamp_": lambda x: x.clamp_(min=0),
    "inplace=True": lambda x: F.silu(F.leaky_relu(x, 0.2, inplace=True), inplace=True),
    "out=": lambda x: torch.exp(x, out=x),
    "-=": lambda x: operator.isub(x, x * 0.5),
    "custom": lambda x: double(x) or x,
}


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=IN_PLACE)
def test_in_place_operations_get_what_stood_there_before(change):
    made = subject_of(Code(lambda x: change(x * 3) - 1), 3, 5)
    comparison, *_ = compare_engines(made, TORCH, TORCH)
    assert comparison.agree
    assert all(r.local is not None and r.local.error.worst == 0 for r in comparison.rows)


@pytest.mark.parametrize("inplace", [False, True])
def test_a_fault_of_an_operation_in_place_is_found(inplace):
    good, bad = (
        subject_of(nn.Sequential(nn.Hardswish(), nn.LeakyReLU(slope, inplace)), 3, 50)
        for slope in (0.2, 0.21)
    )
    comparison, *_ = compare_engines(good, TORCH, TORCH, other=bad)
    (finding,) = comparison.findings
    assert finding.row.call.operation == "leaky_relu" and finding.row.local is not None
    assert finding.row.local.threshold < 1e-5


def test_operations_that_change_a_shape_in_place_have_the_shape_before():
    _, first, _ = compare_engines(
        subject_of(Code(lambda x: (x * 2).t_()), 3, 5), TORCH, TORCH, check=False
    )
    (turned,) = (r.call for r in first.records if r.call.operation == "t_")
    assert turned.operands[0].shape == (3, 5) and turned.results[0].shape == (5, 3)


def test_statistics_that_a_shared_normalisation_writes_twice_are_those_between():
    norm = nn.BatchNorm1d(6)
    made = subject_of(nn.Sequential(norm, nn.Tanh(), norm), 4, 6, train=True)
    comparison, *_ = compare_engines(made, TORCH, TORCH)
    assert comparison.agree and comparison.checked_locally == 5
    assert all(row.local and row.local.error.worst == 0 for row in comparison.rows)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(8, 8, 2, dropout=0.4)

    def forward(self, x):
        return self.layers(x)[0]


DRAWS = {
    "multi_head_attention_forward": Attention(),
    "lstm": Recurrent(),
    "scaled_dot_product_attention": Code(
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)
    ),
    "gumbel_softmax": Code(F.gumbel_softmax),
    "poisson": Code(lambda x: torch.poisson(x.exp())),
    "geometric_": Code(lambda x: (x * 1).geometric_(0.5)),
    "rrelu": Code(lambda x: F.rrelu(x, training=True)),
}


@pytest.mark.parametrize(
    ("operation", "second"), [*((operation, TORCH) for operation in DRAWS), ("poisson", JAX)]
)
def test_operations_that_draw_are_not_run_alone(operation, second):
    made = subject_of(DRAWS[operation], 2, 6, 8, train=True)
    comparison, *traces = compare_engines(made, TORCH, second)
    assert comparison.agree, comparison.findings
    assert {row.call.operation for row in comparison.rows if row.local is None} == {operation}
    for trace in traces:
        assert {r.call.operation for r in trace.records if r.call.draws} == {operation}


@pytest.fixture
def filled_memory():
    """torch fills memory that nothing has written with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def _filled(x):
    whole, parts = torch.empty_like(x).fill_(1), x.new_empty(x.shape)
    parts[:, :2], parts[:, 2:] = x[:, :2], whole[:, 2:]
    return parts * torch.empty(4, 6).normal_()


@pytest.mark.parametrize("second", [TORCH, JAX], ids=["torch", "jax"])
def test_memory_that_nothing_has_written_is_not_compared(filled_memory, second):
    made = subject_of(Code(_filled), 4, 6, train=True)
    comparison, first, other = compare_engines(made, TORCH, second)
    assert any(row.nan[0] for row in comparison.rows)
    assert comparison.agree and compare_traces(first, other).agree
    assert not any(r.total for r in comparison.rows if r.call.operation.startswith("empty"))


def test_a_stored_trace_has_inputs_before_the_call(filled_memory):
    code = Code(lambda x: _filled(F.elu(torch.exp(x, out=x), inplace=True)))
    made = subject_of(code, 4, 6, train=True)
    trace = make_trace(made, TorchBackend(made, TORCH), keep=("*",))
    comparison, *_ = compare_engines(made, trace, TORCH)
    assert comparison.agree and comparison.local_checked
    assert all(row.local.error.worst == 0 for row in comparison.rows if row.local)


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

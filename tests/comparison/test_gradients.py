"""Gradients operation by operation, and stored traces that feed the other side's operations."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr import check
from jaxsr.compare import main
from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.compare_engines import compare_engines
from jaxsr.comparison.jax_backend import JaxBackend
from jaxsr.comparison.recorded_trace import make_trace, open_backend
from jaxsr.comparison.summary import headline
from jaxsr.comparison.torch_backend import TorchBackend
from jaxsr.comparison.trace_file import load_trace, save_trace
from jaxsr.errors import InputError
from jaxsr.interop import lowering
from tests.comparison.faults import FAULTS, JAX, TORCH, single


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(torch.special.i1e(self.norm(self.layer(x)))) * 2


def workload(train=False):
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    return single(Net(), x, train=train)


@pytest.mark.sample(1)
@pytest.mark.parametrize("train", [False, True])
def test_gradients_of_every_operation_agree(train):
    comparison, *_ = compare_engines(workload(train), TORCH, JAX, gradients=True)
    assert comparison.agree, headline(comparison)
    have = {row.call.operation for row in comparison.rows if row.backward is not None}
    assert have >= {"linear", "batch_norm", "special_i1e", "mul"}
    assert comparison.outputs[0].worst < 1e-5  # both sides drop the same values
    names = {one.name for one in comparison.gradients}
    assert names >= {"layer.weight", "norm.bias", "∂ input"}
    assert all(one.ok for one in comparison.gradients)


@pytest.mark.usefixtures("registry_copy")
def test_a_wrong_gradient_is_found_where_forward_agrees():
    @jax.custom_jvp
    def i1e(x):
        return jax.scipy.special.i1e(x)

    i1e.defjvp(lambda x, dx: (i1e(*x), 1.001 * jax.jvp(jax.scipy.special.i1e, x, dx)[1]))
    lowering("aten::special_i1e.default")(i1e)
    assert compare_engines(workload(), TORCH, JAX)[0].agree
    comparison, *_ = compare_engines(workload(), TORCH, JAX, gradients=True)
    (finding,) = comparison.findings
    assert (finding.kind, finding.row.call.operation) == ("backward", "special_i1e")
    assert "backward, gradients differ by" in headline(comparison)
    wrong = {one.name for one in comparison.gradients if not one.ok}
    assert "layer.weight" in wrong and not comparison.agree
    only = replace(comparison, findings=[])
    assert not only.agree and "the gradient of" in headline(only)


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_a_step_in_bfloat16_is_compared_with_float64(engine):
    narrow = BackendSpec(engine=engine, platform="cpu", dtype="bfloat16")
    made = workload(True)
    if engine == "torch":  # has no gradient of i1e in bfloat16
        made = replace(made, network=nn.Sequential(*[*made.network.children()][:2]))
    comparison, *_ = compare_engines(made, TORCH, narrow, gradients=True)
    assert comparison.agree, headline(comparison)
    assert max(one.error for one in comparison.gradients) > 1e-4


def test_a_kernel_that_torch_lacks_in_a_dtype_is_one_line():
    narrow = BackendSpec(engine="torch", platform="cpu", dtype="bfloat16")
    with pytest.raises(InputError, match=r"torch bfloat16 on cpu lacks .* or leave --gradients"):
        compare_engines(workload(), TORCH, narrow, gradients=True)


@pytest.mark.parametrize("kind", [TorchBackend, JaxBackend])
def test_gradients_of_one_operation_are_autograds(kind):
    made = workload()
    side = kind(made, replace(TORCH if kind is TorchBackend else JAX))
    _, records = side.record(made.inputs, step=0, keep=("*",))
    call, tensors = records[0].call, records[0].tensors
    x, weight, bias = (torch.from_numpy(np.array(tensors[f"in{k}"])) for k in range(3))
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    from jaxsr.comparison.torch_runs import cotangent

    loss = (nn.functional.linear(*leaves) * torch.from_numpy(cotangent("0", (8, 6)))).sum()
    wanted = torch.autograd.grad(loss, leaves)
    found = side.gradients(call, [tensors["in0"], None, None])
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("registry_copy")
def test_check_finds_a_fault_in_training_alone():
    import jax.numpy as jnp

    def dropped(x):
        return jnp.exp(-jnp.abs(x)) * 0.5

    class Trains(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            y = self.norm(self.layer(x))
            return torch.special.i0e(y) if self.training else y

    lowering("aten::special_i0e.default")(dropped)
    result = check(Trains(), torch.randn(8, 4), vmap=False, mesh=1, speed_s=0)  # pyright: ignore[reportCallIssue]
    assert result.status == "differs"
    assert result.fault is not None and result.fault.quantity == "special_i0e"


def test_a_stored_trace_feeds_the_other_sides_operations(subject, tmp_path):
    """A fault that fades within rounding, which figures and samples alone do not show."""
    fault = next(f for f in FAULTS if f.name == "wrong eps of BatchNorm")
    made = subject(fault.family)
    save_trace(make_trace(made, open_backend(made, TORCH), keep=("*",)), tmp_path / "first")
    stored = load_trace(tmp_path / "first")
    comparison, *_ = compare_engines(fault.faulty(made), stored, TORCH)
    assert comparison.local_checked and not comparison.agree
    first = comparison.findings[0].row
    assert (first.call.path, first.call.operation) == (fault.path, "batch_norm")
    assert compare_engines(made, stored, JAX, reference=True)[0].agree


@pytest.mark.slow
def test_engines_takes_a_trace_as_its_first_side(tmp_path, capsys):
    trace, out = str(tmp_path / "trace"), tmp_path / "out"
    span = ("--model", "span", "--size", "16")
    side = ("--engine", "torch", "--platform", "cpu", "--keep", "*")
    assert main(["trace", *span, *side, "--out", trace]) == 0
    assert main(["engines", *span, "--a", trace, "--b", "jax", "--out", str(out)]) == 0
    report = json.loads((out / "comparison.json").read_text())
    assert report["agree"] and report["checked_locally"] == report["checked"] == 44
    other = ("--model", "span", "--size", "24")
    assert main(["engines", *other, "--a", trace, "--out", str(out)]) == 2
    assert main(["engines", *span, "--a", trace, "--gradients"]) == 2
    error = capsys.readouterr().err
    assert "different inputs" in error and "a stored trace has neither gradients" in error

"""Who computes an operator, for every operator that the conformance cases run."""

import re

import jax
import pytest
import torch
import torch.nn.functional as F

from jaxsr.interop import explain
from jaxsr.interop._core import dispatch
from tests.oracles.conformance.every import CASES
from tests.oracles.conformance.registry import TORCH, run_jaxsr


@pytest.fixture(scope="module")
def operators():
    """The operators that the dispatcher gets from all conformance cases not refused."""
    recorded = set()
    plain = dispatch.Dispatcher.dispatch

    def record(self, func, args, kwargs):
        recorded.add(func)
        return plain(self, func, args, kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch.Dispatcher, "dispatch", record)
        patch.setattr("tests.oracles.conformance.registry._run_pure", _trace_only)
        for case in CASES.values():
            if case.refused is None:
                run_jaxsr(case)
    return recorded


def _trace_only(apply, params, buffers, arrays, *_):
    jax.make_jaxpr(lambda *inputs: apply(params, buffers, *inputs)[1])(*arrays)


@pytest.mark.slow
def test_every_operator_of_the_conformance_cases(operators):
    assert len(operators) > 250
    if TORCH < (2, 13):  # no decomposition yet; a constant, which torch evaluates
        operators = operators - {torch.ops.aten.hann_window.default}
    for func in operators:
        (operator,) = explain(func).operators
        assert operator.name == str(func)
        assert operator.who != "nothing", func
        who = operator.who
        if who.startswith(("jaxsr", "torchax", "torch decomposition", "torch function")):
            assert re.fullmatch(r"[\w/]+\.py:\d+", operator.source), func


@pytest.mark.slow
def test_every_operator_that_torch_has():
    for name in {n.partition(".")[0] for n in torch._C._dispatch_get_all_op_names()}:
        if name.startswith("aten::"):
            for operator in explain(name).operators:
                assert operator.who and str(operator).startswith("aten."), name


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (
            "aten.amax",
            r"^aten\.amax\.default: jaxsr lowering \(jaxsr/interop/lowerings/extremes\.py",
        ),
        ("aten.amax.default", r"lane folding: a rule of its own \(jaxsr/interop/folding/rules\.py"),
        (torch.ops.aten.relu.default, r"lane folding: one element at a time \("),
        (
            "torch.ops.aten.special_bessel_j0.default",
            r": torchax lowering \(torchax/ops/jaten\.py:\d+\)",
        ),
        ("aten::rand.default", r": jaxsr handler \(jaxsr/interop/lowerings/random\.py:\d+\)"),
        ("aten.permute.default", r": view \(jaxsr/interop/_core/views\.py:\d+\)$"),
        ("aten.as_strided.default", "by strides"),
        ("aten.add_.Tensor", r"the result is that of aten\.add\.Tensor"),
        ("aten.equal.default", "refused where the value depends on an input"),
        ("aten.as_strided_scatter.default", r"refused \(.*refused\.py:\d+\)\n  .*select_scatter"),
        ("aten.geqrf.default", "nothing\n  .*interop.lowering"),
        ("aten.grid_sampler_2d.default", r"jaxsr lowering \(.*resample\.py:\d+\)"),
        ("aten.index_reduce.default", r"jaxsr decomposition \(.*indexing\.py:\d+\)"),
        ("aten.uniform.default", "torchax has a lowering that is not used|torch decomposition"),
        ("torch.nn.functional.one_hot", r"torch function override \(.*torch_functions\.py:\d+\)"),
        (torch.einsum, r"einsum: torch function override \(.*linalg\.py:\d+\)"),
        (F.interpolate, "interpolate: torch\n"),
        ("torch.autograd.grad", r"torch function override \(.*gradients\.py:\d+\)"),
        ("torch.autograd.backward", "refused .*\n  .*take the gradient with torch.autograd.grad"),
    ],
)
def test_answers(target, text):
    assert re.search(text, str(explain(target)))


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("aten.amx", r"'aten\.amx'; similar: .*aten\.amax"),
        ("torch.nn.functional.interpolat", r"similar: torch\.nn\.functional\.interpolate"),
        ("q", r"no torch operator or function 'q'$"),
        (3, "3 is neither an aten operator nor a torch function"),
    ],
)
def test_unknown_names(target, text):
    with pytest.raises(ValueError, match=text):
        explain(target)

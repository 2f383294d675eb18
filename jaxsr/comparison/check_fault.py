"""Where a check differs: the first operation that is wrong by itself, and every submodule's error.

Both come from the comparison of two engines, operation by operation; see `compare_engines`.
"""

import jax
import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.backend_spec import REFEREE, BackendSpec
from jaxsr.comparison.check_modes import TorchRuns, compare_mode
from jaxsr.comparison.check_result import CheckRow, Fault, ModuleError
from jaxsr.comparison.compare_engines import compare_engines
from jaxsr.comparison.jax_backend import JaxBackend
from jaxsr.comparison.jax_runs import JaxRuns
from jaxsr.comparison.measures import compare_arrays
from jaxsr.comparison.op_recorder import Record
from jaxsr.comparison.torch_backend import TorchBackend
from jaxsr.comparison.torch_runs import run_torch
from jaxsr.comparison.workload import SingleWorkload
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.folding.policy import LaneFolding
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.torch_evaluation import in_mode

TORCH = BackendSpec(engine="torch", platform="cpu")
JAX = BackendSpec(engine="jax")


def workload_of(module: nn.Module, arguments: Arguments, *, train: bool = False) -> SingleWorkload:
    """A workload of a float32 copy of the module and its arguments, for two engines."""
    return SingleWorkload(
        family=type(module).__name__,
        model="",
        network=in_mode(copy_module(module).cpu()),
        inputs_text=arguments.describe(),
        inputs=arguments.call(arguments.arrays),
        train=train,
    )


def find_fault(
    module: nn.Module,
    arguments: Arguments,
    row: CheckRow,
    *,
    train: bool,
    lane_folding: LaneFolding | None = None,
) -> Fault:
    """The first operation that is wrong on the inputs that torch gave it, forward or backward.

    Args:
      module: the whole.
      arguments: of its forward.
      row: the result that differs: its name ends in `forward`, `gradient` or `buffers`.
      train: the mode.
      lane_folding: as for `to_jax`.

    Returns:
      The operation. If no single operation is wrong or can be run alone: the innermost submodule
      that is wrong, or the module itself.
    """
    quantity = row.name.split()[-1]
    try:
        workload = workload_of(module, arguments, train=train)
        comparison, *_ = compare_engines(
            workload,
            TORCH,
            JaxBackend(workload, JAX, lane_folding=lane_folding),
            gradients=quantity == "gradient",
            check=False,
        )
        findings = comparison.findings
    except Exception:  # a module that only runs as a whole
        findings = []
    for finding in findings:
        call = finding.row.call
        local = finding.row.local if finding.kind == "local" else finding.row.backward
        if finding.kind in ("local", "backward") and local is not None:
            kinds = {path: type(sub).__name__ for path, sub in module.named_modules()}
            return Fault(
                path=call.path,
                kind=kinds.get(call.path, type(module).__name__),
                quantity=("gradient of " if finding.kind == "backward" else "") + call.operation,
                error=local.error.worst,
                bound=local.threshold,
                detail=finding.text,
                source=call.source,
            )
    return _wrong_submodule(module, arguments, row, train, lane_folding)


def _wrong_submodule(
    module: nn.Module, arguments: Arguments, row: CheckRow, train: bool, folding: LaneFolding | None
) -> Fault:
    """The innermost submodule that differs on the inputs that torch gave it; else the module."""
    calls: list[tuple[str, nn.Module, Arguments]] = []
    key = jax.random.key(0)

    def run(copied: nn.Module, *args: PyTree, **kwargs: PyTree) -> PyTree:
        paths = {sub: path for path, sub in copied.named_modules() if path}

        def enter(sub: nn.Module, args: tuple, kwargs: dict[str, PyTree]) -> None:
            if sub in paths:  # copies: later operations may write into state and inputs
                inputs = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
                calls.append((paths[sub], copy_module(sub), Arguments.of(*inputs)))

        for sub in paths:
            sub.register_forward_pre_hook(enter, with_kwargs=True)
        return copied(*args, **kwargs)

    run_torch(module, arguments, train=train, key=key, method=run)
    fault, right = _fault_of("", module, row), ()
    for path, sub, inputs in calls:
        if not path.startswith(f"{fault.path}." if fault.path else "") or path.startswith(right):
            continue
        try:
            differentiate = row.name.endswith("gradient")
            runs = TorchRuns.of(sub, inputs, train=train, key=key, differentiate=differentiate)
            rows = compare_mode(JaxRuns(sub, inputs, lane_folding=folding), runs).rows
        except Exception:  # a submodule that only runs inside the module
            rows = []
        if (wrong := next((row for row in rows if row.status == "differs"), None)) is None:
            right += (f"{path}.",)
        else:
            fault = _fault_of(path, sub, wrong)
    return fault


def _fault_of(path: str, module: nn.Module, row: CheckRow) -> Fault:
    worst, group = row.worst, row.name.split()[-1]
    assert worst is not None
    prefix = {"gradient": "gradient ", "buffers": "buffer "}.get(group, "")
    return Fault(
        path=path, kind=type(module).__name__, quantity=f"{prefix}{worst.name}",
        error=worst.error, bound=worst.bound,
    )  # fmt: skip


def module_errors(
    module: nn.Module,
    arguments: Arguments,
    *,
    has_referee: bool,
    lane_folding: LaneFolding | None = None,
) -> list[ModuleError]:
    """Every submodule's first call, in order of its end: inner ones before outer ones.

    Args:
      module: the whole, in evaluation mode.
      arguments: of its forward.
      has_referee: whether torch runs it in float64.
      lane_folding: as for `to_jax`.
    """
    workload = workload_of(module, arguments)
    single = _recorded(TorchBackend(workload, TORCH), workload)
    exact = _recorded(TorchBackend(workload, REFEREE), workload) if has_referee else single
    recorded = _recorded(JaxBackend(workload, JAX, lane_folding=lane_folding), workload)
    kinds = {path: type(sub).__name__ for path, sub in module.named_modules()}
    errors: list[ModuleError] = []
    before = 1.0
    for path, reference in exact.items():
        arrays = recorded.get(path, {})
        if not arrays or reference.keys() != arrays.keys():
            continue
        worst = max(compare_arrays(arrays, single[path], reference), key=lambda one: one.ratio)
        is_leaf = not any(other.startswith(f"{path}.") for other in kinds)
        condition = max(worst.condition, 1.0)
        errors.append(
            ModuleError(
                path=path, kind=kinds[path], worst=worst,
                amplification=condition / before if is_leaf else 1.0,
            )
        )  # fmt: skip
        before = condition if is_leaf else before
    return errors


def _recorded(
    backend: TorchBackend | JaxBackend, workload: SingleWorkload
) -> dict[str, dict[str, np.ndarray]]:
    """Results of every submodule's first call, by path and number of the result."""
    records: list[Record]
    _, records = backend.record(workload.inputs, step=0, granularity="module", keep=("*",))
    return {
        record.call.path: {n: v for n, v in record.tensors.items() if n.startswith("out")}
        for record in records
        if record.call.path and record.call.nth == 0
    }

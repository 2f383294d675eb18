"""The error of every submodule's output in one evaluated forward of the whole module."""

import numpy as np
from torch import nn

from jaxsr.comparison.check_modes import TorchRuns
from jaxsr.comparison.check_result import ModuleError
from jaxsr.comparison.jax_runs import CallRecorder, JaxRuns
from jaxsr.comparison.measures import ArrayError, compare_arrays
from jaxsr.comparison.torch_runs import host_array, run_torch
from jaxsr.interop.annotations import PyTree

Recorded = dict[str, dict[str, np.ndarray]]


def module_errors(module: nn.Module, jax_runs: JaxRuns, torch_runs: TorchRuns) -> list[ModuleError]:
    """Every submodule's first call, in order of its end: inner ones before what holds them."""
    single = _recorded(module, torch_runs, double=False)
    exact = _recorded(module, torch_runs, double=torch_runs.referee == "float64")
    kinds = {path: type(sub).__name__ for path, sub in module.named_modules()}
    errors: list[ModuleError] = []
    before = 1.0
    recorded = jax_runs.modules()
    for path, reference in exact.items():
        arrays = recorded.get(path)
        if not arrays or reference.keys() != arrays.keys():
            continue
        worst = max(compare_arrays(arrays, single[path], reference), key=_ratio)
        is_leaf = not any(
            other.startswith(f"{path}." if path else "") and other != path for other in kinds
        )
        condition = max(worst.condition, 1.0)
        amplification = condition / before if is_leaf else 1.0
        errors.append(
            ModuleError(path=path, kind=kinds[path], worst=worst, amplification=amplification)
        )
        if is_leaf:
            before = condition
    return errors


def _ratio(error: ArrayError) -> float:
    return error.ratio


def _recorded(module: nn.Module, torch_runs: TorchRuns, *, double: bool) -> Recorded:
    recorders: list[CallRecorder] = []

    def run(copied: nn.Module, *args: PyTree, **kwargs: PyTree) -> PyTree:
        names = {id(sub): name for name, sub in copied.named_modules()}
        with CallRecorder(names, host_array) as recorder:
            recorders.append(recorder)
            return copied(*args, **kwargs)

    run_torch(module, torch_runs.arguments, double=double, key=torch_runs.key, method=run)
    return recorders[0].outputs

"""Several calls of one module: with what it keeps between them, then with moved parameters.

The same copy of the module is called in torch, and one compiled program in JAX that gets the
buffers of the call before. Before the last call parameters move, as an optimiser moves them: what
torch keeps over their memory moves with them. After calls in training that one is in evaluation.
"""

import zlib
from collections.abc import Mapping

import jax
import numpy as np
import torch
from torch import nn

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.check_modes import ModeRows, TorchRuns, cotangents, judged
from jaxsr.comparison.check_result import CheckRow, skipped
from jaxsr.comparison.jax_runs import JaxRuns, Program, to_host
from jaxsr.comparison.measures import compare_arrays, distances
from jaxsr.comparison.torch_runs import Arrays, moved, perturbed, run_here, widened
from jaxsr.errors import one_line
from jaxsr.interop.host_arrays import to_numpy, to_torch
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.torch_evaluation import in_mode

CALLS = 4
_MOVE = 2.0**-4
"""Share of itself by which a parameter moves before the last call."""
_SEED = 1
_BUFFER = "buffer "


def compare_calls(
    jax_runs: JaxRuns, torch_runs: TorchRuns, mode: ModeRows, evaluation: ModeRows
) -> CheckRow:
    """The row of all calls in one mode.

    Args:
      jax_runs: the converted module.
      torch_runs: the mode in torch.
      mode: its programs.
      evaluation: the programs of evaluation, for the last call.
    """
    name = "train calls" if torch_runs.train else "calls"
    module, double = torch_runs.module, torch_runs.referee == "float64"
    dtypes = {n: p.dtype for n, p in module.named_parameters()}
    options = {"train": torch_runs.train, "key": torch_runs.key, "dtypes": dtypes}
    try:
        single = _torch_calls(copy_module(module), torch_runs.arguments, **options)
        exact = single
        if double:
            exact = _torch_calls(widened(module), torch_runs.arguments, double=True, **options)
    except Exception as error:
        detail = f"torch fails in a further call: {type(error).__name__}: {one_line(error)}"
        return skipped(name, detail)
    arrays = _jax_calls(jax_runs, torch_runs, mode, evaluation)
    # A cache that took the input's size in torch keeps its own in JAX.
    exact = {
        n: a
        for n, a in exact.items()
        if n in single
        and (not n.startswith(_BUFFER) or a.shape == getattr(arrays.get(n), "shape", None))
    }
    errors = compare_arrays(arrays, single, exact)
    if not all(one.ok for one in errors):
        near = perturbed(module, _SEED, double=double)
        noise = distances(exact, _torch_calls(near, torch_runs.arguments, double=double, **options))
        finite = {n: v for n, v in noise.items() if np.isfinite(v)}
        errors = compare_arrays(arrays, single, exact, noise=finite)
    return judged(name, errors)


def _torch_calls(
    module: nn.Module,
    arguments: Arguments,
    *,
    train: bool,
    key: jax.Array,
    dtypes: Mapping[str, torch.dtype],
    double: bool = False,
) -> Arrays:
    """Outputs and buffers of every call, by name and number; the module is called as it is."""
    arrays: Arrays = {}
    in_mode(module, train)
    for number in range(CALLS):
        if number == CALLS - 1:
            in_mode(module)
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    if parameter.requires_grad and parameter.is_floating_point():
                        parameter.copy_(_moved(name, parameter.to(dtypes.get(name))))
        run = run_here(module, arguments, double=double, key=jax.random.fold_in(key, number))
        arrays |= _named(run.outputs, number) | _named(run.buffers, number, _BUFFER)
    return arrays


def _jax_calls(
    jax_runs: JaxRuns, torch_runs: TorchRuns, mode: ModeRows, evaluation: ModeRows
) -> Arrays:
    arrays: Arrays = {}
    params, buffers = jax_runs.state
    for number in range(CALLS):
        rows, run = mode, torch_runs.single
        if number == CALLS - 1:
            rows = evaluation
            params = {n: _moved_array(n, v) for n, v in params.items()}
        key = jax.random.fold_in(torch_runs.key, number)
        arguments = ((params, buffers), jax_runs.inputs(), key)
        if rows.forward is not None:
            outputs, buffers = rows.forward(*arguments)
        else:
            assert isinstance(rows.gradient, Program)
            outputs, buffers, _ = rows.gradient(*arguments, cotangents(run))
        arrays |= _named(to_host(outputs), number) | _named(to_host(buffers), number, _BUFFER)
    return arrays


def _named(arrays: Mapping[str, np.ndarray], number: int, kind: str = "") -> Arrays:
    return {f"{kind}{name} of call {number + 1}": array for name, array in arrays.items()}


def _moved(name: str, parameter: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return moved(parameter, generator, by=_MOVE)


def _moved_array(name: str, array: jax.Array) -> jax.Array:
    if not jax.numpy.issubdtype(array.dtype, jax.numpy.floating):
        return array
    return jax.numpy.asarray(to_numpy(_moved(name, to_torch(np.asarray(array)))))

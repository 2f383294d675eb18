"""Several calls of one module: with its buffers kept between them, then with moved parameters.

The same copy of the module is called in torch, and one compiled program in JAX that gets the
buffers of the call before. Before the last call parameters move, as an optimiser moves them: values
that torch keeps in their memory move with them. After calls in training that one is in evaluation.
"""

import zlib

import jax
import numpy as np
import torch
from torch import nn

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.check_modes import ModeRows, TorchRuns, cotangents, judged
from jaxsr.comparison.check_result import CheckRow, skipped
from jaxsr.comparison.jax_runs import JaxRuns, Program, to_host
from jaxsr.comparison.torch_runs import Arrays, RunResult, moved, run_here, widened
from jaxsr.errors import one_line
from jaxsr.interop.host_arrays import to_numpy, to_torch
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.torch_evaluation import in_mode

CALLS = 4
_MOVE = 2.0**-4
"""Share of itself by which a parameter moves before the last call."""


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
    try:
        calls = TorchRuns.of(
            torch_runs.module, torch_runs.arguments, train=torch_runs.train, key=torch_runs.key,
            run=_torch_calls,
        )  # fmt: skip
    except Exception as error:
        detail = f"torch fails in a further call: {type(error).__name__}: {one_line(error)}"
        return skipped(name, detail)
    results = _jax_calls(jax_runs, torch_runs, mode, evaluation)
    groups = ("outputs", results.outputs), ("buffers", results.buffers)
    return judged(name, [one for group in groups for one in calls.errors(*group)])


def _torch_calls(
    module: nn.Module,
    arguments: Arguments,
    *,
    train: bool,
    key: jax.Array,
    differentiate: bool,
    double: bool = False,
) -> RunResult:
    """Outputs and buffers of every call of one copy, by name and number; see `run_torch`."""
    dtypes = {n: p.dtype for n, p in module.named_parameters()}
    copied, results = (
        in_mode(widened(module) if double else copy_module(module), train),
        RunResult(),
    )
    for number in range(CALLS):
        if number == CALLS - 1:
            in_mode(copied)
            with torch.no_grad():
                for name, parameter in copied.named_parameters():
                    if parameter.requires_grad and parameter.is_floating_point():
                        parameter.copy_(_moved(name, parameter.to(dtypes.get(name))))
        run = run_here(copied, arguments, double=double, key=jax.random.fold_in(key, number))
        _add(results, run.outputs, run.buffers, number)
    return results


def _jax_calls(
    jax_runs: JaxRuns, torch_runs: TorchRuns, mode: ModeRows, evaluation: ModeRows
) -> RunResult:
    results = RunResult()
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
        _add(results, to_host(outputs), to_host(buffers), number)
    return results


def _add(results: RunResult, outputs: Arrays, buffers: Arrays, number: int) -> None:
    results.outputs |= {f"{n} of call {number + 1}": a for n, a in outputs.items()}
    results.buffers |= {f"buffer {n} of call {number + 1}": a for n, a in buffers.items()}


def _moved(name: str, parameter: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return moved(parameter, generator, by=_MOVE)


def _moved_array(name: str, array: jax.Array) -> jax.Array:
    if not jax.numpy.issubdtype(array.dtype, jax.numpy.floating):
        return array
    return jax.numpy.asarray(to_numpy(_moved(name, to_torch(np.asarray(array)))))

"""Runs two engines side by side and compares every operation.

The second side is fed the first's tokens, so both have the same inputs in every step. Its logits
show the token that it would have chosen.
"""

from collections.abc import Sequence
from dataclasses import replace

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.backend_spec import REFEREE, BackendSpec
from jaxsr.comparison.check_modes import TorchRuns
from jaxsr.comparison.compare_traces import align_traces, compare_traces
from jaxsr.comparison.local_error import measure_local_errors
from jaxsr.comparison.measures import FLOOR_ULPS, LEAST_SCALE, MOST, ULP, ArrayError
from jaxsr.comparison.recorded_trace import (
    Backend,
    Progress,
    RecordedTrace,
    make_trace,
    open_backend,
)
from jaxsr.comparison.result import Comparison
from jaxsr.comparison.thresholds import roundoff_of
from jaxsr.comparison.workload import Workload, run_key
from jaxsr.errors import InputError


def compare_engines(
    workload: Workload,
    first: "BackendSpec | Backend | RecordedTrace",
    second: "BackendSpec | Backend",
    *,
    other: Workload | None = None,
    reference: bool = False,
    within: str = "",
    gradients: bool = False,
    check: bool = True,
    progress: Progress = lambda text: None,
) -> tuple[Comparison, RecordedTrace, RecordedTrace]:
    """Runs the workload on both sides and compares.

    Args:
      workload: the model and its inputs.
      first: gives the inputs that local errors are taken on. A trace, of another machine say, gives
        those that it has whole; its other operations are compared by figures and samples.
      second: compared with it.
      other: another network for the second side, with the same inputs. Default: the same.
      reference: also run torch in float64, which shows which side is more accurate.
      within: take local errors only inside this module.
      gradients: also compare the gradients of every operation, and those of the whole step.
      check: see `make_trace`; without it the gradients of the whole step are left out as well.
      progress: called with a line on each stage.

    Raises:
      ValueError: `within` names no module.
    """
    if within and within not in dict(workload.network.named_modules()):
        raise InputError(
            f"within={within!r} is not a module of {type(workload.network).__name__}; there are "
            + ", ".join(name for name, _ in workload.network.named_children())
        )
    options = {"check": check, "progress": progress}
    runner_a = None if isinstance(first, RecordedTrace) else _opened(workload, first)
    runner_b = _opened(other or workload, second)
    trace_a = make_trace(workload, runner_a, **options) if runner_a is not None else first
    assert isinstance(trace_a, RecordedTrace)
    trace_b = make_trace(other or workload, runner_b, forced=trace_a.tokens, **options)
    exact_runner = exact = None
    if reference:
        exact_runner = open_backend(workload, REFEREE)
        exact = make_trace(
            workload, exact_runner, forced=trace_a.tokens, check=False, progress=progress
        )
    rows = align_traces(trace_a, trace_b)
    measure_local_errors(
        workload,
        runner_a or trace_a,
        runner_b,
        rows,
        tokens=trace_a.tokens,
        reference=exact_runner,
        within=within,
        gradients=gradients,
        progress=progress,
    )
    complete = runner_a is not None or all(row.local for row in rows if row.is_repeatable)
    comparison = compare_traces(
        trace_a, trace_b, rows=rows, local_checked=complete, exact=exact, progress=progress
    )
    if gradients and check and runner_a is not None:
        progress("gradients of the whole step, with float64 as referee")
        errors = _gradients_of_step(workload, (runner_a, runner_b))
        comparison = replace(comparison, gradients=errors)
    return comparison, trace_a, trace_b


def _opened(workload: Workload, side: "BackendSpec | Backend") -> Backend:
    return open_backend(workload, side) if isinstance(side, BackendSpec) else side


def _gradients_of_step(workload: Workload, runners: Sequence[Backend]) -> list[ArrayError]:
    """The worse side's error of every gradient of the first step: parameters, floating inputs."""
    inputs = workload.begin().inputs()
    assert inputs is not None
    runs = TorchRuns.of(
        workload.network, Arguments.of(*inputs), train=workload.train, key=run_key(),
        differentiate=True,
    )  # fmt: skip
    unit = roundoff_of([runner.side.dtype for runner in runners])
    bounds = {
        "rounding": min(FLOOR_ULPS * max(2 * unit, ULP), MOST),
        "least_scale": max(LEAST_SCALE, 16 * unit),
    }
    sides = [runs.errors("gradients", r.grad(inputs).gradients, **bounds) for r in runners]
    return [max(pair, key=lambda one: one.ratio) for pair in zip(*sides, strict=True)]

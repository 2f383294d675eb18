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
from jaxsr.comparison.local_error import LocalErrorObserver, measure_local_errors
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


def compare_stored(
    stored: RecordedTrace,
    workload: Workload,
    second: BackendSpec,
    *,
    reference: bool = False,
    within: str = "",
    progress: Progress = lambda text: None,
) -> tuple[Comparison, RecordedTrace]:
    """Runs the workload on one side and compares it with a trace, of another machine say.

    The operations whose tensors are whole in the trace are run again on them: local errors need no
    second accelerator. The others are compared by figures and samples.
    """
    runner = open_backend(workload, second)
    trace = make_trace(workload, runner, forced=stored.tokens, progress=progress)
    rows = align_traces(stored, trace)
    observer = LocalErrorObserver(
        None,
        runner,
        rows,
        dtypes=(BackendSpec.parse(stored.header["side"]).dtype, second.dtype),
        reference=open_backend(workload, REFEREE) if reference else None,
        within=within,
    )
    progress("local errors of the stored operations")
    observer.stored(stored.records)
    paired = [row for row in rows if row.first is not None and row.second is not None]
    complete = all(row.local is not None for row in paired)
    return (
        compare_traces(stored, trace, rows=rows, local_checked=complete, progress=progress),
        trace,
    )


def compare_engines(
    workload: Workload,
    first: "BackendSpec | Backend",
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
      workload: what to run.
      first: gives the inputs that local errors are taken on.
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
    runners = [
        open_backend(load, side) if isinstance(side, BackendSpec) else side
        for load, side in ((workload, first), (other or workload, second))
    ]
    if within and within not in dict(workload.network.named_modules()):
        raise InputError(
            f"within={within!r} is not a module of {type(workload.network).__name__}; there are "
            + ", ".join(name for name, _ in workload.network.named_children())
        )
    trace_a = make_trace(workload, runners[0], check=check, progress=progress)
    trace_b = make_trace(
        other or workload, runners[1], forced=trace_a.tokens, check=check, progress=progress
    )
    exact_runner = exact = None
    if reference:
        exact_runner = open_backend(workload, REFEREE)
        exact = make_trace(
            workload, exact_runner, forced=trace_a.tokens, check=False, progress=progress
        )
    rows = align_traces(trace_a, trace_b)
    measure_local_errors(
        workload,
        runners[0],
        runners[1],
        rows,
        tokens=trace_a.tokens,
        reference=exact_runner,
        within=within,
        gradients=gradients,
        progress=progress,
    )
    comparison = compare_traces(
        trace_a, trace_b, rows=rows, local_checked=True, exact=exact, progress=progress
    )
    if gradients and check:
        progress("gradients of the whole step, with float64 as referee")
        comparison = replace(comparison, gradients=_whole_gradients(workload, runners))
    return comparison, trace_a, trace_b


def _whole_gradients(workload: Workload, runners: Sequence[Backend]) -> list[ArrayError]:
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

"""Runs two engines side by side and compares every operation.

The second side is fed the first's tokens, so both have the same inputs in every step. Its logits
show the token that it would have chosen.
"""

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.compare_traces import align_traces, compare_traces
from jaxsr.comparison.local_error import measure_local_errors
from jaxsr.comparison.result import Comparison
from jaxsr.comparison.trace import Progress, Runner, Trace, make_trace, open_backend
from jaxsr.comparison.workload import Workload
from jaxsr.errors import InputError


def compare_engines(
    workload: Workload,
    first: "BackendSpec | Runner",
    second: "BackendSpec | Runner",
    *,
    other: Workload | None = None,
    reference: bool = False,
    within: str = "",
    progress: Progress = lambda text: None,
) -> tuple[Comparison, Trace, Trace]:
    """Runs the workload on both sides and compares.

    Args:
      workload: what to run.
      first: gives the inputs that local errors are taken on.
      second: compared with it.
      other: another network for the second side, with the same inputs. Default: the same.
      reference: also run torch in float64, which shows which side is more accurate.
      within: take local errors only inside this module.
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
    trace_a = make_trace(workload, runners[0], progress=progress)
    trace_b = make_trace(other or workload, runners[1], forced=trace_a.tokens, progress=progress)
    exact_runner = exact = None
    if reference:
        exact_side = BackendSpec(engine="torch", platform="cpu", dtype="float64")
        exact_runner = open_backend(workload, exact_side)
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
        progress=progress,
    )
    comparison = compare_traces(
        trace_a, trace_b, rows=rows, local_checked=True, exact=exact, progress=progress
    )
    return comparison, trace_a, trace_b

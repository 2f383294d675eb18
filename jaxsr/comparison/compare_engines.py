"""Two engines run side by side: both traced, then every operation of one held to the other's.

The second side is fed the first's tokens, so that every step's inputs are the same; what it would
have chosen itself is in its logits.
"""

from collections.abc import Callable, Sequence

from jaxsr.comparison.backend_spec import Side
from jaxsr.comparison.calls import Call
from jaxsr.comparison.compare_traces import align_traces, compare_traces
from jaxsr.comparison.local_error import local_errors
from jaxsr.comparison.result import Comparison, Row
from jaxsr.comparison.trace import Progress, Runner, Trace, make_trace, open_side
from jaxsr.comparison.workload import Subject
from jaxsr.errors import InputError


def compare_sides(
    subject: Subject,
    first: Side | Runner,
    second: Side | Runner,
    *,
    other: Subject | None = None,
    reference: bool = False,
    within: str = "",
    progress: Progress = lambda text: None,
) -> tuple[Comparison, Trace, Trace]:
    """Runs the subject on both sides and compares.

    Args:
      subject: what to run.
      first: gives the inputs that local errors are taken on.
      second: compared with it.
      other: another network for the second side, with the same inputs. Default: the same.
      reference: also run torch in float64, which says which side is nearer to the truth.
      within: take local errors only inside this module.
      progress: told what is being done.

    Raises:
      ValueError: `within` names no module.
    """
    runners = [
        open_side(what, side) if isinstance(side, Side) else side
        for what, side in ((subject, first), (other or subject, second))
    ]
    if within and within not in dict(subject.network.named_modules()):
        raise InputError(
            f"within={within!r} is no module of {type(subject.network).__name__}; there are "
            + ", ".join(name for name, _ in subject.network.named_children())
        )
    trace_a = make_trace(subject, runners[0], progress=progress)
    trace_b = make_trace(other or subject, runners[1], forced=trace_a.tokens, progress=progress)
    exact_runner = exact = None
    if reference:
        exact_runner = open_side(subject, Side(engine="torch", platform="cpu", dtype="float64"))
        exact = make_trace(
            subject, exact_runner, forced=trace_a.tokens, check=False, progress=progress
        )
    rows = align_traces(trace_a, trace_b)
    local = local_errors(
        subject,
        runners[0],
        runners[1],
        _counterparts(rows, len(trace_a.outputs)),
        tokens=trace_a.tokens,
        reference=exact_runner,
        within=_inside(within),
        progress=progress,
    )
    comparison = compare_traces(
        trace_a, trace_b, rows=rows, local=local, exact=exact, progress=progress
    )
    return comparison, trace_a, trace_b


def _counterparts(rows: Sequence[Row], steps: int) -> list[dict[int, Call]]:
    found: list[dict[int, Call]] = [{} for _ in range(steps)]
    for row in rows:
        if row.first is not None and row.second is not None:
            found[row.step][row.first.order] = row.second
    return found


def _inside(module: str) -> Callable[[Call], bool]:
    if not module:
        return lambda call: True
    return lambda call: call.path == module or call.path.startswith(f"{module}.")

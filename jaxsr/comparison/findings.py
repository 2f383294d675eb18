"""What of all differences is a fault, and where it began.

A local error beyond rounding is one, wherever it stands. A total error is one where the inputs
still agreed, and if it lasts. An operation that one side lacks is one if what follows it is off,
and not for a fault of its own: streams may differ without harm.
"""

from jaxsr.comparison.calls import Call
from jaxsr.comparison.outcome import Finding, Row


def find_faults(rows: list[Row], *, live: bool) -> list[Finding]:
    """In order of execution.

    Args:
      rows: all operations, totals and local errors filled in.
      live: whether local errors were looked for.
    """
    found: list[Finding] = []
    for position, row in enumerate(rows):
        if row.first is None or row.second is None:
            before = rows[position - 1] if position else None
            starts = before is None or not (before.first is None or before.second is None)
            if starts and _has_consequences(rows[position:], live=live):
                found.append(
                    Finding(kind="structure", row=row, said=_structure_said(rows, position))
                )
        elif live:
            if row.local is not None and row.local.above:
                found.append(Finding(kind="local", row=row, said=_local_said(row)))
        elif row.inherited <= row.total_threshold and _persists(rows[position:]):
            found.append(Finding(kind="total", row=row, said=_total_said(row)))
    return found


def _has_consequences(rows: list[Row], *, live: bool) -> bool:
    """Whether what follows an operation that one side lacks is off, and not for its own fault."""
    step = rows[0].step
    for position, row in enumerate(rows):
        if row.step != step:
            return False
        if row.first is None or row.second is None:
            continue
        if row.local is not None and row.local.problem:
            return True
        if live and row.local_above:
            return False
        if _persists(rows[position:]):
            return True
    return False


_FOLLOWING = 8
"""Operations that a total error must outlive."""


def _persists(rows: list[Row]) -> bool:
    """Whether the first row's total error is above, and most of those that follow are as well.

    Where large terms cancel, the relative error of correct runs shoots up for an operation or two
    and is gone as soon as the small result is added to something.
    """
    if not rows[0].total_above:
        return False
    step = rows[0].step
    later = [r for r in rows[1 : 1 + 2 * _FOLLOWING] if r.step == step and r.total is not None]
    above = [row.total_above for row in later[:_FOLLOWING]]
    return sum(above) * 2 >= len(above)


def _structure_said(rows: list[Row], position: int) -> str:
    gone: list[Call] = []
    new: list[Call] = []
    for row in rows[position:]:
        if row.first is not None and row.second is not None:
            break
        if row.second is None and row.first is not None:
            gone.append(row.first)
        elif row.second is not None:
            new.append(row.second)
    parts = []
    if gone:
        parts.append(f"the second side lacks {_named(gone)}")
    if new:
        parts.append(f"the second side has {_named(new)} besides")
    return "; ".join(parts) + "; what follows is off"


def _named(calls: list[Call]) -> str:
    names = ", ".join(call.operation for call in calls[:4])
    return names + (f" and {len(calls) - 4} more" if len(calls) > 4 else "")


def _local_said(row: Row) -> str:
    local = row.local
    assert local is not None
    if local.problem:
        return f"on equal inputs {local.problem}"
    if local.error.unlike:
        return f"on equal inputs {local.error.unlike} of {local.error.compared} values are unlike"
    return (
        f"local error {local.error.worst:.2e} on equal inputs, rounding explains "
        f"{local.threshold:.2e}"
    )


def _total_said(row: Row) -> str:
    assert row.total is not None
    return (
        f"total error {row.total.worst:.2e}, rounding explains {row.total_threshold:.2e}; its "
        f"inputs differ by {row.inherited:.2e}"
    )

"""Which differences are faults, and where they begin.

- A local error beyond rounding is a fault.
- A total error is a fault if the inputs agreed and the error persists.
- An operation that one side lacks is a fault if what follows it is wrong for no other reason.
"""

import itertools

from jaxsr.comparison.result import Finding, Row
from jaxsr.errors import first_of


def find_faults(rows: list[Row], *, local_checked: bool) -> list[Finding]:
    """In order of execution.

    Args:
      rows: all operations, totals and local errors filled in.
      local_checked: whether local errors were measured.
    """
    persists = _Persistence(rows)
    findings: list[Finding] = []
    for position, row in enumerate(rows):
        if row.first is None or row.second is None:
            before = rows[position - 1] if position else None
            starts = before is None or not (before.first is None or before.second is None)
            if starts and _has_consequences(rows[position:], persists, local_checked=local_checked):
                text = _structure_text(rows, position)
                findings.append(Finding(kind="structure", row=row, text=text))
        elif local_checked:
            if row.local is not None and row.local.above:
                findings.append(Finding(kind="local", row=row, text=_local_text(row)))
        elif row.inherited <= row.total_threshold and persists(row):
            findings.append(Finding(kind="total", row=row, text=_total_text(row)))
    return findings


def _has_consequences(rows: list[Row], persists: "_Persistence", *, local_checked: bool) -> bool:
    """Whether the operations after a missing one are wrong, and have no fault themselves."""
    step = rows[0].step
    for row in rows:
        if row.step != step:
            return False
        if row.first is None or row.second is None:
            continue
        if row.local is not None and row.local.problem:
            return True
        if local_checked and row.local_above:
            return False
        if persists(row):
            return True
    return False


class _Persistence:
    """Tells whether a total error persists from operation to operation.

    Where large terms cancel, the relative error of correct runs rises. It disappears an operation
    or two later, when the small result is added to a larger one.
    """

    GENERATIONS = 6
    """Operations in a row, each reading the last one's result, that an error must survive."""

    def __init__(self, rows: list[Row]) -> None:
        self._readers: dict[tuple[int, str], list[Row]] = {}
        for row in rows:
            names = [] if row.first is None else [o.name for o in row.first.operands]
            for name in {name.partition("#")[0] for name in names}:
                self._readers.setdefault((row.step, name), []).append(row)
        self._known: dict[tuple[int, int], bool] = {}

    def __call__(self, row: Row, generations: int = GENERATIONS) -> bool:
        """Whether the row's total error is above what rounding explains, and stays so."""
        if not row.total_above or row.first is None:
            return False
        if generations == 0:
            return True
        known = (row.number, generations)
        if known not in self._known:
            readers = self._readers.get((row.step, row.first.key), [])
            readers = [reader for reader in readers if reader.number > row.number]
            persists = any(self(reader, generations - 1) for reader in readers)
            self._known[known] = persists or not readers
        return self._known[known]


def _structure_text(rows: list[Row], position: int) -> str:
    unpaired = itertools.takewhile(lambda r: r.first is None or r.second is None, rows[position:])
    sides: tuple[list[str], list[str]] = ([], [])
    for row in unpaired:
        sides[row.first is None].append(row.call.operation)
    parts = [f"the second side lacks {first_of(sides[0], 4)}"] if sides[0] else []
    parts += [f"the second side has {first_of(sides[1], 4)} besides"] if sides[1] else []
    return "; ".join((*parts, "what follows is off"))


def _local_text(row: Row) -> str:
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


def _total_text(row: Row) -> str:
    assert row.total is not None
    return (
        f"total error {row.total.relative:.2e}, rounding explains {row.total_threshold:.2e}; its "
        f"inputs differ by {row.inherited:.2e}"
    )

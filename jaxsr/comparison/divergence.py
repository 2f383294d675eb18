"""Which differences are faults, and where they begin.

- A local error beyond rounding is a fault.
- A total error is a fault if the inputs agreed and the error persists.
- An operation that one side lacks is a fault if it alone explains why the following ones, or the
  results, are wrong.
- An operation that makes NaN of operands without any is a fault, also where both sides do: from
  there on nothing is compared.
"""

import itertools
from collections.abc import Callable, Container

from jaxsr.comparison.result import Discrepancy, Local, OperationRow
from jaxsr.errors import first_of


def find_faults(
    rows: list[OperationRow],
    *,
    local_checked: bool,
    nan_weights: frozenset[str] = frozenset(),
    wrong_steps: Container[int] = (),
) -> list[Discrepancy]:
    """In order of execution.

    Args:
      rows: all operations, totals and local errors filled in.
      local_checked: whether local errors were measured.
      nan_weights: names of parameters and buffers that hold NaN.
      wrong_steps: those whose results rounding does not explain.
    """
    persists = _Persistence(rows)
    begins_nan = {row.number for row in origins(rows, lambda row: row.nan)}
    findings: list[Discrepancy] = []
    for position, row in enumerate(rows):
        if row.number in begins_nan:
            findings.append(Discrepancy(kind="nan", row=row, text=_nan_text(row, nan_weights)))
        elif row.first is None or row.second is None:
            before = rows[position - 1] if position else None
            starts = before is None or not (before.first is None or before.second is None)
            if starts and _has_consequences(
                rows[position:], persists, local_checked=local_checked, wrong_steps=wrong_steps
            ):
                text = _structure_text(rows, position)
                findings.append(Discrepancy(kind="structure", row=row, text=text))
        elif local_checked or row.local is not None:
            if row.local is not None and row.local.above:
                findings.append(Discrepancy(kind="local", row=row, text=_local_text(row)))
            elif row.backward is not None and row.backward.above:
                findings.append(
                    Discrepancy(kind="backward", row=row, text=_backward_text(row.backward))
                )
        elif row.inherited <= row.total_threshold and persists(row):
            findings.append(Discrepancy(kind="total", row=row, text=_total_text(row)))
    return findings


def origins(
    rows: list[OperationRow], count: Callable[[OperationRow], tuple[int, int]]
) -> list[OperationRow]:
    """The operations whose results have elements of a kind that their operands lack.

    Args:
      rows: all operations.
      count: elements of that kind in a row's results, on either side.
    """
    seen: set[tuple[int, int, str]] = set()  # side, step, key of the operation
    begins: list[OperationRow] = []
    for row in rows:
        starts = False
        for side, (call, elements) in enumerate(
            zip((row.first, row.second), count(row), strict=True)
        ):
            if call is None or not elements:
                continue
            names = {o.name.partition("#")[0] for o in call.operands if o.kind == "operation"}
            starts |= not any((side, row.step, name) in seen for name in names)
            seen.add((side, row.step, call.key))
        if starts and not row.call.is_uninitialised:
            begins.append(row)
    return begins


def on_sides(counts: tuple[int, int]) -> str:
    """Where elements were counted, in words."""
    if all(counts):
        return "on both sides"
    return f"on the {'first' if counts[0] else 'second'} side alone"


def _nan_text(row: OperationRow, nan_weights: frozenset[str]) -> str:
    count = sum(figures.count for figures in row.first_figures or row.second_figures)
    text = f"{max(row.nan)} of {count} values are NaN {on_sides(row.nan)}"
    named = [o.name for o in row.call.operands if o.kind == "parameter" and o.name in nan_weights]
    if named:
        return f"{text}, from the weights: {first_of(named, 4)} holds NaN"
    made = all(o.kind in ("operation", "parameter") for o in row.call.operands)
    return f"{text}, from operands without any" if made and row.call.operands else text


def _has_consequences(
    rows: list[OperationRow],
    persists: "_Persistence",
    *,
    local_checked: bool,
    wrong_steps: Container[int],
) -> bool:
    """Whether the operations after a missing one are wrong, and have no fault themselves.

    Where none follows, the results tell.
    """
    step = rows[0].step
    is_last = True
    for row in itertools.takewhile(lambda row: row.step == step, rows):
        if row.first is None or row.second is None:
            continue
        is_last = False
        if row.local is not None and row.local.problem:
            return True
        if local_checked and row.local_above:
            return False
        if persists(row):
            return True
    return is_last and step in wrong_steps


class _Persistence:
    """Tells whether a total error persists from operation to operation.

    Where large terms cancel, the relative error of correct runs rises. It disappears an operation
    or two later, when the small result is added to a larger one.
    """

    GENERATIONS = 6
    """Operations in a row, each reading the last one's result, that an error must survive."""

    def __init__(self, rows: list[OperationRow]) -> None:
        self._readers: dict[tuple[int, str], list[OperationRow]] = {}
        for row in rows:
            names = [] if row.first is None else [o.name for o in row.first.operands]
            for name in {name.partition("#")[0] for name in names}:
                self._readers.setdefault((row.step, name), []).append(row)
        self._known: dict[tuple[int, int], bool] = {}

    def __call__(self, row: OperationRow, generations: int = GENERATIONS) -> bool:
        """Whether the row's total error exceeds the rounding error, then and later."""
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


def _structure_text(rows: list[OperationRow], position: int) -> str:
    unpaired = itertools.takewhile(lambda r: r.first is None or r.second is None, rows[position:])
    sides: tuple[list[str], list[str]] = ([], [])
    for row in unpaired:
        sides[row.first is None].append(row.call.operation)
    parts = [f"the second side lacks {first_of(sides[0], 4)}"] if sides[0] else []
    parts += [f"the second side has {first_of(sides[1], 4)} in addition"] if sides[1] else []
    return "; ".join((*parts, "later results are off"))


def _local_text(row: OperationRow) -> str:
    local = row.local
    assert local is not None
    if local.problem:
        return f"on equal inputs {local.problem}"
    where = row.worst_element(local.error)
    where = f"; {where}" if where else ""
    if local.error.unlike:
        counts = f"{local.error.unlike} of {local.error.compared}"
        return f"on equal inputs {counts} values are unlike{where}"
    return (
        f"local error {local.error.worst:.2e} on equal inputs, rounding explains "
        f"{local.threshold:.2e}{where}"
    )


def _backward_text(local: Local) -> str:
    if local.problem:
        return f"backward, {local.problem}"
    return (
        f"backward, gradients differ by {local.error.worst:.2e} on equal inputs, rounding explains "
        f"{local.threshold:.2e}"
    )


def _total_text(row: OperationRow) -> str:
    assert row.total is not None
    return (
        f"total error {row.total.relative:.2e}, rounding explains {row.total_threshold:.2e}; its "
        f"inputs differ by {row.inherited:.2e}"
    )

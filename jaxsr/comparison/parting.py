"""Where two runs part: total and local errors by operation, and what is found first.

The total error of an operation is that of its result in the two runs; the local error is what the
operation adds by itself (`lockstep`). An error inherited from earlier operations shows in the
first and not in the second. What is found is found among the operations that were looked at, and
in stored traces by figures and samples of their results; reports say so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from jaxsr.comparison.alignment import align
from jaxsr.comparison.apart import EQUAL, INCOMPARABLE, Apart, apart, worst_of
from jaxsr.comparison.calls import Call
from jaxsr.comparison.lockstep import Local
from jaxsr.comparison.recording import Record
from jaxsr.comparison.sides import Side
from jaxsr.comparison.statistics import Figures
from jaxsr.comparison.thresholds import (
    logits_rounding,
    moves_only,
    pair_roundoff,
    roundoff_of,
    total_threshold,
)
from jaxsr.comparison.tokens import Step, compare_logits, first_divergence
from jaxsr.comparison.tracing import Trace

Kind = Literal["local", "total", "structure"]


@dataclass(kw_only=True)
class Row:
    """One operation, or one that a side lacks."""

    number: int
    """Position among all rows."""
    step: int
    first: Call | None
    second: Call | None
    total: Apart | None = None
    """None where there is nothing to compare."""
    total_threshold: float = 0.0
    inherited: float = 0.0
    """Largest total error, scale-free, of the first side's operands."""
    local: Local | None = None
    exact: tuple[float, float] | None = None
    """Total error of each side against float64, scale-free."""

    @property
    def call(self) -> Call:
        call = self.first or self.second
        assert call is not None
        return call

    @property
    def total_above(self) -> bool:
        return self.total is not None and self.total.worst > self.total_threshold

    @property
    def local_above(self) -> bool:
        return self.local is not None and self.local.above


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An operation that rounding does not explain."""

    kind: Kind
    row: Row
    said: str
    """What is wrong with it, without its place."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that a report shows."""

    first: dict[str, Any]
    """Header of the first side's trace."""
    second: dict[str, Any]
    rows: list[Row] = field(repr=False)
    findings: list[Finding]
    """In order of execution."""
    outputs: list[Apart]
    """Of the results of every step, whole tensors."""
    outputs_threshold: float
    steps: list[Step]
    """Of language models."""
    weights: list[tuple[str, float]]
    """Parameters and buffers that are not equal, with their relative difference, worst first."""
    compared_steps: int
    live: bool
    """Whether local errors were looked for."""

    @property
    def checked(self) -> int:
        """Operations that both sides have."""
        return sum(row.first is not None and row.second is not None for row in self.rows)

    @property
    def checked_locally(self) -> int:
        return sum(row.local is not None for row in self.rows)

    @property
    def outputs_above(self) -> bool:
        return any(pair.worst > self.outputs_threshold for pair in self.outputs)

    @property
    def divergence(self) -> Step | None:
        """The first step whose tokens differ."""
        return first_divergence(self.steps)

    @property
    def agree(self) -> bool:
        """Whether rounding explains every difference that was looked at."""
        benign = self.divergence is None or self.divergence.tie
        # Local errors, where they were looked for, say more than an accumulated total.
        return not self.findings and benign and (self.live or not self.outputs_above)


def check_comparable(first: Trace, second: Trace, *, names: tuple[str, str]) -> None:
    """Refuses traces whose comparison would mean nothing.

    Raises:
      ValueError: other models, inputs, granularity or samples; says which and the way out.
    """
    for part, what, way in (
        ("family", "models", "record both with one --model"),
        ("parameters", "models (parameter names or shapes)", "record both with one --model"),
        ("inputs", "inputs", "record both with one picture or prompt, --size and --steps"),
    ):
        a, b = first.header["identity"][part], second.header["identity"][part]
        if a != b:
            said = [
                trace.header["subject"]["inputs" if part == "inputs" else "model"]
                for trace in (first, second)
            ]
            raise ValueError(
                f"{names[0]} and {names[1]} are traces of different {what}: {said[0]} ({a}) and "
                f"{said[1]} ({b}); {way}"
            )
    for part in ("granularity", "sample"):
        a, b = first.header[part], second.header[part]
        if a != b:
            raise ValueError(
                f"{names[0]} was recorded with {part} {a}, {names[1]} with {b}; record one again"
            )


def align_traces(first: Trace, second: Trace) -> list[Row]:
    """Rows of all steps, in order of execution, without figures."""
    rows: list[Row] = []
    for step in range(min(len(first.outputs), len(second.outputs))):
        a, b = first.of_step(step), second.of_step(step)
        for pair in align([r.call for r in a], [r.call for r in b]):
            rows.append(
                Row(
                    number=len(rows),
                    step=step,
                    first=None if pair.first is None else a[pair.first].call,
                    second=None if pair.second is None else b[pair.second].call,
                )
            )
    return rows


def compare_traces(
    first: Trace,
    second: Trace,
    *,
    rows: list[Row] | None = None,
    local: Sequence[dict[int, Local]] | None = None,
    exact: Trace | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Totals, and what is found first.

    Args:
      first: sets the scale of every difference.
      second: compared with it.
      rows: of `align_traces`, if they are known already.
      local: of `lockstep.local_errors`; None for stored traces.
      exact: the same run in float64.
      progress: told what is being done.
    """
    rows = align_traces(first, second) if rows is None else rows
    steps = _comparable_steps(first, second)
    rows = [row for row in rows if row.step < steps]
    progress(f"comparing {len(rows)} operations")
    unit, depth = _fill_totals(rows, first, second, exact)
    for row in rows:
        if local is not None and row.first is not None:
            row.local = local[row.step].get(row.first.order)
    findings = _findings(rows, live=local is not None)
    outputs = [apart(a, b) for a, b in zip(first.outputs, second.outputs, strict=False)][:steps]
    last = next((row for row in reversed(rows) if row.first and row.second), None)
    return Comparison(
        first=first.header,
        second=second.header,
        rows=rows,
        findings=findings,
        outputs=outputs,
        outputs_threshold=last.total_threshold if last else 0.0,
        steps=compare_logits(
            first.outputs[:steps], second.outputs[:steps], rounding=logits_rounding(unit, depth)
        )
        if first.tokens
        else [],
        weights=_weight_differences(first, second),
        compared_steps=steps,
        live=local is not None,
    )


def _comparable_steps(first: Trace, second: Trace) -> int:
    """Steps whose inputs were the same: up to the one after which other tokens were fed."""
    for step, (a, b) in enumerate(zip(first.tokens, second.tokens, strict=False)):
        if a != b:
            return step + 1
    return min(len(first.outputs), len(second.outputs))


def _fill_totals(
    rows: list[Row], first: Trace, second: Trace, exact: Trace | None
) -> tuple[float, int]:
    """Total errors and their thresholds; returns the coarsest roundoff and the depth of a step."""
    sides = [_by_place(trace) for trace in (first, second)]
    exact_rows = {} if exact is None else _by_key(exact)
    declared = roundoff_of([_dtype_of(first), _dtype_of(second)])
    unit, depth, deepest, step = declared, 0, 0, -1
    totals: dict[str, float] = {}
    for row in rows:
        if row.step != step:
            step, depth, totals = row.step, 0, {}
        if row.first is None or row.second is None:
            continue
        unit = max(unit, pair_roundoff(row.first, row.second, declared))
        a = sides[0][row.step, row.first.order]
        b = sides[1][row.step, row.second.order]
        if not moves_only(row.first.operation):
            depth += 1
            deepest = max(deepest, depth)
        row.total_threshold = total_threshold(row.first, depth, unit=unit)
        if len(a.figures) == len(b.figures) and a.figures:
            pairs = zip(a.figures, b.figures, strict=True)
            row.total = worst_of([figures_apart(x, y) for x, y in pairs])
            totals[row.first.key] = row.total.worst
            truth = exact_rows.get((row.step, row.first.key))
            if truth is not None and len(truth.figures) == len(a.figures):
                row.exact = tuple(  # type: ignore[assignment]
                    worst_of(
                        [figures_apart(x, y) for x, y in zip(truth.figures, f, strict=True)]
                    ).worst
                    for f in (a.figures, b.figures)
                )
        names = [o.name.partition("#")[0] for o in row.first.operands if o.kind == "operation"]
        row.inherited = max((totals.get(name, 0.0) for name in names), default=0.0)
    return unit, deepest


def _dtype_of(trace: Trace) -> str:
    return Side.parse(trace.header["side"]).dtype


def _by_place(trace: Trace) -> dict[tuple[int, int], Record]:
    return {(r.call.step, r.call.order): r for r in trace.records}


def _by_key(trace: Trace) -> dict[tuple[int, str], Record]:
    return {(r.call.step, r.call.key): r for r in trace.records}


def figures_apart(first: Figures, second: Figures) -> Apart:
    """What two tensors' figures and samples say of their difference: a lower bound of it."""
    if first.count != second.count:
        return INCOMPARABLE
    if first.beyond != second.beyond:
        return Apart(float("inf"), float("inf"), float("inf"), abs(first.beyond - second.beyond))
    if not first.count:
        return EQUAL
    pair = apart(first.sample, second.sample, rms=first.rms or None)
    scale = first.rms or second.rms
    if not scale or not np.isfinite(pair.worst):
        return pair
    # No difference of two tensors is smaller than that of their norms, means or extremes.
    relative = max(
        pair.relative,
        abs(first.norm - second.norm) / (scale * (first.count - first.beyond) ** 0.5),
        abs(first.mean - second.mean) / scale,
    )
    ends = [
        abs(a - b) / (abs(a) + scale)
        for a, b in ((first.low, second.low), (first.high, second.high))
    ]
    return Apart(relative, max(pair.peak, *ends), pair.largest, pair.unlike, pair.compared)


def _findings(rows: list[Row], *, live: bool) -> list[Finding]:
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


def _weight_differences(first: Trace, second: Trace) -> list[tuple[str, float]]:
    unit = roundoff_of([_dtype_of(first), _dtype_of(second)])
    found = []
    for name, (digest, figures) in first.weights.items():
        if name not in second.weights or second.weights[name][0] == digest:
            continue
        worst = figures_apart(figures, second.weights[name][1]).worst
        if worst > 2 * unit or first.header["side"] == second.header["side"]:
            found.append((name, worst))
    return sorted(found, key=lambda pair: -pair[1])

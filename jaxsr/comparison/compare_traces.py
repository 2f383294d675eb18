"""Where two runs part: total errors by operation, and what comes of them.

The total error of an operation is that of its result in the two runs; the local error is what the
operation adds by itself (`lockstep`). An error inherited from earlier operations shows in the
first and not in the second. What is found is found among the operations that were looked at, and
in stored traces by figures and samples of their results; reports say so.
"""

from collections.abc import Callable, Sequence

import numpy as np

from jaxsr.comparison.alignment import align
from jaxsr.comparison.backend_spec import Side
from jaxsr.comparison.divergence import find_faults
from jaxsr.comparison.local_error import Local
from jaxsr.comparison.metrics import EQUAL, INCOMPARABLE, Apart, apart, worst_of
from jaxsr.comparison.result import Comparison, Row
from jaxsr.comparison.statistics import Figures
from jaxsr.comparison.thresholds import (
    logits_rounding,
    moves_only,
    pair_roundoff,
    roundoff_of,
    total_threshold,
)
from jaxsr.comparison.tokens import compare_logits
from jaxsr.comparison.trace import Trace
from jaxsr.comparison.trace_records import Record
from jaxsr.errors import InputError


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
            raise InputError(
                f"{names[0]} and {names[1]} are traces of different {what}: {said[0]} ({a}) and "
                f"{said[1]} ({b}); {way}"
            )
    for part in ("granularity", "sample"):
        a, b = first.header[part], second.header[part]
        if a != b:
            raise InputError(
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
    findings = find_faults(rows, live=local is not None)
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
            totals[row.first.key] = row.total.relative
            truth = exact_rows.get((row.step, row.first.key))
            if truth is not None and len(truth.figures) == len(a.figures):
                row.exact = tuple(  # type: ignore[assignment]
                    worst_of(
                        [figures_apart(x, y) for x, y in zip(truth.figures, f, strict=True)]
                    ).relative
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

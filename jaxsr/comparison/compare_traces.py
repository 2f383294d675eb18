"""Compares two recorded runs: the total error of every operation, and the first faults.

The total error of an operation is the difference of its results in the two runs. The local error is
the error that the operation itself adds (`local_error`). An inherited error shows in the total
only. Stored traces are compared by statistics and samples of the results.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.calls import Call
from jaxsr.comparison.divergence import find_faults
from jaxsr.comparison.metrics import EQUAL, INCOMPARABLE, ErrorMetrics, error_metrics, worst_of
from jaxsr.comparison.recorded_trace import RecordedTrace
from jaxsr.comparison.result import Comparison, OperationRow
from jaxsr.comparison.statistics import Figures, sample_places
from jaxsr.comparison.thresholds import (
    logits_rounding,
    moves_only,
    pair_roundoff,
    roundoff_of,
    total_threshold,
)
from jaxsr.comparison.tokens import compare_logits
from jaxsr.errors import InputError
from jaxsr.interop.annotations import JsonObject


def check_comparable(first: JsonObject, second: JsonObject, *, names: tuple[str, str]) -> None:
    """Refuses traces whose comparison would be meaningless.

    Raises:
      ValueError: other models, inputs, granularity or samples.
    """
    for part, what, way in (
        ("family", "models", "record both with one --model"),
        ("parameters", "models (parameter names or shapes)", "record both with one --model"),
        ("inputs", "inputs", "record both with one image or prompt, --size and --steps"),
    ):
        a, b = first["identity"][part], second["identity"][part]
        if a != b:
            name = "inputs" if part == "inputs" else "model"
            texts = [header["subject"][name] for header in (first, second)]
            raise InputError(
                f"{names[0]} and {names[1]} are traces of different {what}: {texts[0]} ({a}) and "
                f"{texts[1]} ({b}); {way}"
            )
    for part in ("granularity", "sample"):
        a, b = first[part], second.get(part, first[part])
        if a != b:
            raise InputError(
                f"{names[0]} was recorded with {part} {a}, {names[1]} with {b}; record one again"
            )


_MOST_EQUAL = 200_000
"""Pairs of equal (module, operation) among which stretches are looked for."""


class Pair(NamedTuple):
    """Positions in both streams of one operation; None where a stream lacks it."""

    first: int | None
    second: int | None


def align(first: Sequence[Call], second: Sequence[Call]) -> list[Pair]:
    """Pairs in order of execution.

    Equal streams are paired by position, others by the longest stretches of equal (module,
    operation), so that a missing operation does not shift those after it. Where most are equal, as
    in a long loop, their numbers count: the stretches would take minutes to find.
    """
    tokens_a, tokens_b = ([call.token for call in calls] for calls in (first, second))
    if tokens_a == tokens_b:
        return [Pair(k, k) for k in range(len(tokens_a))]
    repeats = Counter(tokens_a)
    if sum(repeats[token] for token in tokens_b) > _MOST_EQUAL:
        tokens_a, tokens_b = ([call.key for call in calls] for calls in (first, second))
    pairs: list[Pair] = []
    matcher = SequenceMatcher(None, tokens_a, tokens_b, autojunk=False)
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        if kind == "equal":
            pairs += [Pair(a, b) for a, b in zip(range(a0, a1), range(b0, b1), strict=True)]
        else:
            pairs += [Pair(a, None) for a in range(a0, a1)]
            pairs += [Pair(None, b) for b in range(b0, b1)]
    return pairs


def align_traces(first: RecordedTrace, second: RecordedTrace) -> list[OperationRow]:
    """Rows of all steps, in order of execution, without figures."""
    rows: list[OperationRow] = []
    for step in range(min(len(first.outputs), len(second.outputs))):
        calls = [[record.call for record in side.of_step(step)] for side in (first, second)]
        for pair in align(*calls):
            a, b = (
                None if place is None else side[place]
                for side, place in zip(calls, pair, strict=True)
            )
            rows.append(OperationRow(number=len(rows), step=step, first=a, second=b))
    return rows


def compare_traces(
    first: RecordedTrace,
    second: RecordedTrace,
    *,
    rows: list[OperationRow] | None = None,
    local_checked: bool = False,
    exact: RecordedTrace | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Total errors of every operation, and the faults.

    Args:
      first: sets the scale of every difference.
      second: compared with it.
      rows: of `align_traces`, if they are known already.
      local_checked: whether the rows have local errors; those of stored traces lack them.
      exact: the same run in float64.
      progress: called with a line on each stage.
    """
    rows = align_traces(first, second) if rows is None else rows
    steps = _comparable_steps(first, second)
    rows = [row for row in rows if row.step < steps]
    progress(f"comparing {len(rows)} operations")
    unit, depth = _fill_totals(rows, first, second, exact)
    outputs = list(zip(first.outputs, second.outputs, strict=False))[:steps]
    results = [*enumerate(outputs), *((0, pair) for pair in _further_results(first, second))]
    errors = [error_metrics(a, b) for _, (a, b) in results]
    last = next((row for row in reversed(rows) if row.first and row.second), None)
    threshold = last.total_threshold if last else 0.0
    numbered = [(step, error) for (step, _), error in zip(results, errors, strict=True)]
    return Comparison(
        first=first.header,
        second=second.header,
        rows=rows,
        findings=find_faults(
            rows,
            local_checked=local_checked,
            nan_weights=_nan_weights(first, second),
            wrong_steps={step for step, error in numbered if error.relative > threshold},
        ),
        outputs=errors,
        nan_steps=[
            step
            for step, pair in results
            if any(np.isnan(np.asarray(side, np.float64)).any() for side in pair)
        ],
        outputs_threshold=threshold,
        steps=compare_logits(
            outputs if first.tokens else [], rounding=logits_rounding(unit, depth)
        ),
        weights=_weight_differences(first, second),
        compared_steps=steps,
        local_checked=local_checked,
    )


def _comparable_steps(first: RecordedTrace, second: RecordedTrace) -> int:
    """Steps whose inputs were the same: up to the one after which other tokens were fed."""
    for step, (a, b) in enumerate(zip(first.tokens, second.tokens, strict=False)):
        if a != b:
            return step + 1
    return min(len(first.outputs), len(second.outputs))


def _further_results(
    first: RecordedTrace, second: RecordedTrace
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of the results after the first; one that a side lacks is like nothing."""
    if first.further is None or second.further is None:
        return []
    lacking, names = np.zeros(0), dict.fromkeys((*first.further, *second.further))
    return [(first.further.get(n, lacking), second.further.get(n, lacking)) for n in names]


def _fill_totals(
    rows: list[OperationRow],
    first: RecordedTrace,
    second: RecordedTrace,
    exact: RecordedTrace | None,
) -> tuple[float, int]:
    """Total errors and their thresholds; returns the coarsest roundoff and the depth of a step."""
    sides = [{(r.call.step, r.call.order): r for r in t.records} for t in (first, second)]
    exact_records = exact.records if exact is not None else []
    exact_figures = {(r.call.step, r.call.key): r.figures for r in exact_records}
    declared = _coarser_roundoff(first, second)
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
        names = [o.name.partition("#")[0] for o in row.first.operands if o.kind == "operation"]
        row.inherited = max((totals.get(name, 0.0) for name in names), default=0.0)
        row.first_figures, row.second_figures = a.figures, b.figures
        if len(a.figures) == len(b.figures) and a.figures:
            total = _worst_sampled(a.figures, b.figures)
            totals[row.first.key] = total.relative
            if row.first.is_uninitialised:  # those that read it inherit the difference
                continue
            row.total = total
            truth = exact_figures.get((row.step, row.first.key), ())
            if len(truth) == len(a.figures):
                errors = [_worst_sampled(truth, side.figures).relative for side in (a, b)]
                row.exact = errors[0], errors[1]
    return unit, deepest


def _coarser_roundoff(first: RecordedTrace, second: RecordedTrace) -> float:
    sides = (BackendSpec.parse(trace.header["side"]) for trace in (first, second))
    return roundoff_of([side.dtype for side in sides])


def _worst_sampled(first: Sequence[Figures], second: Sequence[Figures]) -> ErrorMetrics:
    return worst_of([sampled_error(a, b) for a, b in zip(first, second, strict=True)])


def sampled_error(first: Figures, second: Figures) -> ErrorMetrics:
    """A lower bound of two tensors' difference, from their figures and samples."""
    if first.count != second.count:
        return INCOMPARABLE
    if first.beyond != second.beyond:
        return replace(INCOMPARABLE, unlike=abs(first.beyond - second.beyond))
    if not first.count:
        return EQUAL
    pair = error_metrics(first.sample, second.sample, rms=first.rms or None)
    if pair.worst_at >= 0:
        pair = replace(pair, worst_at=int(sample_places(first.count)[pair.worst_at]))
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
    return replace(pair, relative=relative, peak=max(pair.peak, *ends))


def _nan_weights(first: RecordedTrace, second: RecordedTrace) -> frozenset[str]:
    sides = (first.weights, second.weights)
    return frozenset(n for side in sides for n, one in side.items() if one.figures.nan)


def _weight_differences(first: RecordedTrace, second: RecordedTrace) -> list[tuple[str, float]]:
    unit = _coarser_roundoff(first, second)
    same_side = first.header["side"] == second.header["side"]
    differences = []
    for name, a in first.weights.items():
        b = second.weights.get(name, a)
        if a.digest == b.digest:
            continue
        worst = sampled_error(a.figures, b.figures).worst
        # Between two dtypes the bytes differ also where the weights are the same.
        if worst > 2 * unit or same_side or (a.dtype and a.dtype == b.dtype):
            differences.append((name, worst))
    return sorted(differences, key=lambda pair: -pair[1])

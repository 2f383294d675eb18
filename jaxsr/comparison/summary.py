"""The content of every report: verdict, notes, and operations by block and module."""

import re
from collections.abc import Callable, Iterable, Sequence

from jaxsr.comparison.calls import ROOT
from jaxsr.comparison.divergence import on_sides, origins
from jaxsr.comparison.report import Line, Table, number
from jaxsr.comparison.result import Comparison, OperationRow
from jaxsr.comparison.statistics import SAMPLE
from jaxsr.comparison.thresholds import moves_only
from jaxsr.comparison.tokens import TokenStep, in_words

_AROUND = 4  # operations shown before and after a finding
_MOST_NOTES = 3  # of one kind
_TOKENS = 200  # steps shown of a language model
_MOST_GROUPS = 40  # blocks or modules shown, those with the largest errors

Word = Callable[[int], str]


def headline(comparison: Comparison) -> str:
    """The outcome in one sentence, as sure as the evidence is."""
    checked, step = f"{comparison.checked} operations", comparison.divergence
    weights = ""
    if comparison.weights:
        name, value = comparison.weights[0]
        more = len(comparison.weights) - 1
        others = f" and {more} more" if more else ""
        weights = f"the two sides have different weights, {name} ({value:.1e}){others}"
    if comparison.findings:
        by = "" if comparison.local_checked else ", by figures and samples of their results"
        finding = comparison.findings[0]
        place, text = finding.row.call.place, finding.text
        verdict = "NOT A NUMBER" if finding.kind == "nan" else "DIFFER"
        before = f"{weights}; " if weights else ""
        return f"{verdict}: {before}first found among {checked} checked{by}: {place}: {text}"
    if not comparison.agree:
        what = "the results differ by more than rounding explains"
        if comparison.nan_steps:
            what = f"the results of step {comparison.nan_steps[0]} hold NaN"
        elif weights:
            what = weights
        elif (wrong := comparison.wrong_gradient) is not None:
            what = (
                f"the gradient of {wrong.name} is {number(wrong.error)} from float64, allowed "
                f"{number(wrong.bound)}"
            )
        elif step is not None and not step.tie:
            what = f"the tokens part at step {step.step}"
        return f"DIFFER: {what}, though no operation is wrong by itself ({checked} checked)"
    verb = "errs" if comparison.local_checked else "differs"
    return f"AGREE: no operation {verb} by more than rounding explains ({checked} checked)"


_LOCAL_NOTE = (
    "local errors: {count} operations of the second side, each run alone on the first side's "
    "inputs; a fused program may round otherwise"
)
_TRACES_NOTE = (
    "no local errors: stored traces cannot run an operation again. What stands here is the total "
    f"error, from figures and up to {SAMPLE} sampled elements of each result; "
    "`jaxsr.compare engines` runs both sides and takes local errors"
)
_DEFAULT_PRECISION_NOTE = (
    "{name}: float32 products at default precision, which on {platform} are computed in a narrower "
    "dtype: the likeliest reason for a difference; use precision=highest"
)
_BFLOAT16_NOTE = (
    "{name}: operands of float32 products are rounded to bfloat16, as a TPU does by default"
)
_ILL_CONDITIONED_NOTE = (
    "ill-conditioned: {place} makes a total error of {total} out of inputs that differ by "
    "{inherited} (condition {condition:.0f}): large terms cancel, on either side"
)
_INFINITE_NOTE = (
    "infinite: {place} makes {count} infinite values {sides} of finite operands; from there on "
    "these are compared as equal or unlike only"
)
_FUSION_NOTE = (
    "the results differ by more than the runs' rounding should add up to, and no operation by "
    "itself does: look for what the compiler fuses, or for an ill-conditioned model"
)


def notes(comparison: Comparison) -> list[str]:
    """Notes that a reader needs to judge the figures."""
    note = _LOCAL_NOTE if comparison.local_checked else _TRACES_NOTE
    lines = [note.format(count=comparison.checked_locally)]
    for header in (comparison.first, comparison.second):
        name, platform = header["side_short"], str(header["device"]).partition(":")[0]
        if header["recorder_difference"]:
            lines.append(f"{name}: {header['recorder']}")
        if "precision=default" in header["side"] and platform in ("tpu", "gpu", "cuda"):
            lines.append(_DEFAULT_PRECISION_NOTE.format(name=name, platform=platform))
        if "precision=bfloat16" in header["side"]:
            lines.append(_BFLOAT16_NOTE.format(name=name))
    if comparison.local_checked and comparison.outputs_above and not comparison.findings:
        lines.append(_FUSION_NOTE)
    for row in ill_conditioned(comparison)[:_MOST_NOTES]:
        assert row.total is not None
        lines.append(
            _ILL_CONDITIONED_NOTE.format(
                place=row.call.place, total=number(row.total.relative),
                inherited=number(row.inherited), condition=condition(row),
            )
        )  # fmt: skip
    for row in origins(comparison.rows, lambda row: row.infinite)[:_MOST_NOTES]:
        if not moves_only(row.call.operation):  # masks are filled with infinities
            lines.append(
                _INFINITE_NOTE.format(
                    place=row.call.place, count=max(row.infinite), sides=on_sides(row.infinite)
                )
            )
    missing = [row for row in comparison.rows if row.first is None or row.second is None]
    if missing:
        only = sum(row.second is None for row in missing)
        lines.append(
            f"{only} operations are the first side's only, {len(missing) - only} the second's"
        )
    if comparison.weights:
        worst = ", ".join(f"{name} ({value:.1e})" for name, value in comparison.weights[:4])
        more = len(comparison.weights) - 4
        lines.append(
            f"{len(comparison.weights)} parameters or buffers differ: {worst}"
            + (f" and {more} more" if more > 0 else "")
        )
    return lines


def condition(row: OperationRow) -> float:
    """Factor by which an operation amplifies the error of its inputs."""
    return row.total.relative / row.inherited if row.total is not None and row.inherited else 0.0


def ill_conditioned(comparison: Comparison) -> list[OperationRow]:
    """Operations that are not findings, but amplify rounding errors beyond the threshold.

    The largest condition comes first.
    """
    finding_numbers = {finding.row.number for finding in comparison.findings}
    rows = [
        row
        for row in comparison.rows
        if row.total_above
        and row.number not in finding_numbers
        and 0 < row.inherited <= row.total_threshold
        and not moves_only(row.call.operation)
    ]
    return sorted(rows, key=condition, reverse=True)


def token_lines(comparison: Comparison, word: Word = str) -> list[str]:
    """Lines about the language model's logits."""
    steps = comparison.steps
    if not steps:
        return []
    agreed = sum(step.agree for step in steps)
    lines = [
        f"tokens: {agreed} of {len(steps)} equal after equal tokens; top-10 overlap "
        f"{min(s.overlap for s in steps):.0%} at least; KL divergence "
        f"{max(s.divergence for s in steps):.2e} nats at most; logits moved by up to "
        f"{max(s.moved for s in steps):.3g}"
    ]
    if comparison.divergence is not None:
        lines.append(in_words(comparison.divergence, word))
    return lines


def local_ratio(row: OperationRow) -> float:
    """Local error divided by the rounding error."""
    if row.local is None:
        return 0.0
    if row.local.problem:
        return float("inf")
    return row.local.error.worst / max(row.local.threshold, 1e-300)


def block_of(path: str) -> str:
    """The block that a module belongs to: up to the first number in its path."""
    match = re.match(r"(?:[^.]*[^.\d][^.]*\.)*?\d+(?=\.|$)", path)
    if match:
        return match.group(0)
    return path.partition(".")[0] or ROOT


def report_tables(comparison: Comparison, *, exact: bool = False) -> list[Table]:
    """From the blocks to the operations around the first finding.

    Args:
      comparison: the source of the tables.
      exact: add the errors against float64.
    """
    tables = [_group_table(comparison, comparison.rows, "by block", block_of)]
    if comparison.findings:
        first = comparison.findings[0].row
        block = block_of(first.call.path)
        rows = [row for row in comparison.rows if block_of(row.call.path) == block]
        title = f"modules of {block}"
        tables.append(_group_table(comparison, rows, title, lambda path: path or ROOT))
        rows = comparison.rows[max(0, first.number - _AROUND) : first.number + _AROUND + 1]
        title = "operations around the first finding"
        tables.append(row_table(comparison, rows, title, exact=exact))
    return tables


def _group_table(
    comparison: Comparison, rows: Iterable[OperationRow], title: str, name: Callable[[str], str]
) -> Table:
    """Operations grouped by `name` of their modules' paths, in order of execution."""
    numbers = {finding.row.number for finding in comparison.findings}
    groups: dict[str, list[OperationRow]] = {}
    for row in rows:
        groups.setdefault(name(row.call.path), []).append(row)
    lines, ranks = [], []
    for key, group in groups.items():
        totals = [row.total.relative for row in group if row.total is not None] or [0.0]
        worst = max(group, key=local_ratio)
        count = sum(row.number in numbers for row in group)
        cells = (
            key, str(len(group)), number(max(totals)), number(totals[-1]), local_text(worst),
            worst.call.operation if worst.local is not None else "", str(count or ""),
        )  # fmt: skip
        lines.append(Line(cells, "differs" if count else ""))
        ranks.append((-count, -max(totals), len(ranks)))
    shown = sorted(rank[2] for rank in sorted(ranks)[:_MOST_GROUPS])
    headings = ("module", "operations", "total, worst", "total, at its end", "local, worst", "at")
    headings = (*headings, "findings")
    return Table(title=title, headings=headings, left=(0, 5), lines=lines, shown=shown)


def row_table(
    comparison: Comparison,
    rows: Iterable[OperationRow],
    title: str,
    *,
    exact: bool = False,
    shown: Sequence[int] | None = None,
) -> Table:
    """A line for every operation; `exact` adds the errors against float64."""
    numbers = {finding.row.number for finding in comparison.findings}
    backward = any(row.backward is not None for row in comparison.rows)
    columns = _ROW_COLUMNS | (_BACKWARD_COLUMN if backward else {})
    columns |= _EXACT_COLUMNS if exact else {}
    lines = [
        Line([cell(row) for cell in columns.values()], "differs" if row.number in numbers else "")
        for row in rows
    ]
    return Table(title=title, headings=[*columns], left=(0, 1), lines=lines, shown=shown)


def token_table(comparison: Comparison, word: Word = str) -> Table:
    """A line for every step of a language model."""
    columns: dict[str, Callable[[TokenStep], str]] = {
        "step": lambda s: str(s.step),
        "first": lambda s: word(s.first_token),
        "second": lambda s: word(s.second_token),
        "margin, first": lambda s: f"{s.first_margin:.3g}",
        "margin, second": lambda s: f"{s.second_margin:.3g}",
        "logits moved": lambda s: f"{s.moved:.3g}",
        "top-10 overlap": lambda s: f"{s.overlap:.0%}",
        "KL, nats": lambda s: f"{s.divergence:.1e}",
        "": lambda s: "equal" if s.agree else "benign tie" if s.tie else "differ",
    }
    lines = [
        Line(
            [cell(step) for cell in columns.values()],
            "" if step.agree or step.tie else "differs",
        )
        for step in comparison.steps[:_TOKENS]
    ]
    return Table(title="tokens", headings=[*columns], left=(1, 2, 8), lines=lines, shown=())


def gradient_table(comparison: Comparison, most: int) -> Table:
    """The gradients of the whole step with the largest errors relative to their thresholds."""
    worst = sorted(comparison.gradients, key=lambda one: -one.ratio)[:most]
    lines = [
        Line(
            [one.name, number(one.error), number(one.torch_error), number(one.bound)],
            "" if one.ok else "differs",
        )
        for one in worst
    ]
    title = f"gradients of the step against float64, the {len(lines)} largest errors"
    headings = ("gradient", "error", "float32 torch's", "allowed")
    return Table(
        title=title, headings=headings, left=(0,), lines=lines, shown=range(len(lines))[:8]
    )


def worst_rows(comparison: Comparison, most: int) -> list[OperationRow]:
    """The operations with the largest local errors for their thresholds, or total ones."""
    local = comparison.local_checked
    rows = [row for row in comparison.rows if (row.local if local else row.total) is not None]
    return sorted(rows, key=local_ratio if local else _total_ratio, reverse=True)[:most]


def _total_ratio(row: OperationRow) -> float:
    return row.total.relative / max(row.total_threshold, 1e-300) if row.total is not None else 0.0


def _place(row: OperationRow) -> str:
    side = " (first side only)" if row.second is None else ""
    return row.call.place + (" (second side only)" if row.first is None else side)


def _result_text(row: OperationRow) -> str:
    if not row.call.results:
        return ""
    return f"{row.call.results[0].dtype} {'×'.join(map(str, row.call.results[0].shape))}"


def local_text(row: OperationRow) -> str:
    """A local error, or the reason that it is missing."""
    if row.local is None:
        return "–"
    return "not comparable" if row.local.problem else number(row.local.error.worst)


_ROW_COLUMNS: dict[str, Callable[[OperationRow], str]] = {
    "operation": _place,
    "result": _result_text,
    "total": lambda row: number(row.total.relative) if row.total else "–",
    "inherited": lambda row: number(row.inherited),
    "local": local_text,
    "explained": lambda row: number(row.local.threshold) if row.local else "–",
}
_BACKWARD_COLUMN: dict[str, Callable[[OperationRow], str]] = {
    "backward": lambda row: number(row.backward.error.worst) if row.backward else "–",
}
_EXACT_COLUMNS: dict[str, Callable[[OperationRow], str]] = {
    "first − float64": lambda r: number(r.local.exact[0]) if r.local and r.local.exact else "–",
    "second − float64": lambda r: number(r.local.exact[1]) if r.local and r.local.exact else "–",
}

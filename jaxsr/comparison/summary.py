"""What every report shows: verdict, notes, and operations by block and module."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from jaxsr.comparison.calls import ROOT
from jaxsr.comparison.result import Comparison, Finding, Row
from jaxsr.comparison.statistics import SAMPLE
from jaxsr.comparison.tokens import in_words

_AROUND = 4  # operations shown before and after a finding

Word = Callable[[int], str]


def headline(comparison: Comparison) -> str:
    """The outcome in one sentence, as sure as the evidence is."""
    checked = f"{comparison.checked} operations"
    if comparison.findings:
        finding = comparison.findings[0]
        by = "" if comparison.local_checked else ", by figures and samples of their results"
        return (
            f"DIFFER: first found among {checked} checked{by}: {finding.row.call.place}: "
            f"{finding.text}"
        )
    if not comparison.agree:
        where = comparison.divergence
        what = (
            f"the tokens part at step {where.step}"
            if where is not None and not where.tie
            else "the results differ by more than rounding explains"
        )
        return f"DIFFER: {what}, though none of {checked} checked was found wrong by itself"
    verb = "errs" if comparison.local_checked else "parts"
    return f"AGREE: none of {checked} checked {verb} by more than rounding explains"


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know to judge the figures."""
    lines = []
    if comparison.local_checked:
        lines.append(
            f"local errors: {comparison.checked_locally} operations of the second side, each run "
            "alone on the first side's inputs; a fused program may round otherwise"
        )
    else:
        lines.append(
            "no local errors: stored traces cannot run an operation again. What stands here is the "
            f"total error, from figures and up to {SAMPLE} sampled elements of each result; "
            "`jaxsr.compare engines` runs both sides and takes local errors"
        )
    for header in (comparison.first, comparison.second):
        name = header["side_short"]
        if header["recorder_difference"]:
            lines.append(f"{name}: {header['recorder']}")
        platform = str(header["device"]).partition(":")[0]
        if "precision=default" in header["side"] and platform in ("tpu", "gpu", "cuda"):
            lines.append(
                f"{name}: float32 products at default precision, which on {platform} are computed "
                "in a narrower dtype: the likeliest reason for a difference; use precision=highest"
            )
        if "precision=bfloat16" in header["side"]:
            lines.append(
                f"{name}: operands of float32 products are rounded to bfloat16, as a TPU does by "
                "default"
            )
    if comparison.local_checked and comparison.outputs_above and not comparison.findings:
        lines.append(
            "the results differ by more than the runs' rounding should add up to, and no operation "
            "by itself does: look for what the compiler fuses, or for an ill-conditioned model"
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


def token_lines(comparison: Comparison, word: Word = str) -> list[str]:
    """What the language model's logits say."""
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


@dataclass(frozen=True, kw_only=True)
class Group:
    """Operations of one block or module."""

    name: str
    rows: tuple[Row, ...]
    findings: int

    @property
    def total(self) -> float:
        return max((row.total.relative for row in self.rows if row.total is not None), default=0.0)

    @property
    def local(self) -> Row | None:
        """The row whose local error is largest for its threshold."""
        rows = [row for row in self.rows if row.local is not None]
        return max(rows, key=local_ratio, default=None)

    @property
    def last(self) -> float:
        """Total error where the group ends."""
        rows = [row for row in self.rows if row.total is not None]
        return rows[-1].total.relative if rows and rows[-1].total else 0.0


def local_ratio(row: Row) -> float:
    """Local error over what rounding explains."""
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


def blocks(comparison: Comparison) -> list[Group]:
    """All operations by block, in order of their first execution."""
    return _grouped(comparison, comparison.rows, block_of)


def modules(comparison: Comparison, block: str) -> list[Group]:
    """The operations of one block by module."""
    rows = [row for row in comparison.rows if block_of(row.call.path) == block]
    return _grouped(comparison, rows, lambda path: path or ROOT)


def _grouped(
    comparison: Comparison, rows: Iterable[Row], name: Callable[[str], str]
) -> list[Group]:
    numbers = {finding.row.number for finding in comparison.findings}
    members: dict[str, list[Row]] = {}
    for row in rows:
        members.setdefault(name(row.call.path), []).append(row)
    return [
        Group(name=key, rows=tuple(group), findings=sum(row.number in numbers for row in group))
        for key, group in members.items()
    ]


def around(comparison: Comparison, finding: Finding) -> list[Row]:
    """The operations before and after a finding."""
    number = finding.row.number
    return comparison.rows[max(0, number - _AROUND) : number + _AROUND + 1]


def worst_rows(comparison: Comparison, most: int) -> list[Row]:
    """The operations with the largest local errors for their thresholds, or total ones."""
    if comparison.local_checked:
        rows = [row for row in comparison.rows if row.local is not None]
        return sorted(rows, key=local_ratio, reverse=True)[:most]
    rows = [row for row in comparison.rows if row.total is not None]
    return sorted(rows, key=_total_ratio, reverse=True)[:most]


def _total_ratio(row: Row) -> float:
    return row.total.relative / max(row.total_threshold, 1e-300) if row.total is not None else 0.0


def group_texts(group: Group) -> tuple[str, ...]:
    """A block's or module's line in a table."""
    local = group.local
    return (
        group.name,
        str(len(group.rows)),
        number(group.total),
        number(group.last),
        "–" if local is None else local_text(local),
        "" if local is None else local.call.operation,
    )


def row_texts(row: Row) -> tuple[str, ...]:
    """An operation's line in a table."""
    call = row.call
    result = call.results[0] if call.results else None
    shape = "×".join(map(str, result.shape)) if result else ""
    side = ""
    if row.second is None:
        side = " (first side only)"
    elif row.first is None:
        side = " (second side only)"
    return (
        call.place + side,
        f"{result.dtype} {shape}" if result else "",
        "–" if row.total is None else number(row.total.relative),
        number(row.inherited),
        "–" if row.local is None else local_text(row),
        "–" if row.local is None else number(row.local.threshold),
    )


def local_text(row: Row) -> str:
    """A local error, or why there is none."""
    local = row.local
    if local is None:
        return "–"
    return "not comparable" if local.problem else number(local.error.worst)


def number(value: float) -> str:
    """A scale-free error."""
    return "0" if value == 0 else f"{value:.1e}" if np.isfinite(value) else "∞"

"""Error against depth: one column per operation, a logarithmic scale; drawn by the page's template.

Depth runs from left to right in order of execution. The lines are total errors, the dots local
errors and findings.
"""

import math
from collections.abc import Callable, Sequence

from jaxsr.comparison.report import Drawing, Mark, number
from jaxsr.comparison.result import Comparison, OperationRow
from jaxsr.comparison.summary import block_of, local_ratio

WIDTH, HEIGHT = 806, 274
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 34, 46
_DOTS = 1500  # the largest ones are drawn; more would make the page slow
_COLUMNS = 1000  # points of a line; of more operations the worst in each column is drawn
_CEILING = 10.0
_CHARACTER_PX = 5.6


class _Axes:
    def __init__(self, rows: Sequence[OperationRow]) -> None:
        errors = [e for row in rows for e in _errors(row) if 0 < e < math.inf]
        # The lowest decade is below every error that is not 0, and stands for 0.
        self.low = math.ceil(math.log10(max(min(errors, default=1e-8), 1e-10))) - 2
        self.px = (WIDTH - _LEFT - _RIGHT) / max(len(rows), 2)

    def x(self, place: float) -> float:
        return round(_LEFT + (place + 0.5) * self.px, 1)

    def y(self, value: float) -> float:
        top = math.log10(_CEILING)
        share = (top - math.log10(min(max(value, 10.0**self.low), _CEILING))) / (top - self.low)
        return round(_TOP + share * (HEIGHT - _TOP - _BOTTOM), 1)


def _errors(row: OperationRow) -> list[float]:
    total = [row.total.relative] if row.total is not None else []
    return [*(row.exact or ()), *total, *([row.local.error.worst] if row.local else [])]


def draw_depth(
    comparison: Comparison,
    rows: Sequence[OperationRow],
    *,
    title: str,
    name: Callable[[str], str] = block_of,
) -> Drawing:
    """The rows' errors against their order.

    Args:
      comparison: the source of the rows.
      rows: in order of execution.
      title: stands above the drawing.
      name: path of a module → name of the stripe that its operations stand on.
    """
    axes = _Axes(rows)
    numbers = {finding.row.number for finding in comparison.findings}
    suspects = [place for place, row in enumerate(rows) if row.number in numbers]
    local = [
        (place, row.local.error.worst)
        for place, row in enumerate(rows)
        if row.local is not None and row.local.error.worst > 0 and row.number not in numbers
    ]
    largest = sorted(local, key=lambda error: -local_ratio(rows[error[0]]))[:_DOTS]
    dots = [
        Mark("local", axes.x(p), axes.y(e), f"{rows[p].call.place}: local {number(e)}")
        for p, e in sorted(largest)
    ]
    dots += [Mark("suspect", axes.x(p), _height(axes, rows[p]), rows[p].call.place)
             for p in suspects]  # fmt: skip
    first = None
    if suspects:
        anchor = "end" if suspects[0] > 0.6 * len(rows) else "start"
        first = Mark(anchor, axes.x(suspects[0]), _TOP + 12, rows[suspects[0]].call.place)
    bands, labels = _blocks(axes, rows, name)
    return Drawing(
        title=title,
        ticks=[
            Mark("", _LEFT, axes.y(10.0**d), "0" if d == axes.low else f"1e{d}")
            for d in range(axes.low, 2, 2)
        ],
        bands=bands,
        labels=labels,
        steps=[
            Mark("", axes.x(place - 0.5), _TOP - 4, f"step {row.step}")
            for place, row in enumerate(rows)
            if place and row.step != rows[place - 1].step
        ],
        lines=[
            (kind, _path(axes, rows, value))
            for kind, value in (
                ("limit", lambda r: r.total_threshold if r.total else None),
                ("exact1", lambda r: r.exact[0] if r.exact else None),
                ("exact2", lambda r: r.exact[1] if r.exact else None),
                ("total", lambda r: r.total.relative if r.total else None),
            )
        ],
        dots=dots,
        first=first,
    )


def _height(axes: _Axes, row: OperationRow) -> float:
    if row.local is not None:
        return axes.y(row.local.error.worst)
    return axes.y(row.total.relative if row.total is not None else _CEILING)


def _path(
    axes: _Axes, rows: Sequence[OperationRow], value: Callable[[OperationRow], float | None]
) -> str:
    """A line through the worst of each column, with gaps where nothing differs."""
    worst: dict[int, tuple[float, int]] = {}
    for place, row in enumerate(rows):
        error = value(row)
        if error is not None:
            column = place * _COLUMNS // len(rows) if len(rows) > _COLUMNS else place
            worst[column] = max(worst.get(column, (0.0, 0)), (error, place))
    path, pen = "", "M"
    for error, place in worst.values():
        # Two ends, so that a value between two gaps is seen.
        if error > 0:
            y = axes.y(error)
            path += f"{pen}{axes.x(place - 0.2)} {y}L{axes.x(place + 0.2)} {y}"
        pen = "L" if error > 0 else "M"
    return path


def _blocks(
    axes: _Axes, rows: Sequence[OperationRow], name_of: Callable[[str], str]
) -> tuple[list[Mark], list[Mark]]:
    """A stripe for every second block, and the names of blocks with enough room."""
    spans: list[tuple[str, int, int]] = []
    for place, row in enumerate(rows):
        name = name_of(row.call.path)
        first = spans.pop()[1] if spans and spans[-1][0] == name else place
        spans.append((name, first, place))
    bands, labels, free = [], [], 0.0
    for index, (name, first, last) in enumerate(spans):
        width = (last - first + 1) * axes.px
        if index % 2:
            bands.append(Mark("", axes.x(first - 0.5), _TOP, name, round(width, 1)))
        short = name if len(name) < 15 else name.partition(".")[2] or name
        short = short if len(short) < 15 else "…" + short[-13:]
        middle, half = axes.x((first + last) / 2), _CHARACTER_PX * len(short) / 2
        if width > 12 and middle - half > free:
            labels.append(Mark("", middle, HEIGHT - _BOTTOM + 14, short))
            free = middle + half + 6
    return bands, labels

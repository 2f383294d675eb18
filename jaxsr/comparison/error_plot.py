"""Error against depth as an SVG drawing: one column per operation, a logarithmic scale.

Depth runs from left to right in order of execution. The line is the total error, each dot a local
one; what was found stands out. Every dot says in its title which operation it is.
"""

import math
from collections.abc import Callable, Sequence
from html import escape

from jaxsr.comparison.result import Comparison, Row
from jaxsr.comparison.summary import block_of, local_ratio, number

_WIDTH, _HEIGHT = 1120, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 30, 54
_DOTS = 1500  # dots drawn at most, the most telling ones; more make the page slow and say no more
_CROWDED_PX = 4
_CEILING = 10.0


class _Scale:
    def __init__(self, count: int, low: float) -> None:
        # The lowest decade is below every error that is not 0, and stands for 0.
        self._count, self._low = max(count, 2), math.ceil(math.log10(low)) - 2
        self._high = math.log10(_CEILING)

    def x(self, position: float) -> float:
        return _LEFT + (position + 0.5) / self._count * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        log = math.log10(min(max(value, 10**self._low), _CEILING))
        share = (log - self._low) / (self._high - self._low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    @property
    def decades(self) -> range:
        return range(self._low, int(self._high) + 1)


def draw_depth(
    comparison: Comparison,
    rows: Sequence[Row],
    *,
    title: str,
    name: Callable[[str], str] = block_of,
) -> str:
    """The rows' errors against their order, as an `<svg>` element.

    Args:
      comparison: what the rows are of.
      rows: in order of execution.
      title: stands above the drawing.
      name: path of a module → name of the stripe that its operations stand on.
    """
    seen = [r.total.relative for r in rows if r.total is not None and r.total.relative > 0]
    seen += [r.local.error.worst for r in rows if r.local is not None and r.local.error.worst > 0]
    seen += [value for r in rows for value in r.exact or () if value is not None and value > 0]
    finite = [value for value in seen if math.isfinite(value)]
    scale = _Scale(len(rows), max(min(finite, default=1e-8), 1e-10))
    found = {finding.row.number for finding in comparison.findings}
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_bands(rows, scale, name),
        *_grid(scale),
        _line(rows, scale, "threshold", lambda r: r.total_threshold if r.total else None),
        _line(rows, scale, "total", lambda r: r.total.relative if r.total else None),
    ]
    if any(row.exact is not None for row in rows):
        for side, kind in enumerate(("exact-first", "exact-second")):
            parts.append(
                _line(rows, scale, kind, lambda r, k=side: r.exact[k] if r.exact else None)
            )
    parts += _dots(rows, scale, found)
    parts += _found(rows, scale, found)
    parts.append(f'<text class="title" x="{_LEFT}" y="18">{escape(title)}</text></svg>')
    return "".join(parts)


def _bands(rows: Sequence[Row], scale: _Scale, name_of: Callable[[str], str]) -> list[str]:
    """A stripe for every block, named where there is room."""
    spans: list[tuple[str, int, int]] = []
    for position, row in enumerate(rows):
        name = name_of(row.call.path)
        if spans and spans[-1][0] == name:
            spans[-1] = (name, spans[-1][1], position)
        else:
            spans.append((name, position, position))
    parts, free = [], 0.0
    bottom = _HEIGHT - _BOTTOM
    for index, (name, start, end) in enumerate(spans):
        left, right = scale.x(start - 0.5), scale.x(end + 0.5)
        if index % 2:
            parts.append(
                f'<rect class="band" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" '
                f'height="{bottom - _TOP}"/>'
            )
        short = name if len(name) < 15 else name.partition(".")[2] or name
        short = short if len(short) < 15 else "…" + short[-13:]
        middle = (left + right) / 2
        needed = 5.6 * len(short)
        if right - left > 12 and middle - needed / 2 > free:
            parts.append(
                f'<text class="block" x="{middle:.1f}" y="{bottom + 16}">{escape(short)}</text>'
            )
            free = middle + needed / 2 + 6
    steps = [p for p in range(1, len(rows)) if rows[p].step != rows[p - 1].step]
    for position in steps:
        x = scale.x(position - 0.5)
        parts.append(f'<line class="step" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(
            f'<text class="axis" x="{x + 4:.1f}" y="{_TOP + 10}">step {rows[position].step}</text>'
        )
    return parts


def _grid(scale: _Scale) -> list[str]:
    parts = []
    for decade in scale.decades:
        y = scale.y(10.0**decade)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        if decade % 2 == 0 or len(scale.decades) < 7 or decade == scale.decades[0]:
            text = f"1e{decade}" if decade > scale.decades[0] else "0"
            parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}">{text}</text>')
    middle = (_HEIGHT - _BOTTOM + _TOP) / 2
    parts.append(
        f'<text class="axis" transform="translate(14 {middle}) rotate(-90)" '
        'text-anchor="middle">relative error</text>'
    )
    parts.append(
        f'<text class="axis" x="{(_WIDTH + _LEFT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">'
        "operations in order of execution</text>"
    )
    return parts


def _line(
    rows: Sequence[Row], scale: _Scale, kind: str, value: Callable[[Row], float | None]
) -> str:
    # Where operations are crowded, the worst of a few pixels' width stands for them; where nothing
    # differs there is a gap, not a plunge to the bottom of a logarithmic scale.
    worst: dict[int, tuple[float, float]] = {}
    for position, row in enumerate(rows):
        y = value(row)
        if y is not None:
            x = scale.x(position)
            place = position if len(rows) < _WIDTH else round(x / _CROWDED_PX)
            worst[place] = max(worst.get(place, (0.0, 0.0)), (y, x))
    pieces: list[list[str]] = [[]]
    for y, x in worst.values():
        if y > 0:
            pieces[-1].append(f"{x:.1f},{scale.y(y):.1f}")
        elif pieces[-1]:
            pieces.append([])
    drawn = [p if len(p) > 1 else [*p, *p] for p in pieces if p]
    return "".join(f'<polyline class="{kind}" points="{" ".join(piece)}"/>' for piece in drawn)


def _dots(rows: Sequence[Row], scale: _Scale, found: set[int]) -> list[str]:
    places = [(p, row) for p, row in enumerate(rows) if row.local is not None]
    if len(places) > _DOTS:
        places = sorted(places, key=lambda place: -local_ratio(place[1]))[:_DOTS]
    parts = []
    for position, row in places:
        local = row.local
        assert local is not None
        if row.number in found or local.error.worst == 0:
            continue
        words = f"{row.call.place}: local {number(local.error.worst)}"
        parts.append(
            f'<circle class="local" cx="{scale.x(position):.1f}" '
            f'cy="{scale.y(local.error.worst):.1f}" r="2.2"><title>{escape(words)}</title></circle>'
        )
    return parts


def _found(rows: Sequence[Row], scale: _Scale, found: set[int]) -> list[str]:
    parts, first = [], True
    for position, row in enumerate(rows):
        if row.number not in found:
            continue
        x = scale.x(position)
        if row.local is not None:
            y = scale.y(row.local.error.worst)
        else:
            y = scale.y(row.total.relative if row.total is not None else _CEILING)
        if first:
            bottom = _HEIGHT - _BOTTOM
            parts.append(
                f'<line class="suspect" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
            )
            side = "end" if x > _WIDTH * 0.6 else "start"
            shift = -8 if side == "end" else 8
            parts.append(
                f'<text class="suspect-name" x="{x + shift:.1f}" y="{_TOP + 42}" '
                f'text-anchor="{side}">{escape(row.call.place)}</text>'
            )
            first = False
        parts.append(
            f'<circle class="suspect" cx="{x:.1f}" cy="{y:.1f}" r="4.5">'
            f"<title>{escape(row.call.place)}</title></circle>"
        )
    return parts

"""Error against depth, drawn with matplotlib: one column per operation, a logarithmic scale.

Depth runs from left to right in order of execution. The lines are total errors; the dots, local
errors and findings, are placed by the page's template, so that each can name its operation in a
tooltip.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxsr.comparison.result import Comparison, Row
from jaxsr.comparison.summary import block_of, local_ratio, number
from jaxsr.metrics.plot import as_svg, new_figure

_INCHES = (11.2, 3.8)
_PX_PER_INCH = 72
_DOTS = 1500  # the largest ones are drawn; more would make the page slow
_COLUMNS = 1000  # points of a line; of more operations the worst in each column is drawn
_CEILING = 10.0
_CHARACTER_PX = 5.6

# Colours of the page's style sheet, by what stands for them in matplotlib.
_INK, _LINE, _BAND = "#000001", "#000002", "#000003"
_TOTAL, _LIMIT, _BAD = "#000004", "#000005", "#000006"
_EXACT, _PAPER = ("#000007", "#000008"), "#000009"
_VARIABLES = {
    _INK: "--soft", _LINE: "--line", _BAND: "--band", _TOTAL: "--total", _LIMIT: "--limit",
    _BAD: "--bad", _EXACT[0]: "--exact1", _EXACT[1]: "--exact2",
    _PAPER: "--paper",
}  # fmt: skip


@dataclass(frozen=True)
class Dot:
    """A circle over the drawing."""

    kind: str
    """`local` or `suspect`."""
    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Drawing:
    """An SVG element in parts: the template puts the dots before its closing tag."""

    svg: str
    """Everything but `</svg>`."""
    dots: list[Dot]


def draw_depth(
    comparison: Comparison,
    rows: Sequence[Row],
    *,
    title: str,
    name: Callable[[str], str] = block_of,
) -> Drawing:
    """The rows' errors against their order.

    Args:
      comparison: what the rows are of.
      rows: in order of execution.
      title: stands above the drawing.
      name: path of a module → name of the stripe that its operations stand on.
    """
    low = math.ceil(math.log10(max(min(_positive_errors(rows), default=1e-8), 1e-10))) - 2
    figure = new_figure(*_INCHES)
    axes = figure.add_subplot()
    # The lowest decade is below every error that is not 0, and stands for 0.
    axes.set(xlim=(-0.5, max(len(rows), 2) - 0.5), ylim=(10.0**low, _CEILING), yscale="log")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK)
    axes.set_ylabel("relative error", color=_INK)
    axes.set_xlabel("operations in order of execution", color=_INK, labelpad=18)
    axes.set_xticks([])
    decades = range(low, 2, 2)
    labels = ["0" if decade == low else f"1e{decade}" for decade in decades]
    axes.set_yticks([10.0**decade for decade in decades], labels, color=_INK)
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.grid(axis="y", color=_LINE, clip_on=False)
    axes.spines[:].set_visible(False)
    for line, colour, style, value in (
        ("threshold", _LIMIT, "--", lambda r: r.total_threshold if r.total else None),
        ("exact-first", _EXACT[0], "-", lambda r: r.exact[0] if r.exact else None),
        ("exact-second", _EXACT[1], "-", lambda r: r.exact[1] if r.exact else None),
        ("total", _TOTAL, "-", lambda r: r.total.relative if r.total else None),
    ):
        x, y = _column_maxima(rows, value, 10.0**low)
        axes.plot(x, y, style, color=colour, linewidth=1.2, clip_on=False, gid=line)
    numbers = {finding.row.number for finding in comparison.findings}
    suspects = [place for place, row in enumerate(rows) if row.number in numbers]
    for place in suspects[:1]:
        axes.axvline(place, color=_BAD, linewidth=1, clip_on=False)
        shift, align = (-8, "right") if place > 0.6 * len(rows) else (8, "left")
        axes.annotate(
            rows[place].call.place, (place, _CEILING), xytext=(shift, -14), ha=align, color=_BAD,
            textcoords="offset points", fontweight="bold",
            bbox={"facecolor": _PAPER, "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    for place in range(1, len(rows)):
        if rows[place].step != rows[place - 1].step:
            axes.axvline(place - 0.5, color=_LIMIT, linestyle=":", linewidth=1, clip_on=False)
            label = f"step {rows[place].step}"
            axes.text(place, _CEILING, label, color=_INK, va="bottom", fontsize=8)
    figure.draw_without_rendering()  # fixes the layout
    figure.set_layout_engine("none")
    _draw_bands(axes, rows, name)

    def at(place: int, value: float) -> tuple[float, float]:
        x, y = axes.transData.transform((place, min(max(value, 10.0**low), _CEILING)))
        scale = _PX_PER_INCH / figure.dpi
        return round(x * scale, 1), round(_INCHES[1] * _PX_PER_INCH - y * scale, 1)

    dots = [
        Dot("local", *at(place, error), f"{rows[place].call.place}: local {number(error)}")
        for place, error in _largest_local(rows)
        if place not in suspects
    ]
    dots += [Dot("suspect", *at(p, _height(rows[p])), rows[p].call.place) for p in suspects]
    return Drawing(_for_page(as_svg(figure)), dots)


def _positive_errors(rows: Sequence[Row]) -> Iterator[float]:
    for row in rows:
        errors = [*(row.exact or ())]
        errors += [row.total.relative] if row.total is not None else []
        errors += [row.local.error.worst] if row.local is not None else []
        yield from (error for error in errors if 0 < error < math.inf)


def _height(row: Row) -> float:
    if row.local is not None:
        return row.local.error.worst
    return row.total.relative if row.total is not None else _CEILING


def _column_maxima(
    rows: Sequence[Row], value: Callable[[Row], float | None], lowest: float
) -> tuple[list[float], list[float]]:
    """Places and values of a line: the worst of each column, with gaps where nothing differs."""
    worst: dict[int, tuple[float, float]] = {}
    for place, row in enumerate(rows):
        error = value(row)
        if error is not None:
            column = place * _COLUMNS // len(rows) if len(rows) > _COLUMNS else place
            worst[column] = max(worst.get(column, (0.0, 0.0)), (error, float(place)))
    x: list[float] = []
    y: list[float] = []
    for error, place in worst.values():
        clipped = min(max(error, lowest), _CEILING) if error > 0 else math.nan
        # Two ends, so that a value between two gaps is seen.
        x += [place - 0.2, place + 0.2]
        y += [clipped, clipped]
    return x, y


def _largest_local(rows: Sequence[Row]) -> list[tuple[int, float]]:
    errors = [
        (place, row.local.error.worst)
        for place, row in enumerate(rows)
        if row.local is not None and row.local.error.worst > 0
    ]
    return sorted(sorted(errors, key=lambda error: -local_ratio(rows[error[0]]))[:_DOTS])


def _draw_bands(axes: Any, rows: Sequence[Row], name_of: Callable[[str], str]) -> None:
    """A stripe for every block, named where there is room."""
    spans: list[tuple[str, int, int]] = []
    for place, row in enumerate(rows):
        name = name_of(row.call.path)
        first = spans.pop()[1] if spans and spans[-1][0] == name else place
        spans.append((name, first, place))
    px_per_row = axes.get_window_extent().width * _PX_PER_INCH / axes.figure.dpi / len(rows)
    free = -0.5
    for index, (name, first, last) in enumerate(spans):
        if index % 2:
            axes.axvspan(first - 0.5, last + 0.5, color=_BAND, zorder=-1, clip_on=False)
        short = name if len(name) < 15 else name.partition(".")[2] or name
        short = short if len(short) < 15 else "…" + short[-13:]
        middle, half = (first + last) / 2, _CHARACTER_PX * len(short) / px_per_row / 2
        if (last - first + 1) * px_per_row > 12 and middle - half > free:
            axes.annotate(
                short, (middle, 0), xycoords=("data", "axes fraction"), xytext=(0, -12),
                textcoords="offset points", ha="center", fontsize=8, color=_INK,
            )  # fmt: skip
            free = middle + half + 6 / px_per_row


def _for_page(svg: str) -> str:
    """The drawing as an element of a page: no names of other files, the page's colours."""
    svg = svg[svg.index("<svg") : svg.rindex("</svg>")]
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>.*?</defs>", "", svg, flags=re.S)
    svg = re.sub(r' (xmlns(:\w+)?|width|height|version)="[^"]*"', "", svg)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, f"var({variable})")
    return svg

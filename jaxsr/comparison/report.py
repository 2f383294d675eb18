"""The output of all commands of this package: one layout, as text and as one HTML page.

The verdict comes first. The page needs nothing else: no script, no font, no network.
"""

import io
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

WIDTH = 100
"""Columns where the output is a file or a pipe, which has no width."""

Style = Literal["ok", "differs", "failed", "refused", "skipped", ""]
_COLOURS = {"ok": "green", "differs": "bold red", "failed": "bold red", "refused": "yellow",
            "skipped": "dim"}  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """A place of the drawing, and the text there."""

    kind: str
    x: float
    y: float
    text: str
    width: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Everything in pixels of a drawing (`error_plot.py`)."""

    title: str
    ticks: list[Mark]
    bands: list[Mark]
    """A stripe for every second block."""
    labels: list[Mark]
    steps: list[Mark]
    """Where a step begins."""
    lines: list[tuple[str, str]]
    """Class and path of each."""
    dots: list[Mark]
    first: Mark | None
    """The first finding."""


@dataclass(frozen=True)
class Line:
    """One line of a table."""

    cells: Sequence[str]
    style: Style = ""
    colour: str = ""
    """CSS colour of a swatch in front of it."""
    depth: int = 0
    """Steps by which it is indented."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a report."""

    title: str
    headings: Sequence[str]
    left: Sequence[int]
    """Columns that are aligned left."""
    lines: Sequence[Line]
    shown: Sequence[int] | None = None
    """Lines that the text shows; none leaves the table to the page. Default: all."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that is printed."""

    title: str
    status: Style
    headline: str
    """The verdict, in one sentence."""
    lines: Sequence[str]
    """The compared sides and the lines above the tables."""
    tables: Sequence[Table]
    findings: Sequence[str] = ()
    """Each with its place; the headline has the first already."""
    notes: Sequence[str] = ()
    sides: Sequence[tuple[str, dict[str, str]]] = ()
    """For the page: a box with the facts of each side."""
    key: Sequence[tuple[str, bool, str]] = ()
    """Legend of the drawings: colour, whether it is a dot, and meaning."""
    drawings: Sequence[Drawing] = ()


_MOST_FINDINGS = 5


def print_report(report: Report, *, file: io.TextIOBase | None = None) -> None:
    """Prints it as text; in colour on a terminal."""
    from rich.console import Console
    from rich.table import Table as Grid

    plain = file is not None or not sys.stdout.isatty()
    console = Console(width=WIDTH if plain else None, highlight=False, file=file)  # type: ignore[arg-type]
    say = partial(console.print, markup=False)
    say(f"{report.title}: {report.headline}", style=_COLOURS.get(report.status))
    for line in report.lines:
        say(line)
    for table in report.tables:
        shown = table.lines if table.shown is None else [table.lines[k] for k in table.shown]
        if not shown:
            continue
        left_out = len(table.lines) - len(shown)
        title = table.title + (f" ({left_out} smaller ones left out)" if left_out else "")
        grid = Grid(title=title, title_justify="left", box=None, pad_edge=False)
        for column, heading in enumerate(table.headings):
            justify, overflow = ("left" if column in table.left else "right"), "fold"
            grid.add_column(heading, justify=justify, overflow=overflow)  # type: ignore[arg-type]
        for line in shown:
            grid.add_row(*line.cells, style=_COLOURS.get(line.style))
        console.print(grid)
    for finding in report.findings[1 : 1 + _MOST_FINDINGS]:
        say(f"also found: {finding}")
    if (more := len(report.findings) - 1 - _MOST_FINDINGS) > 0:
        say(f"and {more} more (see the JSON)")
    for note in report.notes:
        say(f"note: {note}")


def as_text(report: Report) -> str:
    """The report as plain text."""
    buffer = io.StringIO()
    print_report(report, file=buffer)
    return buffer.getvalue().rstrip()


def html_page(report: Report) -> str:
    """The page's source."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("jaxsr.comparison", "."), autoescape=True)
    return environment.get_template("report.html.jinja").render(report=report)


def number(value: float) -> str:
    """An error, in two digits."""
    return "0" if value == 0 else f"{value:.1e}" if math.isfinite(value) else "∞"


def finite(value: Any) -> Any:
    """Plain data as JSON can say it, which has no infinity and no NaN."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

"""The output of all commands of this package, as text and as one HTML page.

The verdict comes first. The page needs no script, font or network.
"""

import io
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

WIDTH = 100
"""Columns of the text if the output is a file or a pipe, which has no width."""
_LONGEST_WORD = 20
"""Longest word of a table, in characters, that a narrow terminal leaves whole."""

Style = Literal["ok", "differs", "failed", "refused", "skipped", ""]
_COLOURS = {"ok": "green", "differs": "bold red", "failed": "bold red", "refused": "yellow",
            "skipped": "dim"}  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """A position in the drawing, and its text."""

    kind: str
    x: float
    y: float
    text: str
    width: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Content of a drawing in pixels (`error_plot.py`)."""

    title: str
    ticks: list[Mark]
    bands: list[Mark]
    """Stripes for every second block."""
    labels: list[Mark]
    steps: list[Mark]
    """Positions where steps begin."""
    lines: list[tuple[str, str]]
    """Class and path of each line."""
    dots: list[Mark]
    first: Mark | None
    """The first finding."""


@dataclass(frozen=True)
class Line:
    """One line of a table."""

    cells: Sequence[str]
    style: Style = ""
    colour: str = ""
    """CSS colour of the swatch before the line."""
    depth: int = 0
    """Steps of indentation."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a report."""

    title: str
    headings: Sequence[str]
    left: Sequence[int]
    """Columns that are left-aligned."""
    lines: Sequence[Line]
    shown: Sequence[int] | None = None
    """Lines that the text shows; if empty, only the page has the table. Default: all."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that is printed."""

    title: str
    status: Style
    headline: str
    """The verdict, in one sentence."""
    lines: Sequence[str]
    """The compared sides and other lines above the tables."""
    tables: Sequence[Table]
    findings: Sequence[str] = ()
    """Findings with their places; the first is also in the headline."""
    notes: Sequence[str] = ()
    sides: Sequence[tuple[str, dict[str, str]]] = ()
    """For the page: a box with the facts of each side."""
    key: Sequence[tuple[str, bool, str]] = ()
    """Legend of the drawings: colour, whether it is a dot, and meaning."""
    drawings: Sequence[Drawing] = ()


_MOST_FINDINGS = 5


def print_report(report: Report, *, file: io.TextIOBase | None = None) -> None:
    """Prints the report as text, in colour on a terminal."""
    from rich.table import Table as Grid

    from jaxsr.interop.plain_console import PlainConsole

    plain = file is not None or not sys.stdout.isatty()
    console = PlainConsole(width=WIDTH if plain else None, file=file)
    say = console.print
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
            texts = [heading, *(line.cells[column] for line in shown)]
            word = max(len(part) for text in texts for part in text.split() or [""])
            grid.add_column(
                heading,
                justify="left" if column in table.left else "right",
                overflow="fold",
                no_wrap=word == max(map(len, texts)) and word <= _LONGEST_WORD,
                min_width=word if word <= _LONGEST_WORD else None,
            )
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
    """Returns the report as plain text."""
    buffer = io.StringIO()
    print_report(report, file=buffer)
    return buffer.getvalue().rstrip()


def html_page(report: Report) -> str:
    """Returns the source of the page."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("jaxsr.comparison", "."), autoescape=True)
    return environment.get_template("report.html.jinja").render(report=report)


def number(value: float) -> str:
    """Formats an error in two digits."""
    return "0" if value == 0 else f"{value:.1e}" if math.isfinite(value) else "∞"


def finite(value: Any) -> Any:
    """Replaces infinity and NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

"""A comparison as tables on the terminal, and as JSON."""

import sys
from typing import Any

import numpy as np

from jaxsr.comparison.result import Comparison, Row
from jaxsr.comparison.summary import Word, headline, notes, report_tables, token_lines

_PLAIN_WIDTH = 150  # columns where the output is a file or a pipe, which has no width
_MOST = 40  # rows of a table on the terminal


def print_report(comparison: Comparison, *, word: Word = str) -> None:
    """The headline, the path from block to operation, tokens and notes."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False)

    names = [header["side_short"] for header in (comparison.first, comparison.second)]
    devices = [header["device"] for header in (comparison.first, comparison.second)]
    say(f"first side: {names[0]} ({devices[0]}); second side: {names[1]} ({devices[1]})")
    say(headline(comparison), "bold green" if comparison.agree else "bold red")

    for table in report_tables(comparison, most=_MOST):
        grid = Table(title=table.title)
        for column, heading in enumerate(table.headings):
            grid.add_column(heading, justify="left" if column in table.left else "right")
        for finding, cells in table.lines:
            grid.add_row(*cells, style="red" if finding else None)
        console.print(grid)
    for other in comparison.findings[1:6]:
        say(f"also found: {other.row.call.place}: {other.text}")
    if len(comparison.findings) > 6:
        say(f"and {len(comparison.findings) - 6} more (see the JSON)")
    for line in (*token_lines(comparison, word), *notes(comparison)):
        say(line)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything, for a file."""
    return {
        "agree": comparison.agree,
        "headline": headline(comparison),
        "notes": notes(comparison),
        "first": comparison.first,
        "second": comparison.second,
        "checked": comparison.checked,
        "checked_locally": comparison.checked_locally,
        "compared_steps": comparison.compared_steps,
        "findings": [
            {"kind": f.kind, "place": f.row.call.place, "said": f.text, "row": f.row.number}
            for f in comparison.findings
        ],
        "outputs": [pair.as_row() for pair in comparison.outputs],
        "outputs_threshold": comparison.outputs_threshold,
        "tokens": [step.as_row() for step in comparison.steps],
        "weights": [[name, _finite(value)] for name, value in comparison.weights],
        "operations": [_row_json(row) for row in comparison.rows],
    }


def _row_json(row: Row) -> dict[str, Any]:
    call = row.call
    entry: dict[str, Any] = {
        "number": row.number,
        "step": row.step,
        "path": call.path,
        "operation": call.operation,
        "nth": call.nth,
        "sides": "both" if row.first and row.second else "first" if row.first else "second",
        "results": [[list(r.shape), r.dtype] for r in call.results],
    }
    if row.total is not None:
        entry["total"] = row.total.as_row() | {
            "threshold": row.total_threshold,
            "inherited": _finite(row.inherited),
        }
    if row.exact is not None:
        entry["total_against_float64"] = [_finite(value) for value in row.exact]
    if row.local is not None:
        local = row.local
        entry["local"] = local.error.as_row() | {
            "threshold": local.threshold,
            "raised_by_trial": local.tried,
            "above": local.above,
            "problem": local.problem,
        }
        if local.first_exact is not None and local.second_exact is not None:
            errors = (local.first_exact, local.second_exact)
            entry["local_against_float64"] = [_finite(value) for value in errors]
    return entry


def _finite(value: float) -> float | str:
    return value if np.isfinite(value) else "inf"

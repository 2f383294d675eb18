"""A comparison as tables on the terminal, and as JSON."""

import math
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

from jaxsr.comparison.result import Comparison, Row
from jaxsr.comparison.summary import Word, headline, notes, report_tables, token_lines
from jaxsr.interop.annotations import JsonObject

PLAIN_WIDTH = 150  # columns where the output is a file or a pipe, which has no width
_MOST = 40  # rows of a table on the terminal


def print_report(comparison: Comparison, *, word: Word = str) -> None:
    """The headline, the path from block to operation, tokens and notes."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)

    say = partial(console.print, markup=False)
    sides = {"first": comparison.first, "second": comparison.second}
    say("; ".join(f"{n} side: {h['side_short']} ({h['device']})" for n, h in sides.items()))
    say(headline(comparison), style="bold green" if comparison.agree else "bold red")

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


def as_json(comparison: Comparison) -> JsonObject:
    """Everything, for a file."""
    names = ("agree", "first", "second", "checked", "checked_locally", "compared_steps", "weights")
    content = {
        "headline": headline(comparison),
        "notes": notes(comparison),
        **{name: getattr(comparison, name) for name in names},
        "findings": [
            {"kind": f.kind, "place": f.row.call.place, "said": f.text, "row": f.row.number}
            for f in comparison.findings
        ],
        "outputs": [asdict(pair) for pair in comparison.outputs],
        "outputs_threshold": comparison.outputs_threshold,
        "tokens": [step.as_row() for step in comparison.steps],
        "operations": [_row_json(row) for row in comparison.rows],
    }
    return _finite(content)


def _row_json(row: Row) -> JsonObject:
    call, local = row.call, row.local
    entry: JsonObject = {
        "number": row.number,
        "step": row.step,
        "path": call.path,
        "operation": call.operation,
        "nth": call.nth,
        "source": call.source,
        "sides": "both" if row.first and row.second else "first" if row.first else "second",
        "results": call.results,
    }
    if row.total is not None:
        more = {"threshold": row.total_threshold, "inherited": row.inherited}
        entry["total"] = asdict(row.total) | more
    if row.exact is not None:
        entry["total_against_float64"] = row.exact
    if local is not None:
        entry["local"] = asdict(local.error) | {
            "threshold": local.threshold,
            "raised_by_trial": local.tried,
            "above": local.above,
            "problem": local.problem,
        }
        if local.exact is not None:
            entry["local_against_float64"] = local.exact
    return entry


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return "inf" if isinstance(value, float) and not math.isfinite(value) else value

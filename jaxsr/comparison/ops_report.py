"""The precision comparison as tables on the terminal."""

import sys
from collections.abc import Sequence

from jaxsr.comparison.compare_ops import Group

_PLAIN_WIDTH = 150  # columns where the output is a file or a pipe, which has no width


def print_tables(groups: Sequence[Group], published: Sequence[str]) -> None:
    """One table of differences and one of times for each method and dtype, then the comparison."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)
    for group in groups:
        table = Table(title=f"{group.method}, {group.dtype}: absolute differences")
        for heading in ("pair", "scale"):
            table.add_column(heading)
        for heading in ("max", "mean", "median", "p99.9", "equal", "unequal"):
            table.add_column(heading, justify="right")
        for (first, second), differences in group.pairs.items():
            for row, d in enumerate(differences):
                figures = (f"{x:.3g}" for x in (d.largest, d.mean, d.median, d.p999))
                pair = f"{first} – {second}" if row == 0 else ""
                table.add_row(pair, d.scale, *figures, f"{d.equal:,}", f"{d.unequal:,}")
        console.print(table)

        times = Table(title=f"{group.method}, {group.dtype}: seconds for the first picture")
        for heading in ("library", "first run", "cached, median", "cached, least", "rule"):
            times.add_column(heading, justify="left" if heading in ("library", "rule") else "right")
        for name, timing in group.timings.items():
            figures = (f"{s:.5f}" for s in (timing.first, timing.median, min(timing.cached)))
            times.add_row(name, *figures, group.rules.get(name, ""))
        console.print(times)
        for sentence in group.absent:
            console.print(f"left out: {sentence}", markup=False)
    for sentence in published:
        console.print(sentence, markup=False)

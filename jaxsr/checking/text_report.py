"""A check on one screen of text."""

import io
import sys
from collections.abc import Callable

from jaxsr.checking.measures import FACTOR, FLOOR_ULPS
from jaxsr.checking.result import CheckResult, Row

WIDTH = 110
"""Columns where the output is not a terminal."""
_VERDICTS = {
    "ok": "computes the same in JAX as in torch",
    "differs": "DIFFERS",
    "refused": "REFUSED",
    "failed": "FAILED",
}
STYLES = {"ok": "green", "differs": "bold red", "failed": "bold red", "refused": "yellow"}
_LONGEST = 300


def page(result: CheckResult) -> str:
    """The page as plain text."""
    buffer = io.StringIO()
    print_page(result, file=buffer)
    return buffer.getvalue().rstrip()


def print_page(result: CheckResult, *, file: io.TextIOBase | None = None) -> None:
    """Prints the page; in colour on a terminal."""
    from rich.console import Console
    from rich.table import Table

    plain = file is not None or not sys.stdout.isatty()
    console = Console(width=WIDTH if plain else None, highlight=False, file=file)  # type: ignore[arg-type]

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False)

    say(f"{result.name}: {headline(result)}", STYLES[result.status])
    say(
        f"{result.kind}, {result.parameters:,} parameters; {result.inputs}; JAX on "
        f"{result.platform}; referee {result.referee}"
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "", "error", "torch's", "allowed", "worst of"):
        table.add_column(heading, justify="right" if heading in COLUMNS else "left")
    for row in result.rows:
        table.add_row(*cells(row), style=STYLES.get(row.status, "dim"))
    console.print(table)
    if result.fault is not None:
        say(fault_line(result), "bold red")
    for row in result.rows:
        if row.detail and row.detail not in result.reason[:_LONGEST]:
            say(f"{row.name}: {row.detail[:_LONGEST]}")
    for speed in result.speeds:
        line = (
            f"{speed.program}: traced in {speed.trace_s:.2f} s, compiled in {speed.compile_s:.2f} s"
        )
        if speed.steps_per_s is not None:
            line += f"; {speed.steps_per_s:.3g} steps a second, torch {speed.torch_steps_per_s:.3g}"
        say(line)
    for note in result.notes:
        say(f"note: {note}")


COLUMNS: dict[str, Callable[[Row], float]] = {
    "error": lambda row: row.worst.error if row.worst else 0.0,
    "torch's": lambda row: row.worst.torch_error if row.worst else 0.0,
    "allowed": lambda row: row.worst.bound if row.worst else 0.0,
}
"""Columns of numbers, relative to the array's largest value."""


def cells(row: Row) -> list[str]:
    """A row of the table."""
    if row.worst is None:
        return [row.name, row.status, "", "", "", ""]
    numbers = [f"{value(row):.1e}" for value in COLUMNS.values()]
    more = len(row.arrays) - 1
    return [row.name, row.status, *numbers, row.worst.name + (f" (+{more})" if more else "")]


def headline(result: CheckResult) -> str:
    """The verdict, and why."""
    verdict = _VERDICTS[result.status]
    return f"{verdict}: {result.reason[:_LONGEST]}" if result.reason else verdict


def fault_line(result: CheckResult) -> str:
    """The first wrong submodule."""
    fault = result.fault
    assert fault is not None
    where = f"{fault.path} ({fault.kind})" if fault.path else f"{fault.kind} itself"
    numbers = f"error {fault.error:.1e}, allowed {fault.bound:.1e}"
    return f"first wrong module: {where}, {fault.quantity}: {fault.detail or numbers}"


def rule() -> str:
    """What counts as a difference, in a sentence."""
    return (
        f"a difference counts where JAX is further from float64 than {FACTOR:.0f} times torch's "
        f"float32 error, and than {FLOOR_ULPS:.0f} steps of float32 at the array's largest value"
    )

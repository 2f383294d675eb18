"""A comparison as one HTML page that needs nothing else: no script, no font, no network.

The page is the template `report.html.jinja`; here is what it shows.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jaxsr.comparison.calls import ROOT
from jaxsr.comparison.error_plot import Drawing, draw_depth
from jaxsr.comparison.result import Comparison, Row
from jaxsr.comparison.summary import (
    Group,
    around,
    block_of,
    blocks,
    group_texts,
    headline,
    modules,
    notes,
    number,
    row_texts,
    token_lines,
    worst_rows,
)

_WORST = 25
_TOKENS = 200

Line = tuple[bool, Sequence[str]]
"""Whether it is a finding, and its cells."""


def page(comparison: Comparison, *, word: Callable[[int], str] = str) -> str:
    """The page's source."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("jaxsr.comparison", "."), autoescape=True, keep_trailing_newline=True
    )
    first, second = comparison.first, comparison.second
    block = block_of(comparison.findings[0].row.call.path) if comparison.findings else ""
    near = around(comparison, comparison.findings[0]) if comparison.findings else []
    worst = worst_rows(comparison, _WORST)
    exact = any(row.exact is not None for row in comparison.rows)
    row_headings = ("operation", "result", "total", "inherited", "local", "explained")
    if exact:
        row_headings += ("first − float64", "second − float64")
    return environment.get_template("report.html.jinja").render(
        title=f"{first['subject']['family']}: {first['side_short']} against {second['side_short']}",
        agree=comparison.agree,
        headline=headline(comparison),
        token_lines=token_lines(comparison, word),
        sides=[_side("first", first), _side("second", second)],
        key=_key(comparison, exact),
        drawings=_drawings(comparison),
        group_headings=lambda kind: (
            kind, "operations", "total, worst", "total, at its end", "local, worst", "at",
        ),
        blocks=_group_lines(blocks(comparison)),
        findings=comparison.findings,
        block=block,
        modules=_group_lines(modules(comparison, block)) if comparison.findings else [],
        row_headings=row_headings,
        around=_row_lines(near, comparison, exact),
        worst=_row_lines(worst, comparison, exact),
        token_headings=(
            "step", "first", "second", "margin, first", "margin, second", "logits moved",
            "top-10 overlap", "KL, nats", "",
        ),
        tokens=_token_lines(comparison, word),
        notes=notes(comparison),
    )  # fmt: skip


def _side(which: str, header: dict[str, Any]) -> tuple[str, dict[str, str]]:
    return f"{which} side: {header['side_short']}", {
        "model": header["subject"]["model"],
        "input": header["subject"]["inputs"],
        "device": header["device"],
        "computed": header["computed"],
        "precision": header["matmul_precision"],
        "recorder": header["recorder"],
        "versions": ", ".join(f"{n} {v}" for n, v in header["versions"].items() if n != "python"),
    }


def _key(comparison: Comparison, exact: bool) -> list[tuple[str, bool, str]]:
    """Colour, whether it is a dot, and meaning."""
    entries = [
        ("--total", False, "total error: the two runs' results", True),
        ("--limit", False, "what rounding explains of it", True),
        ("--local", True, "local error: equal inputs", comparison.local_checked),
        ("--exact1", False, "first side against float64", exact),
        ("--exact2", False, "second side against float64", exact),
        ("--bad", True, "finding", bool(comparison.findings)),
    ]
    return [(colour, dot, text) for colour, dot, text, shown in entries if shown]


def _drawings(comparison: Comparison) -> list[Drawing]:
    rows = comparison.rows
    drawings = [draw_depth(comparison, rows, title="All operations")]
    if comparison.findings:
        block = block_of(comparison.findings[0].row.call.path)
        step = comparison.findings[0].row.step
        inside = [r for r in rows if block_of(r.call.path) == block and r.step == step]
        if 2 < len(inside) < len(rows):
            title = f"Inside {block}" + (f", step {step}" if comparison.steps else "")

            def short(path: str) -> str:
                return path.removeprefix(block).lstrip(".") or path or ROOT

            drawings.append(draw_depth(comparison, inside, title=title, name=short))
    elif comparison.compared_steps > 1:
        first = [row for row in rows if row.step == 0]
        drawings.append(draw_depth(comparison, first, title="Step 0"))
    return drawings


def _group_lines(groups: Sequence[Group]) -> list[Line]:
    return [(bool(group.findings), group_texts(group)) for group in groups]


def _row_lines(rows: Sequence[Row], comparison: Comparison, exact: bool) -> list[Line]:
    numbers = {finding.row.number for finding in comparison.findings}
    lines = []
    for row in rows:
        local, texts = row.local, row_texts(row)
        if exact:
            pair = (None, None) if local is None else (local.first_exact, local.second_exact)
            texts = (*texts, *("–" if value is None else number(value) for value in pair))
        lines.append((row.number in numbers, texts))
    return lines


def _token_lines(comparison: Comparison, word: Callable[[int], str]) -> list[Line]:
    lines = []
    for step in comparison.steps[:_TOKENS]:
        verdict = "equal" if step.agree else "benign tie" if step.tie else "differ"
        texts = (
            str(step.step), word(step.first_token), word(step.second_token),
            f"{step.first_margin:.3g}", f"{step.second_margin:.3g}", f"{step.moved:.3g}",
            f"{step.overlap:.0%}", f"{step.divergence:.1e}", verdict,
        )  # fmt: skip
        lines.append((not step.agree and not step.tie, texts))
    return lines

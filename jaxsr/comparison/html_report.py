"""A comparison as one HTML page that needs nothing else: no script, no font, no network.

The page is the template `report.html.jinja`; here is what it shows.
"""

from jaxsr.comparison.calls import ROOT
from jaxsr.comparison.error_plot import Drawing, draw_depth
from jaxsr.comparison.result import Comparison
from jaxsr.comparison.summary import (
    Word,
    block_of,
    headline,
    notes,
    report_tables,
    row_table,
    token_lines,
    token_table,
    worst_rows,
)
from jaxsr.interop.annotations import JsonObject

_WORST = 25


def page(comparison: Comparison, *, word: Word = str) -> str:
    """The page's source."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("jaxsr.comparison", "."), autoescape=True)
    first, second = comparison.first, comparison.second
    exact = any(row.exact is not None for row in comparison.rows)
    worst = worst_rows(comparison, _WORST)
    title = f"the {len(worst)} largest errors for what rounding explains"
    tables = report_tables(comparison, exact=exact)
    tables.append(row_table(comparison, worst, title, exact=exact))
    if comparison.steps:
        tables.append(token_table(comparison, word))
    return environment.get_template("report.html.jinja").render(
        title=f"{first['subject']['family']}: {first['side_short']} against {second['side_short']}",
        agree=comparison.agree,
        headline=headline(comparison),
        token_lines=token_lines(comparison, word),
        sides=[_side("first", first), _side("second", second)],
        key=_key(comparison, exact),
        drawings=_drawings(comparison),
        tables=tables,
        findings=comparison.findings,
        notes=notes(comparison),
    )


def _side(which: str, header: JsonObject) -> tuple[str, dict[str, str]]:
    facts = {name: header[name] for name in ("device", "computed", "recorder")}
    return f"{which} side: {header['side_short']}", {
        "model": header["subject"]["model"],
        "input": header["subject"]["inputs"],
        **facts,
        "precision": header["matmul_precision"],
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

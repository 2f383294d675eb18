"""The report of two compared runs, and its JSON."""

from dataclasses import asdict

from jaxsr.comparison.calls import ROOT
from jaxsr.comparison.error_plot import Drawing, draw_depth
from jaxsr.comparison.report import Report, finite
from jaxsr.comparison.result import Comparison, OperationRow
from jaxsr.comparison.summary import (
    Word,
    block_of,
    gradient_table,
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
_MOST_FINDINGS = 100


def report_of(comparison: Comparison, *, word: Word = str) -> Report:
    """The verdict, the path from block to operation, tokens and notes."""
    first, second = comparison.first, comparison.second
    exact = any(row.exact is not None for row in comparison.rows)
    tables = report_tables(comparison, exact=exact)
    worst = worst_rows(comparison, _WORST)
    title = f"the {len(worst)} largest errors for what rounding explains"
    tables.append(row_table(comparison, worst, title, exact=exact, shown=()))
    if comparison.gradients:
        tables.append(gradient_table(comparison, _WORST))
    if comparison.steps:
        tables.append(token_table(comparison, word))
    names = _side_names(first, second)
    return Report(
        title=f"{first['subject']['family']}: {names[0]} against {names[1]}",
        status="ok" if comparison.agree else "differs",
        headline=headline(comparison),
        lines=[
            f"first side: {names[0]} ({first['device']}); "
            f"second side: {names[1]} ({second['device']})",
            *token_lines(comparison, word),
        ],
        tables=tables,
        findings=[f"{f.row.call.place}: {f.text}" for f in comparison.findings[:_MOST_FINDINGS]],
        notes=notes(comparison),
        sides=[
            _side(f"first side: {names[0]}", first),
            _side(f"second side: {names[1]}", second),
        ],
        key=[
            (colour, dot, text)
            for colour, dot, text, shown in (
                ("--total", False, "total error: the two runs' results", True),
                ("--limit", False, "what rounding explains of it", True),
                ("--local", True, "local error: equal inputs", comparison.local_checked),
                ("--exact1", False, "first side against float64", exact),
                ("--exact2", False, "second side against float64", exact),
                ("--bad", True, "finding", bool(comparison.findings)),
            )
            if shown
        ],
        drawings=_drawings(comparison),
    )


def _side_names(first: JsonObject, second: JsonObject) -> tuple[str, str]:
    """The engine of each side, with its model where the two have different ones."""
    models = [header["subject"]["model"] for header in (first, second)]
    ends = [f", {model}" if models[0] != models[1] else "" for model in models]
    return f"{first['side_short']}{ends[0]}", f"{second['side_short']}{ends[1]}"


def _side(title: str, header: JsonObject) -> tuple[str, dict[str, str]]:
    facts = {name: header[name] for name in ("device", "computed", "recorder")}
    return title, {
        "model": header["subject"]["model"],
        "input": header["subject"]["inputs"],
        **facts,
        "precision": header["matmul_precision"],
        "versions": ", ".join(f"{n} {v}" for n, v in header["versions"].items() if n != "python"),
    }


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
        "gradients": [
            asdict(one) | {"bound": one.bound, "ok": one.ok} for one in comparison.gradients
        ],
        "tokens": [step.as_row() for step in comparison.steps],
        "operations": [_row_json(row) for row in comparison.rows],
    }
    return finite(content)


def _row_json(row: OperationRow) -> JsonObject:
    call = row.call
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
    for kind, one in (("local", row.local), ("backward", row.backward)):
        if one is not None:
            entry[kind] = asdict(one.error) | {
                "threshold": one.threshold,
                "raised_by_trial": one.tried,
                "above": one.above,
                "problem": one.problem,
            }
            if one.exact is not None:
                entry[f"{kind}_against_float64"] = one.exact
    return entry

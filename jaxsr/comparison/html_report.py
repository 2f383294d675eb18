"""A comparison as one HTML page that needs nothing else: no script, no font, no network."""

from collections.abc import Callable, Sequence
from html import escape

from jaxsr.comparison.calls import ROOT
from jaxsr.comparison.error_plot import draw_depth
from jaxsr.comparison.result import Comparison, Row
from jaxsr.comparison.summary import (
    Group,
    around,
    block_of,
    blocks,
    headline,
    local_text,
    modules,
    notes,
    number,
    row_texts,
    token_lines,
    worst_rows,
)

_WORST = 25

_STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --band: #f5f7f9; --paper: #fff;
  --total: #2563a8; --local: #d9822b; --limit: #98a4b3; --bad: #c0262d; --good: #1a7f4b;
  --exact1: #6b8e23; --exact2: #8e44ad; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa6b5; --line: #333c48;
  --band: #1d242d; --paper: #151a20; --total: #6aa9e9; --local: #f0a857; --limit: #5d6978;
  --bad: #ff6b6b; --good: #4cc38a; --exact1: #a8c94f; --exact2: #c58ae0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 24px 64px; max-width: 1180px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0 0 14px; } h2 { font-size: 17px; margin: 34px 0 10px; }
p { margin: 6px 0; } .soft, figcaption { color: var(--soft); }
.verdict { border-left: 5px solid var(--bad); background: var(--band); padding: 12px 16px;
  border-radius: 0 6px 6px 0; font-weight: 600; overflow-wrap: anywhere; }
.verdict.agree { border-color: var(--good); }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 14px; margin: 18px 0; }
.sides div { border: 1px solid var(--line); border-radius: 6px; padding: 12px 16px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 6px 0 0;
  font-size: 13.5px; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 0; } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font: 11px system-ui, "DejaVu Sans", sans-serif; }
svg .title { font-size: 13px; font-weight: 600; } svg .tick { text-anchor: end; fill: var(--soft); }
svg .axis, svg .block { fill: var(--soft); } svg .block { text-anchor: middle; font-size: 10px; }
svg .band { fill: var(--band); } svg .grid { stroke: var(--line); } svg polyline { fill: none;
  stroke-linecap: round; }
svg .step { stroke: var(--limit); stroke-dasharray: 2 3; }
svg .total { stroke: var(--total); stroke-width: 1.4; }
svg .threshold { stroke: var(--limit); stroke-width: 1.2; stroke-dasharray: 5 4; }
svg .exact-first { stroke: var(--exact1); } svg .exact-second { stroke: var(--exact2); }
svg .local { fill: var(--local); fill-opacity: .75; } svg circle.suspect { fill: var(--bad); }
svg line.suspect { stroke: var(--bad); stroke-width: 1.2; }
svg .suspect-name { fill: var(--bad); font-weight: 600; font-size: 12px; }
.key { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: 13px; color: var(--soft); }
.key i { display: inline-block; width: 18px; height: 0; border-top: 3px solid; margin-right: 6px;
  vertical-align: middle; } .key i.dot { width: 9px; height: 9px; border: 0; border-radius: 50%; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line); }
th, td { padding: 4px 12px 4px 0; } td { border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.found td { color: var(--bad); font-weight: 600; } code { font-size: 12.5px; }
li { margin: 3px 0; }
@media (max-width: 720px) { .sides { grid-template-columns: 1fr; } }
"""


def page(comparison: Comparison, *, word: Callable[[int], str] = str) -> str:
    """The page's source."""
    workload = comparison.first["subject"]
    title = f"{workload['family']}: {comparison.first['side_short']} against " + str(
        comparison.second["side_short"]
    )
    agree = " agree" if comparison.agree else ""
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict{agree}">{escape(headline(comparison))}</p>',
        *(f"<p>{escape(line)}</p>" for line in token_lines(comparison, word)),
        f'<div class="sides">{_side("first", comparison.first)}'
        f"{_side('second', comparison.second)}</div>",
        "<h2>Error against depth</h2>",
        _plots(comparison),
        "<h2>By block</h2>",
        _groups(blocks(comparison), first="block"),
    ]
    if comparison.findings:
        finding = comparison.findings[0]
        block = block_of(finding.row.call.path)
        body += [
            f"<h2>Modules of <code>{escape(block)}</code></h2>",
            _groups(modules(comparison, block), first="module"),
            "<h2>Operations around the first one found</h2>",
            _rows(around(comparison, finding), comparison),
            "<h2>All that was found, in order of execution</h2>",
            "<ol>",
            *(
                f"<li><code>{escape(f.row.call.place)}</code>: {escape(f.text)}</li>"
                for f in comparison.findings[:100]
            ),
            "</ol>",
        ]
    body += [
        f"<h2>The {_WORST} largest errors for what rounding explains</h2>",
        _rows(worst_rows(comparison, _WORST), comparison),
    ]
    if comparison.steps:
        body += ["<h2>Tokens</h2>", _tokens(comparison, word)]
    body += ["<h2>Notes</h2><ul>", *(f"<li>{escape(n)}</li>" for n in notes(comparison)), "</ul>"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def _side(which: str, header: dict) -> str:
    versions = header["versions"]
    told = {
        "model": header["subject"]["model"],
        "input": header["subject"]["inputs"],
        "device": header["device"],
        "computed": header["computed"],
        "precision": header["matmul_precision"],
        "recorder": header["recorder"],
        "versions": ", ".join(f"{n} {v}" for n, v in versions.items() if n != "python"),
    }
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in told.items())
    return f"<div><b>{which} side: {escape(header['side_short'])}</b><dl>{rows}</dl></div>"


def _plots(comparison: Comparison) -> str:
    rows = comparison.rows
    figures = [draw_depth(comparison, rows, title="All operations")]
    if comparison.findings:
        block = block_of(comparison.findings[0].row.call.path)
        step = comparison.findings[0].row.step
        inside = [r for r in rows if block_of(r.call.path) == block and r.step == step]
        if 2 < len(inside) < len(rows):
            title = f"Inside {block}" + (f", step {step}" if comparison.steps else "")

            def short(path: str) -> str:
                return path.removeprefix(block).lstrip(".") or path or ROOT

            figures.append(draw_depth(comparison, inside, title=title, name=short))
    elif comparison.compared_steps > 1:
        first = [row for row in rows if row.step == 0]
        figures.append(draw_depth(comparison, first, title="Step 0"))
    key = [
        ("var(--total)", "", "total error: the two runs' results"),
        ("var(--limit)", "", "what rounding explains of it"),
    ]
    if comparison.local_checked:
        key.append(("var(--local)", "dot", "local error: equal inputs"))
    if any(row.exact is not None for row in rows):
        key.append(("var(--exact1)", "", "first side against float64"))
        key.append(("var(--exact2)", "", "second side against float64"))
    if comparison.findings:
        key.append(("var(--bad)", "dot", "found"))
    legend = "".join(
        f'<span><i class="{kind}" style="{"background" if kind else "color"}: {colour}"></i>'
        f"{escape(text)}</span>"
        for colour, kind, text in key
    )
    drawn = "".join(f"<figure>{figure}</figure>" for figure in figures)
    return f'<div class="key">{legend}</div>{drawn}'


def _groups(groups: Sequence[Group], *, first: str) -> str:
    headings = (first, "operations", "total, worst", "total, at its end", "local, worst", "at")
    rows = []
    for group in groups:
        local = group.local
        cells = (
            f"<td><code>{escape(group.name)}</code></td>"
            f'<td class="n">{len(group.rows)}</td><td class="n">{number(group.total)}</td>'
            f'<td class="n">{number(group.last)}</td>'
            f'<td class="n">{"–" if local is None else local_text(local)}</td>'
            f"<td>{'' if local is None else escape(local.call.operation)}</td>"
        )
        rows.append(f"<tr{_marked(bool(group.found))}>{cells}</tr>")
    return _table(headings, rows, left=(0, 5))


def _rows(rows: Sequence[Row], comparison: Comparison) -> str:
    found = {finding.row.number for finding in comparison.findings}
    headings = ("operation", "result", "total", "inherited", "local", "explained")
    exact = any(r.local is not None and r.local.first_exact is not None for r in rows)
    if exact:
        headings = (*headings, "first − float64", "second − float64")
    lines = []
    for row in rows:
        texts = list(row_texts(row))
        if exact:
            local = row.local
            pair = (None, None) if local is None else (local.first_exact, local.second_exact)
            texts += ["–" if value is None else number(value) for value in pair]
        cells = f"<td><code>{escape(texts[0])}</code></td><td>{escape(texts[1])}</td>"
        cells += "".join(f'<td class="n">{escape(text)}</td>' for text in texts[2:])
        lines.append(f"<tr{_marked(row.number in found)}>{cells}</tr>")
    return _table(headings, lines, left=(0, 1))


def _tokens(comparison: Comparison, word: Callable[[int], str]) -> str:
    headings = (
        "step", "first", "second", "margin, first", "margin, second", "logits moved",
        "top-10 overlap", "KL, nats", "",
    )  # fmt: skip
    lines = []
    for step in comparison.steps[:200]:
        verdict = "equal" if step.agree else "benign tie" if step.tie else "differ"
        texts = (
            f"{step.first_margin:.3g}", f"{step.second_margin:.3g}", f"{step.moved:.3g}",
            f"{step.overlap:.0%}", f"{step.divergence:.1e}",
        )  # fmt: skip
        cells = f'<td class="n">{step.step}</td>'
        cells += "".join(
            f"<td><code>{escape(word(t))}</code></td>"
            for t in (step.first_token, step.second_token)
        )
        cells += "".join(f'<td class="n">{text}</td>' for text in texts) + f"<td>{verdict}</td>"
        lines.append(f"<tr{_marked(not step.agree and not step.tie)}>{cells}</tr>")
    return _table(headings, lines, left=(1, 2, 8))


def _marked(found: bool) -> str:
    return ' class="found"' if found else ""


def _table(headings: Sequence[str], rows: Sequence[str], *, left: Sequence[int]) -> str:
    kinds = ["" if place in left else ' class="n"' for place in range(len(headings))]
    pairs = zip(kinds, headings, strict=True)
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in pairs)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )

"""The page of `benchmarks.gpu`: its JSON as Markdown, the goals beside what was reached."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.harness.report import Row

STEP_GOAL = 1.2
"""Steps, relative to torch.compile in bfloat16."""
COPY_GOAL = 0.8
"""Image kernels, relative to the bandwidth of a plain copy."""
DECODE_GOAL = 0.7
"""A decode step, relative to the same."""


def page(rows: Sequence[Row], device: str) -> str:
    """The rows as Markdown: goals, parts, and a table for each part.

    Args:
      rows: as `read_rows` gives them.
      device: where they were computed; a CPU's speed is no goal.
    """
    first = rows[0]["environment"] if rows else {"versions": {}, "commit": None}
    versions = ", ".join(
        f"{name} {first['versions'][name]}"
        for name in ("python", "jax", "torch", "torchax")
        if name in first["versions"]
    )
    lines = [
        "# On a GPU",
        "",
        "Written by `python -m benchmarks.gpu`; the JSON beside it has all figures.",
        f"Commit {first['commit'] or 'not known'}; {versions}.",
        "",
        *_table(("goal", "reached", "holds"), _goals(rows, device)),
        *_table(("part", "status", "seconds", "rows", "not ok", "reason"), _parts(rows)),
        *_table(
            (
                "program",
                "forecast, MiB",
                "program's, MiB",
                "ratio",
                "at peak rates, ms",
                "measured, ms",
                "TFLOP/s",
                "of a large product's",
            ),
            _programs(rows),
        ),
    ]
    for part in dict.fromkeys(row["part"] for row in rows):
        of_part = [row for row in rows if row["part"] == part and row["name"]]
        if of_part:
            lines += [f"## {part.capitalize()}", "", *_figures(of_part)]
    return "\n".join(lines).rstrip() + "\n"


def _goals(rows: Sequence[Row], device: str) -> Iterator[list[str]]:
    for part in ("families", "conformance", "zoo"):
        judged = [row["ok"] for row in rows if row["part"] == part and "ok" in row]
        if judged:
            yield _goal(f"{part}: within bounds", sum(judged) / len(judged), 1.0)
    if device == "cpu":
        return
    for part in ("steps", "steps mshnet"):
        speed = {
            row["contender"]: row["images_per_s"]
            for row in rows
            if row["part"] == part and "images_per_s" in row
        }
        compiled = [v for name, v in speed.items() if name.startswith("torch.compile")]
        if "jaxsr" in speed and compiled:
            yield _goal(f"{part}: × torch.compile", speed["jaxsr"] / max(compiled), STEP_GOAL)
    shares = [
        row["fraction_of_copy_bandwidth"]
        for row in rows
        if row["part"] == "kernels" and "fraction_of_copy_bandwidth" in row
    ]
    if shares:
        yield _goal("kernels: least share of copy bandwidth", min(shares), COPY_GOAL)
    for row in rows:
        if row["part"] == "decoding" and row["name"] == "jaxsr, batch 1":
            share = row["share_of_copy_bandwidth"]
            yield _goal("decoding: share of copy bandwidth", share, DECODE_GOAL)


def _goal(name: str, value: float, least: float) -> list[str]:
    return [f"{name} ≥ {least:g}", f"{value:.3g}", "yes" if value >= least else "**no**"]


def _parts(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if not row["name"]:
            of_part = [r for r in rows if r["part"] == row["part"] and r["name"]]
            wrong = sum(not r.get("ok", True) for r in of_part)
            yield [
                row["part"],
                row["status"],
                f"{row['seconds']:.0f}",
                str(len(of_part)),
                str(wrong),
                _cell(row.get("reason", "")),
            ]


def _programs(rows: Sequence[Row]) -> Iterator[list[str]]:
    """What was forecast without the device, beside what was measured on it."""
    forecasts = {row["name"]: row for row in rows if row["part"] == "forecasts"}
    products = [row["tflops"] for row in rows if "bfloat16" in row["name"] and "tflops" in row]
    for network in ("fast-srgan", "mshnet"):
        ahead = forecasts.get(f"{network} step", {})
        step = next((row for row in rows if row["name"] == f"{network}, jaxsr"), {})
        if "memory_mib" not in ahead or "step_ms_median" not in step:
            continue
        memory, peak = ahead["memory_mib"], step.get("program_mib")
        tflops = ahead["gflop"] / step["step_ms_median"]
        yield [
            f"{network} step",
            f"{memory:.0f}",
            f"{peak:.0f}" if peak else "",
            f"{memory / peak:.2f}" if peak else "",
            _cell(ahead["roofline_ms"]),
            _cell(step["step_ms_median"]),
            _cell(tflops),
            f"{tflops / max(products):.1%}" if products else "",
        ]


_HIDDEN = ("part", "name", "environment", "contenders", "contender", "kernels", "kinds")


def _figures(rows: Sequence[Row]) -> list[str]:
    """A table of the columns that the rows have; of many rows that are ok, only their number."""
    wrong = [row for row in rows if not row.get("ok", True)]
    if len(rows) > 30:
        rest = f"{len(rows) - len(wrong)} of {len(rows)} are ok."
        rows = wrong
        if not rows:
            return [rest, ""]
        return [rest, "", *_figures_of(rows)]
    return _figures_of(rows)


def _figures_of(rows: Sequence[Row]) -> list[str]:
    columns = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if name not in _HIDDEN and any(_cell(row.get(name)) for row in rows)
    ]
    return _table(
        ("", *columns), ([row["name"], *(_cell(row.get(n)) for n in columns)] for row in rows)
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (bool, int, str)):
        return str(value).replace("|", "\\|")
    return ""


def _table(titles: Sequence[str], rows: Any) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return []
    return [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), *lines, ""]

"""The page of `benchmarks.gpu`: its JSON as Markdown, the goals beside what was reached."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.harness.report import Row
from benchmarks.harness.tables import escaped, markdown

STEP_GOAL = 1.2
"""Steps, relative to torch.compile in bfloat16."""
COPY_GOAL = 0.8
"""Image kernels, relative to the bandwidth of a plain copy."""
DECODE_GOAL = 0.7
"""A decode step, relative to the same."""
_HIDDEN = ("part", "name", "environment", "contenders", "contender", "kinds")
_MOST_ROWS = 30


def page(rows: Sequence[Row], device: str) -> str:
    """The rows as Markdown: goals, parts, and a table for each part.

    Args:
      rows: as `read_rows` gives them.
      device: where they were computed; a CPU's speed is no goal.
    """
    environment = rows[0]["environment"] if rows else {"versions": {}, "commit": None}
    versions = environment["versions"]
    libraries = [name for name in ("python", "jax", "torch", "torchax") if name in versions]
    lines = [
        "# On a GPU",
        "",
        "Written by `python -m benchmarks.gpu`; the JSON beside it has all figures.",
        f"Commit {environment['commit'] or 'not known'}; "
        + ", ".join(f"{name} {versions[name]}" for name in libraries)
        + ".",
        *_table(("goal", "reached", "holds"), _goals(rows, device)),
        *_table(("part", "status", "seconds", "rows", "not ok", "reason"), _parts(rows)),
        *_table(
            ("program", "forecast, MiB", "program's, MiB", "ratio", "at peak rates, ms",
             "measured, ms", "TFLOP/s", "of a large product's"),
            _programs(rows),
        ),
    ]  # fmt: skip
    for part in dict.fromkeys(row["part"] for row in rows):
        if of_part := [row for row in rows if row["part"] == part and row["name"]]:
            lines += ["", f"## {part.capitalize()}", *_figures(of_part)]
    return "\n".join(lines) + "\n"


def _table(titles: Sequence[str], rows: Iterator[list[str]]) -> list[str]:
    cells = list(rows)
    return ["", *markdown(titles, cells)] if cells else []


def _goals(rows: Sequence[Row], device: str) -> Iterator[list[str]]:
    def values(part: str, figure: str) -> list[Any]:
        return [row[figure] for row in rows if row["part"] == part and figure in row]

    for part in ("families", "conformance", "zoo"):
        if judged := values(part, "ok"):
            yield _goal(f"{part}: within bounds", sum(judged) / len(judged), 1.0)
    if device == "cpu":
        return
    for part in ("steps", "steps mshnet"):
        speed = dict(zip(values(part, "contender"), values(part, "images_per_s"), strict=False))
        compiled = [v for name, v in speed.items() if name.startswith("torch.compile")]
        if "jaxsr" in speed and compiled:
            yield _goal(f"{part}: × torch.compile", speed["jaxsr"] / max(compiled), STEP_GOAL)
    if shares := values("kernels", "fraction_of_copy_bandwidth"):
        yield _goal("kernels: least share of copy bandwidth", min(shares), COPY_GOAL)
    for row in rows:
        if row["part"] == "decoding" and row["name"] == "jaxsr, batch 1":
            share = row["share_of_copy_bandwidth"]
            yield _goal("decoding: share of copy bandwidth", share, DECODE_GOAL)


def _goal(name: str, value: float, least: float) -> list[str]:
    return [f"{name} ≥ {least:g}", f"{value:.3g}", "yes" if value >= least else "**no**"]


def _parts(rows: Sequence[Row]) -> Iterator[list[str]]:
    for end in (row for row in rows if not row["name"]):
        of_part = [row for row in rows if row["part"] == end["part"] and row["name"]]
        wrong = sum(not row.get("ok", True) for row in of_part)
        figures = f"{end['seconds']:.0f}", str(len(of_part)), str(wrong)
        yield [end["part"], end["status"], *figures, _cell(end.get("reason", ""))]


def _programs(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Rows of figures forecast without the device, and measured on it."""
    by_name = {row["name"]: row for row in rows if row["name"]}
    products = [row["tflops"] for row in rows if "bfloat16" in row["name"] and "tflops" in row]
    for network in ("fast-srgan", "mshnet"):
        ahead, step = (by_name.get(f"{network}{of}", {}) for of in (" step", ", jaxsr"))
        if "memory_mib" not in ahead or "step_ms_median" not in step:
            continue
        memory, needed = ahead["memory_mib"], step.get("program_mib")
        tflops = ahead["gflop"] / step["step_ms_median"]
        yield [
            f"{network} step",
            f"{memory:.0f}",
            _cell(needed),
            f"{memory / needed:.2f}" if needed else "",
            _cell(ahead["roofline_ms"]),
            _cell(step["step_ms_median"]),
            _cell(tflops),
            f"{tflops / max(products):.1%}" if products else "",
        ]


def _figures(rows: Sequence[Row]) -> list[str]:
    """A table of the columns that the rows have; of many rows, only those that are not ok."""
    lines = []
    if len(rows) > _MOST_ROWS:
        wrong = [row for row in rows if not row.get("ok", True)]
        lines = ["", f"{len(rows) - len(wrong)} of {len(rows)} are ok."]
        rows = wrong
    names = dict.fromkeys(name for row in rows for name in row if name not in _HIDDEN)
    columns = [name for name in names if any(_cell(row.get(name)) for row in rows)]
    cells = ([row["name"], *(_cell(row.get(name)) for name in columns)] for row in rows)
    return lines + _table(("", *columns), cells)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return escaped(str(value)) if isinstance(value, (bool, int, str)) else ""

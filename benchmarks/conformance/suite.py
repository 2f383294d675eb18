"""Writes docs/conformance.md: every conformance case run in plain torch, jaxsr and stock torchax.

A case is *supported* where jaxsr and torchax both agree with torch, *corrected* where only jaxsr
does, *refused* where jaxsr raises an error that names a workaround. The column on torchax says what
it does: the same, silently other values, or an error.
"""

import json
import os
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.report import RESULTS, Report, ReportOptions, read_rows
from benchmarks.harness.tables import markdown
from jaxsr.interop.atomic_write import atomic_write
from tests.oracles.operators.samples import NO_SLOPES

TABLE = RESULTS.parents[1] / "docs" / "conformance.md"
RECORD = RESULTS / "conformance.json"
DATABASE = RESULTS / "opinfo.json"
PACKAGES = ("torch", "torchax", "jax", "jaxlib")


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run."""

    only: str = ""
    """Run only cases whose name contains this, and write nothing."""
    out: Path | None = RECORD
    """JSON of the results; docs/conformance.md is made from it."""


def run_case(case: Any) -> dict[str, str]:
    """Status of one case and what stock torchax does with it."""
    from jaxsr.interop import UnsupportedTorchError
    from tests.oracles.conformance.registry import (
        RTOL,
        differences,
        run_jaxsr,
        run_torch,
        run_torchax,
    )

    rtol = RTOL["float32"] * case.tolerance
    want = None
    if case.refused is None:
        want = run_torch(case)
        errors = differences(run_jaxsr(case), want, rtol)
        if errors:
            raise AssertionError(f"{case.name}: jaxsr differs from torch: {errors}")
    else:
        try:
            run_jaxsr(case, jit=False)
        except UnsupportedTorchError as error:
            assert case.refused in str(error), error
        else:
            raise AssertionError(f"{case.name}: not refused")
        try:
            want = run_torch(case)
        except Exception:
            want = None  # torch refuses it too
    try:
        got = run_torchax(case)
        if want is None:
            stock = "runs"
        else:
            wrong = differences(got, want, rtol)
            stock = f"silently wrong ({wrong[0]})" if wrong else "same"
    except Exception as error:
        stock = f"error ({type(error).__name__})"
    if case.refused is not None:
        status = "refused"
    else:
        status = "supported" if stock == "same" else "corrected"
    return {"name": case.name, "group": case.group, "status": status, "torchax": stock}


def render_database() -> list[str]:
    """The section on torch's database of operators, from benchmarks/results/opinfo.json."""
    rows = read_rows(DATABASE)
    if not rows:
        return []
    entries, samples = Counter(), Counter()
    refusals: Counter[str] = Counter()
    for row in rows:
        entries[row["dtype"], row["status"]] += 1
        for status in ("samples", "right", "refused", "wrong", "gradients", "x64"):
            samples[row["dtype"], status] += row.get(status, 0)
        for reason in row["reasons"]:
            kind, _, text = reason.partition(": ")
            if kind == "refused" and row["status"] != "wrong":
                refusals[refusal(text)] += 1
    entries_in_all = json.loads(DATABASE.read_text())["entries"]
    lines = [
        "## torch's database of operators",
        "",
        "`python -m benchmarks.opinfo` runs every sample of every entry of",
        "`torch.testing._internal.common_methods_invocations.op_db`: outputs and gradients against",
        "float64 torch, by the bounds of [jaxsr.check](check.md). Factors, eigenvectors and",
        "indices of equal elements are judged by what defines them, random numbers by their",
        "distribution, uninitialised memory by shape and dtype. No entry is left out, but for",
        "seven operators whose samples mean nothing when rounded; where torch itself fails, or",
        "has nothing but GPU kernels, a sample does not count. A sample that is refused because",
        "it needs 64-bit numbers runs in JAX's x64 mode (*x64*), where results in float64 agree",
        "with torch's to 1e-12 of the largest. *Rounded*: three samples of each operator as",
        "whole numbers and one of zeros, so that slopes at zero, at bounds and among equals",
        "count; 2e-4 of the largest value is always allowed there. *Slopes*: what the module",
        "returns is its gradient, by `torch.autograd.grad`, so that its own gradient is the second",
        "derivative, at three samples and the same as whole numbers. Left out are poles, where",
        "torch's second derivative is not finite, and:",
        "",
        *(f"- `{name}`: {why}" for name, why in NO_SLOPES.items()),
        "",
        f"{len(rows):,} of {entries_in_all:,} entries and dtypes have run.",
        "",
    ]
    table = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        of_dtype = [entries[dtype, s] for s in ("right", "partly refused", "refused", "wrong")]
        of_samples = [samples[dtype, s] for s in ("right", "refused", "wrong", "gradients", "x64")]
        numbers = [sum(of_dtype), *of_dtype, sum(of_samples[:3]), *of_samples]
        table.append((dtype, *(f"{n:,}" for n in numbers)))
    titles = (
        "dtype", "entries", "right", "right but for refused samples", "refused", "wrong",
        "samples", "right", "refused", "wrong", "with gradients", "x64",
    )  # fmt: skip
    lines += markdown(titles, table, numbers_from=1)
    reasons = [(why, str(count)) for why, count in refusals.most_common()]
    lines += ["", *markdown(("samples are refused because of", "entries"), reasons, numbers_from=1)]
    wrong = [f"{r['operator']} ({r['dtype']})" for r in rows if r["status"] == "wrong"]
    lines += ["", "Wrong: " + (", ".join(wrong) or "none") + ".", ""]
    return lines


_REFUSALS = (
    (r"torch\.(float64|complex128) while", "64-bit floats while JAX's x64 mode is off"),
    (r"beyond u?int32", "integers beyond 32 bits while JAX's x64 mode is off"),
    (r"layout", "sparse tensors"),
    (r"needs the value|the value of a traced|needs num_classes", "a value that Python needs"),
    (r"depends on values|no fixed shapes?", "a shape that depends on values"),
    (r"has no JAX lowering|no JAX counterpart", "an operator without a lowering"),
    (r"changes a tensor's memory", "resizing in place"),
)


def refusal(text: str) -> str:
    """Names in a few words the form that a refused sample asks for."""
    return next((name for pattern, name in _REFUSALS if re.search(pattern, text)), text[:90])


def render(rows: list[dict[str, Any]]) -> str:
    """The table as Markdown, from rows as `read_rows` gives them."""
    versions = rows[0]["environment"]["versions"]
    count = {s: sum(r["status"] == s for r in rows) for s in ("supported", "corrected", "refused")}
    corrected = [r for r in rows if r["status"] == "corrected"]
    silent = sum(r["torchax"].startswith("silently") for r in corrected)
    lines = [
        "# Conformance with torch",
        "",
        "Generated by `python -m benchmarks.conformance`; do not edit. Each row is a torch",
        "program run by plain torch on the CPU, by `jaxsr.interop.to_jax` and by torchax as it is,",
        "with the same weights and inputs: outputs, gradients with respect to inputs and",
        "parameters, and buffers after one call (three in training) must agree within float32",
        "rounding. Activations and losses run on whole numbers, so that slopes at zero, at bounds",
        "and among equals count.",
        "",
        f"{len(rows)} programs: {count['supported']} supported (torchax agrees too), "
        f"{count['corrected']} corrected (torchax alone differs or fails; silently in {silent}), "
        f"{count['refused']} refused with an error that names a workaround.",
        "",
        "Versions: " + ", ".join(f"{name} {versions[name]}" for name in PACKAGES) + ".",
        "",
        *render_database(),
    ]
    for group in dict.fromkeys(r["group"] for r in rows):
        of_group = [r for r in rows if r["group"] == group]
        cells = [(r["name"], r["status"], r["torchax"].replace("|", "/")) for r in of_group]
        lines += [f"## {group.capitalize()}", ""]
        lines += [*markdown(("program", "jaxsr", "torchax alone"), cells), ""]
    return "\n".join(lines)


def measure(options: Options) -> None:
    """Runs the cases, and writes the record and the table."""
    report = None if options.only else Report("conformance", options)
    os.environ["JAX_PLATFORMS"] = "cpu"
    warnings.simplefilter("ignore")
    from tests.oracles.conformance.every import CASES

    for case in CASES.values():
        if options.only not in case.name:
            continue
        row = run_case(case)
        print(f"{row['status']:10} {row['torchax'][:60]:60} {case.name}", flush=True)
        if report is not None:
            report.add(row)
    if options.out == RECORD and report is not None:
        atomic_write(TABLE, render(read_rows(RECORD)).encode())

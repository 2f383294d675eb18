"""Runs `jaxsr.check` over the models of seven libraries.

Each model runs in a process with bounds on time and memory, forked from one that has imported the
libraries. With `--out`, models whose rows are in the file already are left out, so that an
interrupted run continues. A model that is refused because it needs 64-bit numbers runs once more in
JAX's x64 mode, and its row says so. `docs/zoo.md` is made from `benchmarks/results/zoo.json`.
"""

import contextlib
import copy
import json
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import BoundedOptions
from benchmarks.harness.report import (
    RESULTS,
    Report,
    Row,
    finished,
    part_of,
    read_rows,
)
from benchmarks.harness.tables import escaped, markdown
from benchmarks.zoo.models import GROUPS, Entry, Group, entries
from jaxsr.errors import InputError, one_line
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.models.libraries import import_library
from tests.oracles.language_models.configurations import write_configuration
from tests.oracles.messages import NEEDS_X64, without_folders

TABLE = RESULTS.parents[1] / "docs" / "zoo.md"
RECORD = RESULTS / "zoo.json"


@dataclass(frozen=True, kw_only=True)
class Options(BoundedOptions):
    """Options of the run."""

    group: tuple[Group, ...] = GROUPS
    """Libraries to run."""
    only: str = ""
    """Run only models whose name contains this."""
    shard: str = "1/1"
    """Part of the models to run: 2/4 is the second of four."""
    full: bool = False
    """Also check training mode, vmap, a mesh of two, and time steps."""


def check_entry(entry: Entry, *, full: bool, platform: str = "cpu", x64: bool = False) -> Row:
    """The row of one model, computed in this process."""
    import jax
    import torch

    from jaxsr.comparison.check_command import load
    from jaxsr.comparison.check_module import check
    from jaxsr.comparison.check_options import CheckConfig
    from jaxsr.interop.mesh import select_platform
    from jaxsr.runtime.setup import configure_jax

    torch.set_num_threads(1)
    configure_jax(None)
    select_platform(platform, simulated_devices=2 if full else 1)
    if x64:
        jax.config.update("jax_enable_x64", True)
    row: Row = {"parameters": 0, "reason": ""}
    if entry.group == "transformers":
        write_configuration(Path(entry.model))
    failure: list[str] = []
    for inputs in entry.inputs or ((),):
        config = CheckConfig(model=entry.model, model_options=json.dumps(entry.args), input=inputs)
        try:
            loaded, (args, kwargs) = load(config)
            with torch.no_grad():  # in a copy: some modules fill caches
                copy.deepcopy(loaded.network)(*args, **kwargs)
            break
        except Exception as error:
            failure.append(one_line(error))
    else:
        return row | {"status": "not built", "reason": failure[0]}
    options: dict[str, Any] = {} if full else {"mesh": 1, "speed_s": 0.0}
    with jax.default_matmul_precision("highest"):
        result = check(
            loaded.network, *args, kwargs=kwargs, name=entry.name, train=full, vmap=full, **options
        )
    content = result.as_json()
    return {
        "status": result.status,
        "reason": "; ".join([result.reason, *result.notes] if not result.ok else []),
        "parameters": result.parameters,
        "inputs": result.inputs,
        "referee": result.referee,
        "checks": {one.name: one.status for one in result.rows},
        "forward_error": _largest_error(content, "forward"),
        "gradient_error": _largest_error(content, "gradient"),
        "compile_s": round(sum(one.compile_s for one in result.speeds), 2),
        "fault": content["fault"],
        "notes": result.notes,
    }


def _largest_error(content: dict[str, Any], name: str) -> float | None:
    arrays = [a for row in content["rows"] if row["name"] == name for a in row["arrays"]]
    return max((a["error"] for a in arrays), default=None)


def run_entry(entry: Entry, options: Options) -> Row:
    """One model in a process of its own, with bounds on its time and memory."""
    row: Row = {"model": entry.name, "group": entry.group, "name": entry.model}
    if entry.group == "transformers":
        row["name"] = f"config.json of {entry.name}"
    result = _in_child(entry, options, optimise=options.full)
    x64 = result["status"] == "refused" and bool(NEEDS_X64.search(result["reason"]))
    if x64:
        result = _in_child(entry, options, optimise=options.full, x64=True)
    if result["status"] == "differs" and not options.full:
        # Sums of programs that are not optimised run in order, and round more.
        result = _in_child(entry, options, optimise=True, x64=x64)
    row["x64"] = x64
    return row | result | {"reason": without_folders(result["reason"])[:400]}


def _in_child(entry: Entry, options: Options, *, optimise: bool, x64: bool = False) -> Row:
    def compute() -> Row:
        # Programs are tiny: what takes time is optimising them.
        if not optimise:
            flags = os.environ.get("XLA_FLAGS", "")
            os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0".strip()
        return check_entry(entry, full=options.full, x64=x64) | {"optimised": optimise}

    return options.row_of_child(compute)


def _import_libraries() -> None:
    """Imports what models share, without starting JAX: children are forked from this process."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")

    import jaxsr.comparison.check_module  # noqa: F401

    with contextlib.suppress(InputError):
        _compute_nms(import_library("torchvision"))
    for name in ("transformers.modeling_utils", "timm", "diffusers.models.modeling_utils"):
        with contextlib.suppress(Exception):
            __import__(name)


def _compute_nms(torchvision: Any) -> None:
    """In Python where torchvision is built for another torch; detectors need it."""
    import torch

    if torch._C._dispatch_has_kernel_for_dispatch_key("torchvision::nms", "CPU"):
        return

    @torch.library.impl("torchvision::nms", "CPU")
    def _(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
        overlaps = torchvision.ops.box_iou(boxes, boxes)
        selected: list[int] = []
        for index in scores.argsort(descending=True).tolist():
            if not selected or overlaps[index, selected].max() <= threshold:
                selected.append(index)
        return torch.tensor(selected, dtype=torch.int64)

    torchvision.ops.boxes._assert_has_ops = lambda: None


def _listed(options: Options, folder: Path) -> Iterator[Entry]:
    for group in options.group:
        try:
            yield from (e for e in entries(group, folder) if options.only in e.name)
        except ImportError as error:
            print(f"{group} is left out: {error}")


def measure(options: Options) -> None:
    """Runs the models one after another, and counts their statuses."""
    key = ("group", "model")
    done = finished(options.out, key, rerun=options.rerun)
    report = Report("zoo", options, key=key)
    _import_libraries()
    with tempfile.TemporaryDirectory() as folder:
        listed = part_of([*_listed(options, Path(folder))], options.shard)
        missing = [entry for entry in listed if (entry.group, entry.name) not in done]
        report.add_all((run_entry(entry, options) for entry in missing), by="group")
    if options.out == RECORD:
        atomic_write(TABLE, render(read_rows(RECORD)).encode())


_CAUSES = (
    (r"is needed in Python|\.tolist\(\)|\.item\(\)", "branches on a value"),
    (r"shape depends on", "a shape that depends on values"),
    (r"has no JAX lowering|no JAX counterpart", "an operator without a lowering"),
    (r"keeps a tensor in|writes into", "state outside buffers"),
    (r"more than \d+ s", "time"),
    (r"cannot differentiate", "torch cannot differentiate it"),
    (r"is_compiling", "the library computes otherwise while compiling, in torch as well"),
    (r"torch\.(sort|topk) leaves equal", "the order of equal elements in torch's sort or topk"),
    (r"lie at a kink", "the gradient's kink at these inputs"),
    (r"rows that a mask selects", "a number of rows that depends on values"),
    (r"x64 mode is off|beyond int32", "64-bit numbers"),
)
"""Patterns in the messages of refusals and failures, and the cause that the page names."""


def cause(row: Row) -> str:
    """Why a row is not ok, in a few words; its `reason` has the message."""
    for pattern, name in _CAUSES:
        if re.search(pattern, row["reason"]):
            return name
    return row["reason"][:120]


def _passed(row: Row, check: str) -> bool:
    return row.get("checks", {}).get(check) == "ok"


def _number(value: float | None) -> str:
    return "" if value is None else f"{float(value):.1e}"


def render(rows: Sequence[Row]) -> str:
    """docs/zoo.md."""
    lines = [
        "# Zoo", "",
        "Models of seven libraries, with random weights and in small sizes, as `jaxsr.check` finds "
        "them: forward", "and gradients of all parameters and inputs in evaluation mode, against "
        "float64 torch ([check](check.md)", "states the bounds). `python -m benchmarks.zoo --out "
        "benchmarks/results/zoo.json` makes this page.", "",
    ]  # fmt: skip
    libraries = []
    ran = [row for row in rows if row["status"] != "not built"]
    for group in GROUPS:
        of_group = [row for row in ran if row["group"] == group]
        if not of_group:
            continue
        statuses = Counter(row["status"] for row in of_group)
        numbers = (
            len(of_group),
            sum(_passed(row, "forward") for row in of_group),
            sum(_passed(row, "gradient") for row in of_group),
            statuses["refused"],
            len(of_group) - statuses["refused"] - statuses["ok"],
            sum(row["group"] == group for row in rows) - len(of_group),
        )
        libraries.append((group, *map(str, numbers)))
    titles = "library", "models", "forward", "gradient", "refused", "fails or differs"
    lines += markdown((*titles, "torch cannot run"), libraries, numbers_from=1)
    lines += [
        "", "A model that torch cannot run here lacks inputs, a tiny configuration, or a package; "
        "it says nothing", "of jaxsr, and counts nowhere else. Compiling is timed without XLA's "
        "optimisations, on a busy", "machine. *In x64 mode*: refused until JAX's x64 mode is on, "
        "as the refusal says.", "", "## Differences", "",
        "| model | status | cause | message |", "|---|---|---|---|",
    ]  # fmt: skip
    for row in ran:
        gradient = row.get("checks", {}).get("gradient", "ok")
        if row["status"] == "ok" and gradient == "ok":
            continue
        status, reason = row["status"], row["reason"]
        if status == "ok":
            status, reason = "ok, no gradient", "torch cannot differentiate it"
        why = escaped(cause({"reason": reason}))
        reason = re.sub(r"(?:[\w.-]+/)+(\w+\.py:\d+)", r"\1", reason)
        lines.append(f"| {row['group']} {row['model']} | {status} | {why} | {escaped(reason)} |")
    lines += [
        "", "## All", "",
        "Errors are relative to the array's largest value.", "",
        "| model | parameters | forward error | gradient error | compiled in | status |",
        "|---|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    for row in sorted(ran, key=lambda row: (GROUPS.index(row["group"]), row["model"])):
        errors = (_number(row.get("forward_error")), _number(row.get("gradient_error")))
        lines.append(
            f"| {row['group']} {row['model']} | {row.get('parameters', 0):,} | {errors[0]} | "
            f"{errors[1]} | {row.get('compile_s', 0):.1f} s | {row['status']}"
            f"{' in x64 mode' if row.get('x64') else ''} |"
        )
    return "\n".join(lines) + "\n"

"""Parts of `benchmarks.gpu`: does JAX on the device compute what torch computes there?

Outputs of float64 torch on the CPU are the referee. In each precision JAX may be `FACTOR` times
further from it than torch on the same device is, or as far as a few steps of the precision. Errors
are relative to the array's largest value.
"""

import copy
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.parts import Setting, start_jax
from benchmarks.harness.report import Row
from jaxsr.errors import one_line

Precision = Literal["float32", "tf32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bfloat16")
FLOORS = {"float32": 32 * 2.0**-23, "tf32": 8 * 2.0**-10, "bfloat16": 4 * 2.0**-8}
"""Errors that are always allowed: a few steps of the precision, as torch's error may be next to
nothing, or torch may not use TF32 where JAX does."""


def families(setting: Setting) -> Iterator[Row]:
    """Every model family with random weights, forward, in three precisions."""
    start_jax(setting)
    from jaxsr.comparison.arguments import Arguments
    from jaxsr.models.registry import FAMILIES, find_family, random_network

    for name in FAMILIES:
        missing: list[Precision] = [p for p in PRECISIONS if f"{name} {p}" not in setting.done]
        if missing:
            arguments = Arguments.of((find_family(name).example(),), {})
            network = random_network(name)
            for precision in missing:
                yield parity(f"{name} {precision}", network, arguments, precision, setting)


def parity(name: str, module: Any, arguments: Any, precision: Precision, setting: Setting) -> Row:
    """Errors of JAX and of torch on the device in one precision."""
    import jax
    import torch

    from jaxsr.comparison.jax_runs import JaxRuns, Program, to_host
    from jaxsr.comparison.measures import FACTOR, compare_arrays
    from jaxsr.comparison.torch_runs import run_torch

    single = arguments
    exact = run_torch(module, arguments, double=True)
    if precision == "bfloat16":
        module = copy.deepcopy(module).bfloat16()
        floats = {n: t for n, t in arguments.tensors.items() if t.is_floating_point()}
        single = arguments.replaced({n: t.bfloat16() for n, t in floats.items()})
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    reference = run_torch(module, single, device=setting.device)
    with jax.default_matmul_precision("highest" if precision == "float32" else "default"):
        runs = JaxRuns(module, single)
        program = Program(runs.forward(train=False), (runs.state, runs.inputs(), runs.key))
        outputs = {n: a.astype("float32") for n, a in to_host(program()[0]).items()}
    errors = compare_arrays(outputs, reference.outputs, exact.outputs)
    worst = max(errors, key=lambda one: one.error)
    bound = max(FACTOR * worst.torch_error, FLOORS[precision])
    return {
        "name": name,
        "jax_error": worst.error,
        "torch_error": worst.torch_error,
        "bound": bound,
        "compile_s": round(program.compile_s, 2),
        "ok": worst.error <= bound,
    }


def conformance(setting: Setting) -> Iterator[Row]:
    """Every program of the conformance suite on the device, against torch on the CPU."""
    from tests.oracles.conformance.every import CASES

    names = [n for n, case in CASES.items() if case.refused is None and n not in setting.done]
    yield from _side_by_side(names[::40] if setting.quick else names, _conforms, setting)


def _conforms(name: str) -> Row:
    import jax

    from tests.oracles.conformance.registry import CASES, RTOL, differences, run_jaxsr, run_torch

    case = CASES[name]
    with jax.default_matmul_precision("highest"):
        wrong = differences(run_jaxsr(case), run_torch(case), RTOL["float32"] * case.tolerance)
    return {"ok": not wrong} | ({"reason": "; ".join(wrong)[:300]} if wrong else {})


def zoo(setting: Setting) -> Iterator[Row]:
    """A shard of the zoo: forward and gradients of its models, as `jaxsr.check` has them."""
    from benchmarks.zoo.models import GROUPS, entries

    with tempfile.TemporaryDirectory() as folder:
        work: dict[str, Any] = {}
        for group in ("torch.nn",) if setting.quick else GROUPS:
            try:
                listed = list(entries(group, Path(folder)))
            except ImportError:
                continue
            step = 6 if setting.quick else max(len(listed) // 12, 1)
            work |= {f"{group}:{entry.name}": entry for entry in listed[::step]}
        missing = {name: entry for name, entry in work.items() if name not in setting.done}
        yield from _side_by_side([*missing], partial(_checked, missing, setting.device), setting)


def _checked(work: dict[str, Any], device: str, name: str) -> Row:
    from benchmarks.zoo.checks import check_entry

    row = check_entry(work[name], full=False, platform=device)
    return {
        # What torch cannot run, and limits that jaxsr names, say nothing of the device.
        "ok": row["status"] in ("ok", "not built", "refused"),
        **{k: row.get(k) for k in ("status", "reason", "forward_error", "gradient_error")},
    }


def _side_by_side(names: list[str], compute: Any, setting: Setting) -> Iterator[Row]:
    """Rows of `compute(name)` from several processes, as they come; its error is a row too."""
    workers = max(min(8, (os.cpu_count() or 1) // 2), 1)
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(setting,)
    ) as pool:
        futures = {pool.submit(compute, name): name for name in names}
        for future in as_completed(futures):
            try:
                row = future.result()
            except Exception as error:
                row = {"ok": False, "reason": f"{type(error).__name__}: {one_line(error)}"[:300]}
            yield {"name": futures[future], **row}


def _start_worker(setting: Setting) -> None:
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start_jax(setting)
    import tests.oracles.conformance.every  # noqa: F401

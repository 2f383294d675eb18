"""`--aot` of every command: the steps before, during and after compiling ahead of time."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxsr.errors import InputError
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.aot.compile import Ahead
from jaxsr.interop.aot.report import as_json, show
from jaxsr.interop.aot.search import largest_batch
from jaxsr.interop.aot.topology import Topology, load_topology
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.interop.mesh import select_platform
from jaxsr.runtime import compile_cache
from jaxsr.runtime.activity import set_status
from jaxsr.runtime.exit_status import ExitStatus
from jaxsr.runtime.options import AotOptions
from jaxsr.runtime.setup import choose_deterministic_kernels, compiled_folder, configure_jax

if TYPE_CHECKING:
    from jaxsr.runtime.jax_runner import JaxRunner

Compile = Callable[[int], Ahead]
"""Compiles a program for a batch of so many rows over all devices."""


def prepare(config: AotOptions, *, deterministic: bool = False) -> Topology:
    """Changes JAX's global settings for compiling ahead; returns the topology.

    JAX itself computes on the CPU: it does not touch an accelerator, even if there is one.

    Args:
      config: the command's.
      deterministic: see `jaxsr.runtime.setup.setup_compute`.

    Raises:
      InputError: there is no such device, or its compiler is not installed.
    """
    import jax

    set_status(f"compiling for {config.aot}")
    if deterministic:
        choose_deterministic_kernels(config)
    configure_jax(config.aot_save or compiled_folder(config), least_compile_s=0)
    # JAX writes programs for a device that is absent, but cannot read them back.
    jax.config.update("jax_enable_compilation_cache", config.aot_save is not None)
    if config.aot_save is not None:
        config.aot_save.mkdir(parents=True, exist_ok=True)
    select_platform("cpu")
    if config.matmul_precision != "default":
        jax.config.update("jax_default_matmul_precision", config.matmul_precision)
    assert config.aot is not None
    return load_topology(config.aot)


def batches_of(
    runner: "JaxRunner",
    topology: Topology,
    sample: tuple[int, ...],
    *,
    name: str,
    **named: tuple[tuple[int, ...], Any],
) -> Compile:
    """Returns a function that compiles a runner's program for batches of a sample's shape.

    Args:
      runner: result of `open_ahead`.
      topology: the devices of the runner.
      sample: shape of one row of a batch.
      name: name of the program in reports.
      **named: shape of a row, and dtype, of the network's keyword arguments.
    """
    import jax

    def compile_at(rows: int) -> Ahead:
        others = {
            n: jax.ShapeDtypeStruct((rows, *shape), dtype) for n, (shape, dtype) in named.items()
        }
        return runner.lower((rows, *sample), topology, name=name, **others)

    return compile_at


def compile_batches(
    programs: Sequence[tuple[Compile, int]], config: AotOptions, *, step: int
) -> int:
    """Compiles programs, searches their largest batches if asked, and reports.

    Args:
      programs: for each program, the function that compiles it, and its rows.
      config: the command's.
      step: number by which rows must be divisible.

    Returns:
      The exit status.

    Raises:
      InputError: there is no program.
    """
    if not programs:
        raise InputError("the inputs need no program; name images or videos that can be read")
    reports: list[Ahead] = []
    largest: JsonObject = {}
    for compile_at, batch in programs:
        reports.append(compile_at(batch))
        print(f"{reports[-1].name}: {reports[-1].error or 'compiles'}", flush=True)
        if config.aot_largest:
            rows, trials = largest_batch(
                compile_at, reports[-1], batch=batch, step=step, precision=0.05
            )
            largest[reports[-1].name] = {"batch": rows, "trials": trials}
    return conclude(reports, config, largest=largest)


def conclude(
    reports: Sequence[Ahead], config: AotOptions, *, largest: Mapping[str, Any] | None = None
) -> int:
    """Prints the table, writes the JSON, returns the exit status.

    Args:
      reports: one for each program.
      config: the command's.
      largest: by program, the largest `batch` that fits, and the trials of the search.
    """
    show(reports)
    for name, search in (largest or {}).items():
        rows = search["batch"]
        print(f"{name}: largest batch that fits: {rows if rows is not None else 'none'}")
    if config.aot_json is not None:
        content = {"programs": [as_json(one) for one in reports], "largest_batch": largest or {}}
        atomic_write(config.aot_json, (json.dumps(content, indent=2) + "\n").encode())
    if config.aot_save is not None:
        _show_saved(reports, config.aot_save)
    return ExitStatus.OK if all(one.compiles for one in reports) else ExitStatus.FAILED


def _show_saved(reports: Sequence[Ahead], folder: Path) -> None:
    """Lists the saved programs, and removes those that would fail to load."""
    untuned = [one for one in reports if one.gpu is not None and one.gpu.needs_autotuning]
    for path in compile_cache.written_entries:
        if any(path.name.startswith(f"{one.module}-") for one in untuned):
            path.unlink(missing_ok=True)
    for one in untuned:
        print(f"{one.name} is not kept: the device compiles it, for cuDNN's algorithms")
    if len(untuned) == len(reports):
        return
    print(f"compiled programs: {folder}; give it to the host as --compile-cache")
    if reports[0].device.platform == "cuda":
        print(
            "products have XLA's default tiles: it chooses them by timing, on the device; "
            "programs compiled there may be faster"
        )

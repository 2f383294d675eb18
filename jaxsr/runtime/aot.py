"""What every command's `--aot` does before and after compiling."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from jaxsr.interop.aot.chips import Topology, load_topology
from jaxsr.interop.aot.compile import Ahead
from jaxsr.interop.aot.report import as_json, show
from jaxsr.runtime.aot_options import AheadOptions

REFUSED = 1
"""Exit status where a program does not compile."""


def prepare(config: AheadOptions) -> Topology:
    """Everything global that compiling ahead changes in JAX; gives the topology.

    JAX itself computes on the CPU: no accelerator is touched even where there is one.

    Raises:
      ValueError: libtpu is not installed, or knows no such topology.
    """
    import jax

    from jaxsr.interop.mesh import select_platform

    logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
    select_platform("cpu")
    precision = getattr(config, "matmul_precision", "default")
    if precision != "default":
        jax.config.update("jax_default_matmul_precision", precision)
    if config.aot_save is not None:
        config.aot_save.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(config.aot_save))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    else:
        # JAX writes programs for a device that is absent, but cannot read them back.
        jax.config.update("jax_enable_compilation_cache", False)
    assert config.aot is not None
    return load_topology(config.aot)


def conclude(
    reports: Sequence[Ahead], config: AheadOptions, *, largest: Mapping[str, Any] | None = None
) -> int:
    """Prints the table, writes the JSON, returns the exit status.

    Args:
      reports: one for each program.
      config: what the command was asked.
      largest: by program, the largest `batch` that fits and the trials that showed it.
    """
    from jaxsr.interop.atomic_write import atomic_write

    show(reports)
    for name, found in (largest or {}).items():
        fits = found["batch"]
        print(f"{name}: largest batch that fits: {fits if fits is not None else 'none'}")
    if config.aot_json is not None:
        content = {"programs": [as_json(one) for one in reports], "largest_batch": largest or {}}
        atomic_write(config.aot_json, (json.dumps(content, indent=2) + "\n").encode())
    if config.aot_save is not None:
        print(f"compiled programs: {config.aot_save}; give it to the TPU host as --compile-cache")
    return 0 if all(one.compiles for one in reports) else REFUSED

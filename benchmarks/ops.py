"""The image kernels against torch, OpenCV, Pillow, kornia, dm_pix, SciPy and jax.image.

    python benchmarks/ops.py [--rounds 21] [--out benchmarks/results/ops.json]

On a machine with a GPU that JAX finds, the same command measures there, against torch on CUDA and
against the bandwidth of a plain copy. `--tpu` adds what the TPU compiler estimates for the compiled
programs; no TPU is needed, and none of it is a measurement.

All contenders of a row live in one process with the same number of threads and take turns, each
waiting for its own result (see `_timing.py`). Every library gets the layout it is fastest in:
OpenCV channels last, Pillow one channel after the other over all threads, torch and jaxsr both. The
largest difference from jaxsr's values stands beside each contender, and `same` says whether it does
the same mathematics: only those are in the race. The allocator keeps freed memory, for all of them
(`jaxsr.runtime.allocator`). Compile time and temporary memory are those of one shape, cold. dm_pix
has no resize of its own.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _ops_filters
import _ops_resize
from _ops_race import measure, show
from _timing import Contender, quiet_idle_threads, surroundings, take_turns

from jaxsr.runtime.allocator import keep_freed_memory


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    rounds: int = 21
    """Turns of each contender."""
    only: str = ""
    """Measure only rows whose name holds this."""
    tpu: bool = False
    """Add the TPU compiler's estimates (some minutes)."""
    out: Path | None = None
    """JSON to write. Default: only printed."""


def copy_bandwidth() -> float:
    """Gigabytes a second that a plain copy reads and writes on JAX's device."""
    import jax
    import jax.numpy as jnp

    x = jnp.zeros((1 << 27,), jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    timing = take_turns([Contender("copy", lambda: copy(x).block_until_ready())], rounds=15)[0]
    return 2 * x.nbytes / timing.median_ms / 1e6


def tpu_estimates() -> dict[str, Any]:
    """What `ops_tpu.py` prints, from another process, which compiles for a TPU."""
    script = Path(__file__).with_name("ops_tpu.py")
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    run = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(run.stdout.splitlines()[-1])


def main() -> None:
    """Measures, prints tables, and writes the JSON."""
    import tyro

    options = tyro.cli(Options, description=(__doc__ or "").splitlines()[0])
    keep_freed_memory()
    threads = quiet_idle_threads()
    where = surroundings()
    import cv2
    import jax
    import torch

    cv2.setNumThreads(threads)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    bandwidth = copy_bandwidth() if jax.default_backend() == "gpu" else None
    rows = []
    for row in (*_ops_resize.ROWS, *_ops_filters.ROWS):
        if options.only in row.name:
            rows.append(measure(row, options.rounds, bandwidth))
            show(rows[-1])
    document = {
        "benchmark": "ops",
        **where,
        "load_average_after": os.getloadavg(),
        "device": jax.devices()[0].device_kind,
        "threads": threads,
        "rounds": options.rounds,
        "copy_gb_per_s": bandwidth,
        "rows": rows,
    }
    if options.tpu:
        document["tpu_compiler_estimates"] = tpu_estimates()
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({"benchmark": "ops", "commit": where["commit"], "rows": len(rows)}))


if __name__ == "__main__":
    main()

"""`--benchmark`: megapixels per second at the given sizes, measured, not extrapolated."""

import json
import platform
import statistics
import time
from importlib.metadata import version

import numpy as np
import torch

from jaxsr.interop.annotations import JsonObject
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import RestorationModel
from jaxsr.restoration.pipeline import Work
from jaxsr.restoration.restore_arrays import ArraySink
from jaxsr.restoration.restorer import make_restorer
from jaxsr.runtime.exit_status import ExitStatus
from jaxsr.runtime.setup import torch_device

REPEATS = 5
"""Timed calls after the first; fewer where they take long."""
_LONGEST_S = 60.0


def benchmark(model: RestorationModel, config: RestoreConfig) -> int:
    """Prints a table and, as the last line, one JSON object."""
    rows = [measure(model, config, size) for size in config.sizes()]
    print(f"{'size':>12} {'first s':>9} {'median s':>9} {'spread s':>9} {'MP/s in':>9} tiles")
    for row in rows:
        print(
            f"{row['width']:>6}×{row['height']:<5} {row['first_s']:>9.3f} {row['median_s']:>9.3f} "
            f"{row['spread_s']:>9.3f} {row['megapixels_per_s']:>9.3f} "
            f"{row['tiles']} of {row['tile'][1]}×{row['tile'][0]}"
        )
    content = {"model": model.name, "scale": model.scale, **environment(config), "rows": rows}
    print(json.dumps(content))
    return ExitStatus.OK


def measure(model: RestorationModel, config: RestoreConfig, size: tuple[int, int]) -> JsonObject:
    """Times one size from samples in memory to samples in memory; the first call stands apart."""
    height, width = size
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    restorer, runner, tiler = make_restorer(model, config, sizes=[size], alone=True)

    def once() -> float:
        sink = ArraySink(f"{width}x{height}")
        start = time.perf_counter()
        restorer.run([Work(pixels=pixels, kind="rgb", sink=sink)])
        spent = time.perf_counter() - start
        assert sink.result is not None  # raises where it failed
        return spent

    first = once()
    times: list[float] = []
    while len(times) < REPEATS and (not times or sum(times) < _LONGEST_S):
        times.append(once())
    plan = tiler.insist(size) if config.tiling == "off" else tiler.plan(size)
    return {
        "width": width,
        "height": height,
        "first_s": first,
        "median_s": statistics.median(times),
        "spread_s": max(times) - min(times),
        "repeats": len(times),
        "megapixels_per_s": height * width / 1e6 / statistics.median(times),
        "tiles": plan.tiles,
        "tile": list(plan.shape),
        "computed_share": plan.computed / (height * width),
        "programs": len(runner.programs),
    }


def environment(config: RestoreConfig) -> JsonObject:
    """The environment for which the figures hold."""
    device = "cpu"
    if config.engine == "jax":
        import jax

        device = jax.devices()[0].device_kind
    elif torch_device(config.platform) == "cuda":
        device = torch.cuda.get_device_name()
    return {
        **{name: getattr(config, name) for name in ("engine", "dtype", "ensemble")},
        "mesh": config.devices,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("jax", "torch", "numpy")},
        "device": device,
    }

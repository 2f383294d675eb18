"""Restoring pictures: JAX against the same network in torch, with the same tiles.

At each size, for every contender: how many input megapixels a second from file to file (JPEG to
JPEG: decoding, tiles, network, stitching, encoding), how many through the network alone (the same
batches of tiles, already cut), and what memory the process took at its peak.

Contenders: `jax`, `jax_mesh` (on CPUs with a device for each core, as `--mesh` has it), and torch
`eager`, `channels_last`, `compiled` (`torch.compile`'s default) and, where it is asked for,
`max_autotune` (`torch.compile`'s mode, channels last). Each runs in a process of its own, so that
memory peaks are its own, and takes turns with the others. The first batch, which compiles, is
reported separately; the first call of a turn, which finds its caches cold, is not counted where
there is time for two. All tiles of a picture are alike, so a call of the network alone takes eight
at most: contenders then take turns every few seconds, also at 16 megapixels. Files that take longer
than a turn are restored once. Medians over all calls of the rounds and the spread from least to
most. A size ends after the first round that passes a quarter of an hour; `rounds` says how many it
got. A run replaces only the rows that it measured.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np

from benchmarks.harness.gpu_kernels import kernel_times
from benchmarks.harness.processes import Steps, Worker, race_workers
from benchmarks.harness.report import RESULTS, Report, ReportOptions, Row, run_benchmark

Contender = Literal["jax", "jax_mesh", "eager", "channels_last", "compiled", "max_autotune"]
JAX = ("jax", "jax_mesh")
_LONGEST_S = 20.0
"""A turn ends after this much timed work."""
_LONGEST_SIZE_S = 900.0
"""No further round of a size is begun after this much time."""
_LARGEST_CALL = 8
"""Tiles in a timed call of the network alone."""


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the race."""

    model: str | None = None
    """Weights file of a known family. Default: what comes with jaxsr."""
    sizes: tuple[str, ...] = ("320x180", "1280x720", "4000x4000")
    """WIDTHxHEIGHT of the pictures."""
    contenders: tuple[Contender, ...] = ("jax", "jax_mesh", "eager", "channels_last", "compiled")
    """Who takes part."""
    rounds: int = 5
    """Turns of each contender."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype in which the network computes."""
    out: Path | None = RESULTS / "restore.json"
    """JSON of the figures."""


def picture_file(folder: Path, size: tuple[int, int]) -> Path:
    """A photo-like JPEG: noise enlarged, so that neither codec has it too easy."""
    from PIL import Image

    path = folder / f"{size[1]}x{size[0]}.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (size[0] // 4, size[1] // 4, 3), np.uint8)
    Image.fromarray(noise).resize((size[1], size[0]), Image.Resampling.BICUBIC).save(
        path, quality=95
    )
    return path


def _restorer(
    contender: Contender,
    model_path: str | None,
    source: Path,
    size: tuple[int, int],
    dtype: Literal["float32", "bfloat16"],
) -> Steps:
    """In a process: the first batch, then calls of the network alone and from file to file."""
    from jaxsr.data.sources import Source
    from jaxsr.interop.mesh import select_platform
    from jaxsr.restoration.around_tiles import around_tiles
    from jaxsr.restoration.batch import BatchRestorer
    from jaxsr.restoration.config import RestoreConfig
    from jaxsr.restoration.made_by import MadeBy
    from jaxsr.restoration.pipeline import Restorer
    from jaxsr.restoration.restorer import (
        configured_model,
        make_tiler,
        open_tile_runner,
        tiles_at_once,
    )
    from jaxsr.runtime.setup import torch_device
    from jaxsr.runtime.torch_runner import TorchRunner

    with tempfile.TemporaryDirectory() as folder:
        config = RestoreConfig(
            model=model_path,
            out=Path(folder),
            overwrite=True,
            engine="jax" if contender in JAX else "torch",
            dtype=dtype,
            mesh=str(len(os.sched_getaffinity(0)) if contender == "jax_mesh" else 1),
        )
        if config.devices > 1:
            select_platform("auto", simulated_devices=config.devices)
        model = configured_model(config)
        tiler = make_tiler(model, config, [size], devices=config.devices)
        if contender in (*JAX, "eager"):
            engine = open_tile_runner(model, config)
            batch = tiles_at_once(config, tiler, engine.platform) * config.devices
        else:
            engine = TorchRunner(
                model.network,
                around=around_tiles(model.value_range, ensemble=False),
                device=torch_device("auto"),
                dtype=dtype,
                compiled="max-autotune" if contender == "max_autotune" else contender == "compiled",
                channels_last=contender in ("channels_last", "max_autotune"),
            )
            batch = 1 if engine.platform == "cpu" else 8
        restorer = Restorer(
            engine, engine, tiler, scale=model.scale, channels=model.channels, batch=batch
        )
        plan = tiler.plan(size)
        tiles = plan.tiles
        sample = np.random.default_rng(0).random((batch, model.channels, *plan.shape), np.float32)

        batches = -(-min(tiles, _LARGEST_CALL) // batch)
        calls_a_picture = max(1.0, tiles / (batches * batch))

        def network() -> None:
            for _ in range(batches):
                engine.submit(sample)()

        def files() -> None:
            result = BatchRestorer(restorer, config, MadeBy(config, [model])).run(
                [Source(source, Path(source.name))]
            )
            if result.failed:
                raise RuntimeError(result.failed)

        start = time.perf_counter()
        engine.submit(sample)()
        goes_on = yield {
            "first_batch_s": time.perf_counter() - start,
            "tiles": tiles,
            "tile": list(plan.shape),
            "batch": batch,
            "model": model.name,
            "parameters": sum(p.numel() for p in model.network.parameters()),
        }
        restore_files = True
        while goes_on:
            network_s = [calls_a_picture * s for s in timed(network)]
            files_s = timed(files) if restore_files else []
            restore_files = restore_files and files_s[0] < _LONGEST_S
            goes_on = yield {"network_s": network_s, "files_s": files_s}
        yield kernel_times("jax" if contender in JAX else "torch", network, 1)


def timed(call: Callable[[], None]) -> list[float]:
    """Seconds of one to four calls after one that is not counted, if there is time for two."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < 5 and sum(seconds) < _LONGEST_S):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[1:] or seconds


def race(options: Options, size: tuple[int, int], source: Path) -> dict[str, list[Row]]:
    """Figures of every contender's turns at a size; none of one that failed."""
    starts = {
        name: partial(
            Worker, _restorer, (name, options.model, source, size, options.dtype), command="restore"
        )
        for name in options.contenders
    }
    raced, failures = race_workers(starts, rounds=options.rounds, longest_s=_LONGEST_SIZE_S)
    for name, error in failures.items():
        print(f"{name}: {error}", file=sys.stderr)
    figures = {name: [r.ready | r.end | turn for turn in r.turns] for name, r in raced.items()}
    return figures | {name: [] for name in failures}


def summary(rows: list[Row], size: tuple[int, int]) -> Row:
    """Medians and spreads of one contender at one size."""
    megapixels = size[0] * size[1] / 1e6
    figures: Row = {}
    for work in ("network", "files"):
        rates = [megapixels / s for row in rows for s in row[f"{work}_s"]]
        figures[f"{work}_mp_per_s"] = median(rates)
        figures[f"{work}_spread"] = [min(rates), max(rates)]
    figures["rounds"] = len(rows)
    figures["peak_mb"] = rows[0]["peak_host_mib"]
    constant = ("first_batch_s", "tiles", "tile", "batch", "model", "parameters")
    return figures | {name: rows[0][name] for name in constant}


def measure(options: Options) -> None:
    """Races the contenders at every size and writes the report."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    report = Report("restore", options, key=("size", "contender"), gpu=gpu)
    with tempfile.TemporaryDirectory() as folder:
        for text in options.sizes:
            width, height = map(int, text.split("x"))
            source = picture_file(Path(folder), (height, width))
            for contender, rows in race(options, (height, width), source).items():
                if not rows:
                    continue
                row = {"size": text, "contender": contender, **summary(rows, (height, width))}
                report.add(row)
                print(
                    f"{text:>10} {contender:<14} "
                    f"network {row['network_mp_per_s']:8.3f} MP/s   "
                    f"files {row['files_mp_per_s']:8.3f} MP/s   peak {row['peak_mb']:6.0f} MB   "
                    f"{row['tiles']} tiles of {row['tile'][1]}×{row['tile'][0]}",
                    flush=True,
                )


if __name__ == "__main__":
    run_benchmark(measure, Options)

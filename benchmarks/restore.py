"""Restoring pictures: JAX against the same network in torch, with the same tiles.

At each size, for every contender: how many input megapixels a second from file to file (JPEG to
JPEG: decoding, tiles, network, stitching, encoding), how many through the network alone (the same
batches of tiles, already cut), and what memory the process took at its peak.

    python benchmarks/restore.py [--model FILE] [--sizes 320x180 1280x720] [--out FILE.json]

Contenders: `jax`, `jax_mesh` (on CPUs with a device for each core, as `--mesh` has it), and torch
`eager`, `channels_last` and `compiled` (`torch.compile`'s default). Each runs in a process of its
own, so that memory peaks are its own; every round starts all of them anew. The first batch of each
process, which compiles, stands apart. Medians over all calls of the rounds and the spread from
least to most. A size gets fewer rounds than asked for, but at least one, where they would take over
a quarter of an hour: the figures say how many it got. Without --model the network is the one that
jaxsr ships. Rows are written as soon as their size is done, with their own commit and load, in the
place of those of the same size and contender; others in the file stay.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _timing import surroundings

from jaxsr.interop.atomic_write import atomic_write
from jaxsr.runtime.allocator import with_tunables

CONTENDERS = ("jax", "jax_mesh", "eager", "channels_last", "compiled")
JAX = CONTENDERS[:2]
SIZES = ("320x180", "1280x720", "4000x4000")
RESULTS = Path(__file__).parent / "results" / "restore.json"
_LONGEST_S = 20.0
"""A process stops repeating after this much timed work."""
_LONGEST_SIZE_S = 900.0
"""No further round of a size is begun after this much time."""


def picture_file(folder: Path, size: tuple[int, int]) -> Path:
    """A photo-like JPEG: noise enlarged, so that neither codec has it too easy."""
    from PIL import Image

    path = folder / f"{size[1]}x{size[0]}.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (size[0] // 4, size[1] // 4, 3), np.uint8)
    Image.fromarray(noise).resize((size[1], size[0]), Image.Resampling.BICUBIC).save(
        path, quality=95
    )
    return path


def measure(
    contender: str, model_path: str | None, source: Path, size: tuple[int, int]
) -> dict[str, Any]:
    """One process's figures: first batch, later calls, and peak memory."""
    from jaxsr.data.sources import Source
    from jaxsr.interop.mesh import select_platform
    from jaxsr.restoration.around_tiles import around_tiles
    from jaxsr.restoration.batch import BatchRestorer
    from jaxsr.restoration.config import RestoreConfig
    from jaxsr.restoration.pipeline import Restorer
    from jaxsr.restoration.restorer import configured_model, tile_runner
    from jaxsr.restoration.tiling import Tiler
    from jaxsr.runtime.setup import torch_device
    from jaxsr.runtime.torch_runner import TorchRunner

    with tempfile.TemporaryDirectory() as folder:
        config = RestoreConfig(
            model=model_path,
            out=Path(folder),
            overwrite=True,
            engine="jax" if contender in JAX else "torch",
            mesh=str(len(os.sched_getaffinity(0)) if contender == "jax_mesh" else 1),
        )
        if config.devices > 1:
            select_platform("auto", simulated_devices=config.devices)
        model = configured_model(config)
        if contender in (*JAX, "eager"):
            engine, batch = tile_runner(model, config)
        else:
            engine = TorchRunner(
                model.network,
                around=around_tiles(model.value_range, ensemble=False),
                device=torch_device("auto"),
                compiled=contender == "compiled",
                channels_last=contender == "channels_last",
            )
            batch = 1 if engine.platform == "cpu" else 8
        tiler = Tiler(model.reach, sizes=[size])
        restorer = Restorer(
            engine, engine, tiler, scale=model.scale, channels=model.channels, batch=batch
        )
        plan = tiler.plan(size)
        tiles = sum(len(row) for row in plan.rows)
        sample = np.random.default_rng(0).random((batch, model.channels, *plan.shape), np.float32)

        def network() -> None:
            for _ in range(-(-tiles // batch)):
                engine.submit(sample)()

        def files() -> None:
            outcome = BatchRestorer(restorer, config).run([Source(source, Path(source.name))])
            if outcome.failed:
                raise RuntimeError(outcome.failed)

        start = time.perf_counter()
        engine.submit(sample)()
        first_s = time.perf_counter() - start
        network_s, files_s = timed(network), timed(files)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "first_batch_s": first_s,
        "network_s": network_s,
        "files_s": files_s,
        "peak_bytes": peak,
        "tiles": tiles,
        "tile": list(plan.shape),
        "batch": batch,
        "model": model.name,
        "parameters": sum(p.numel() for p in model.network.parameters()),
    }


def timed(call: Any) -> list[float]:
    """Seconds of one to three calls."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < 3 and sum(seconds) < _LONGEST_S):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def machine() -> dict[str, Any]:
    """What a row means nothing without."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {**surroundings(), "gpu": gpu}


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows to the file, in the place of those of the same size and contender."""
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    kept = {(row["size"], row["contender"]): row for row in (*before, *rows)}

    def order(row: dict[str, Any]) -> tuple[int, int]:
        width, height = map(int, row["size"].split("x"))
        return width * height, CONTENDERS.index(row["contender"])

    result = {"benchmark": "restore", "rows": sorted(kept.values(), key=order)}
    atomic_write(path, (json.dumps(result, indent=2) + "\n").encode())


def summary(rows: list[dict[str, Any]], size: tuple[int, int], contender: str) -> dict[str, Any]:
    pixels = size[0] * size[1] / 1e6
    found: dict[str, Any] = {"size": f"{size[1]}x{size[0]}", "contender": contender}
    for what in ("network", "files"):
        rates = [pixels / s for row in rows for s in row[f"{what}_s"]]
        found[f"{what}_mp_per_s"] = median(rates)
        found[f"{what}_spread"] = [min(rates), max(rates)]
    found["first_batch_s"] = median(row["first_batch_s"] for row in rows)
    found["rounds"] = len(rows)
    found["peak_mb"] = max(row["peak_bytes"] for row in rows) / 2**20
    kept = ("tiles", "tile", "batch", "model", "parameters")
    return found | {name: rows[0][name] for name in kept}


def race(options: Any, size: str, source: Path) -> dict[str, list[dict[str, Any]]]:
    """What every contender's processes found at a size."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.contenders}
    began = time.perf_counter()
    for _ in range(options.rounds):
        for contender in options.contenders:
            command = [sys.executable, __file__, "--one", contender, str(source), size]
            if options.model:
                command += ["--model", options.model]
            keeps = contender in JAX or options.allocator == "kept"
            environment = with_tunables(dict(os.environ), command="restore") if keeps else None
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment
            )
            if done.returncode:
                print(f"{size} {contender}: {done.stderr.strip()[-300:]}", file=sys.stderr)
                continue
            found[contender].append(json.loads(done.stdout.splitlines()[-1]))
        if time.perf_counter() - began > _LONGEST_SIZE_S:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Restoring pictures, JAX against torch.")
    parser.add_argument("--model", help="weights file of a known family")
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="WIDTHxHEIGHT")
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--allocator",
        choices=("kept", "own"),
        default="kept",
        help="own: only jaxsr with the allocator settings of its commands",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file for the figures")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        contender, source, text = options.one
        width, height = map(int, text.split("x"))
        print(json.dumps(measure(contender, options.model, Path(source), (height, width))))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for text in options.sizes:
            width, height = map(int, text.split("x"))
            source = picture_file(Path(folder), (height, width))
            shared = {"allocator": options.allocator, **machine()}
            rows = [
                {**summary(measured, (height, width), contender), **shared}
                for contender, measured in race(options, text, source).items()
                if measured
            ]
            keep(options.out, rows)
            for row in rows:
                print(
                    f"{row['size']:>10} {row['contender']:<14} "
                    f"network {row['network_mp_per_s']:8.3f} MP/s   "
                    f"files {row['files_mp_per_s']:8.3f} MP/s   peak {row['peak_mb']:6.0f} MB   "
                    f"{row['tiles']} tiles of {row['tile'][1]}×{row['tile'][0]}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

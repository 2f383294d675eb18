"""Resize against torch, OpenCV, Pillow, kornia and jax.image on the same images.

    python benchmarks/ops.py [--rounds 21] [--out benchmarks/results/ops.json]

On a machine with a GPU that JAX finds, the same command measures there, against torch on CUDA and
against the bandwidth of a plain copy. `--tpu` adds what the TPU compiler estimates for the compiled
programs; no TPU is needed, and none of it is a measurement.

All contenders of a row live in one process with the same number of threads and take turns, each
waiting for its own result (see `_timing.py`). Every library gets the layout it is fastest in:
OpenCV channels last, Pillow one channel after the other over all threads, torch and jaxsr both. The
largest difference from jaxsr's values stands beside each contender, and `same` says whether it does
the same mathematics: only those are in the race. Compile time and temporary memory are those of one
shape, cold. dm_pix has no resize of its own.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _timing import Contender, quiet_idle_threads, surroundings, take_turns


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


@dataclass(frozen=True, kw_only=True)
class Row:
    """Work of one shape."""

    shape: tuple[int, int, int, int]
    """(n, c, h, w)."""
    size: tuple[int, int]
    method: str
    antialias: bool = False
    dtype: str = "float32"
    convention: str = "torch"

    @property
    def name(self) -> str:
        shape = "x".join(map(str, self.shape))
        antialias = " antialias" if self.antialias else ""
        rule = "" if self.convention == "torch" else f" {self.convention}"
        return (
            f"{shape} to {self.size[0]}x{self.size[1]} {self.method}{antialias} {self.dtype}{rule}"
        )


HD, MID, SMALL = (1, 3, 1080, 1920), (8, 3, 512, 512), (16, 3, 96, 96)
ROWS = [
    Row(shape=HD, size=(540, 960), method="bicubic", antialias=True),
    Row(shape=MID, size=(256, 256), method="bicubic", antialias=True),
    Row(shape=SMALL, size=(384, 384), method="bicubic"),
    Row(shape=HD, size=(540, 960), method="bilinear"),
    Row(shape=HD, size=(540, 960), method="bilinear", antialias=True),
    Row(shape=MID, size=(256, 256), method="bilinear", antialias=True),
    Row(shape=SMALL, size=(384, 384), method="bilinear"),
    Row(shape=HD, size=(640, 1138), method="bilinear"),
    Row(shape=HD, size=(640, 1138), method="bicubic"),
    Row(shape=HD, size=(640, 1138), method="bicubic", antialias=True),
    Row(shape=(16, 3, 384, 384), size=(96, 96), method="bicubic", antialias=True),
    Row(shape=HD, size=(540, 960), method="bicubic", antialias=True, dtype="uint8"),
    Row(shape=HD, size=(640, 1138), method="bilinear", dtype="uint8"),
    Row(shape=HD, size=(640, 1138), method="bilinear", dtype="uint8", convention="opencv"),
    Row(shape=HD, size=(540, 960), method="bicubic", dtype="uint8", convention="pillow"),
]


@dataclass(frozen=True)
class Entry:
    """A contender of a row and what its result says."""

    name: str
    call: Callable[[], Any]
    values: Callable[[Any], np.ndarray]
    """The result, channels first."""
    compiled: Any = None


def entries(row: Row, threads: int, pool: ThreadPoolExecutor) -> list[Entry]:
    """Every contender that can do the row, jaxsr first."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    first = rng.random(row.shape, dtype=np.float32)
    if row.dtype == "uint8":
        first = np.round(first * 255).astype(np.uint8)
    last = np.ascontiguousarray(first.transpose(0, 2, 3, 1))
    found = [
        *_jaxsr(row, jnp.asarray(first), jnp.asarray(last)),
        *_torch(row, first),
        *_jax_image(row, jnp.asarray(first)),
    ]
    if jax.default_backend() == "cpu":
        found += [*_opencv(row, last), *_pillow(row, first, pool)]
    return found


def _last(x: Any) -> np.ndarray:
    return np.asarray(x).transpose(0, 3, 1, 2)


def _jit_entry(name: str, call: Callable, image: Any, values: Callable) -> Entry:
    import jax

    start = time.perf_counter()
    program = jax.jit(call).lower(image).compile()
    seconds = time.perf_counter() - start
    memory = program.memory_analysis()
    assert memory is not None
    facts = {"compile_s": round(seconds, 3), "temporary_mb": memory.temp_size_in_bytes / 1e6}
    return Entry(name, lambda: program(image).block_until_ready(), values, facts)


def _jaxsr(row: Row, first: Any, last: Any) -> list[Entry]:
    from jaxsr.ops import resize

    antialias = row.antialias if row.convention == "torch" else None
    call = partial(
        resize,
        size=row.size,
        method=row.method,
        antialias=antialias,
        convention=row.convention,
    )
    return [
        _jit_entry("jaxsr", partial(call, axes=(-2, -1)), first, np.asarray),
        _jit_entry("jaxsr, channels last", call, last, _last),
    ]


def _torch(row: Row, first: np.ndarray) -> list[Entry]:
    import jax
    import torch
    import torch.nn.functional as F

    gpu = jax.default_backend() == "gpu" and torch.cuda.is_available()
    tensor = torch.from_numpy(first).to("cuda" if gpu else "cpu")
    resize = partial(F.interpolate, size=row.size, mode=row.method, antialias=row.antialias)

    def run(tensor: torch.Tensor) -> torch.Tensor:
        out = resize(tensor)
        if gpu:
            torch.cuda.synchronize()
        return out

    def values(out: torch.Tensor) -> np.ndarray:
        return out.cpu().numpy()

    channels_last = tensor.to(memory_format=torch.channels_last)
    name = "torch CUDA" if gpu else "torch"
    return [
        Entry(name, lambda: run(tensor), values),
        Entry(f"{name}, channels last", lambda: run(channels_last), values),
        *_kornia(row, tensor, run),
    ]


def _kornia(row: Row, tensor: Any, run: Callable) -> list[Entry]:
    kornia = _importable("kornia")
    if kornia is None or row.antialias or row.dtype == "uint8":
        return []  # its antialias is a Gaussian blur, another rule
    resize = partial(kornia.geometry.transform.resize, size=row.size, interpolation=row.method)
    return [Entry("kornia", lambda: resize(tensor), lambda out: out.cpu().numpy())]


def _jax_image(row: Row, first: Any) -> list[Entry]:
    import jax

    if row.dtype == "uint8":
        return []
    names = {"bilinear": "linear", "bicubic": "cubic" if row.antialias else "cubic-pytorch"}
    shape = (*row.shape[:2], *row.size)
    call = partial(jax.image.resize, shape=shape, method=names[row.method], antialias=row.antialias)
    return [_jit_entry("jax.image", call, first, np.asarray)]


def _opencv(row: Row, last: np.ndarray) -> list[Entry]:
    import cv2

    flag = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}[row.method]

    def call() -> list[np.ndarray]:
        return [cv2.resize(image, row.size[::-1], interpolation=flag) for image in last]

    name = "OpenCV, no antialias" if row.antialias or row.convention == "pillow" else "OpenCV"
    return [Entry(name, call, lambda out: _last(np.stack(out)))]


def _pillow(row: Row, first: np.ndarray, pool: ThreadPoolExecutor) -> list[Entry]:
    from PIL import Image

    if not row.antialias and row.convention != "pillow":
        return []  # it always antialiases
    kind = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[row.method]
    if row.dtype == "uint8":
        images = [Image.fromarray(x) for x in first.transpose(0, 2, 3, 1)]
    else:
        images = [Image.fromarray(plane) for x in first for plane in x]

    def call() -> list[Image.Image]:
        return list(pool.map(lambda image: image.resize(row.size[::-1], kind), images))

    def values(out: list[Image.Image]) -> np.ndarray:
        stacked = np.stack([np.asarray(image) for image in out])
        if row.dtype == "uint8":
            return _last(stacked)
        return stacked.reshape(*row.shape[:2], *row.size)

    return [Entry("Pillow", call, values)]


def _importable(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


SAME_FLOAT, SAME_UINT8 = 5e-4, 1
"""Largest difference of the same mathematics: float32 coordinates, fixed-point weights."""


def measure(row: Row, options: Options, threads: int, pool: ThreadPoolExecutor) -> dict[str, Any]:
    """The figures of one row."""
    contenders = entries(row, threads, pool)
    ours = contenders[0].values(contenders[0].call()).astype(np.float64)
    timings = take_turns(
        [Contender(entry.name, entry.call) for entry in contenders], rounds=options.rounds
    )
    best = min(timing.median_ms for timing in timings[:2])
    best_cpu = min(timing.least_cpu_ms for timing in timings[:2])
    figures = []
    limit = SAME_UINT8 if row.dtype == "uint8" else SAME_FLOAT
    for entry, timing in zip(contenders, timings, strict=True):
        difference = float(np.abs(entry.values(entry.call()) - ours).max())
        figures.append(
            {
                "name": entry.name,
                **asdict(timing),
                **(entry.compiled or {}),
                "largest_difference": difference,
                "same": difference <= limit,
                "jaxsr_is_faster": round(timing.median_ms / best, 3),
                "jaxsr_is_faster_by_cpu": round(timing.least_cpu_ms / best_cpu, 3),
            }
        )
    return {"name": row.name, "contenders": figures}


def copy_bandwidth() -> float:
    """Gigabytes a second that a plain copy reads and writes on JAX's device."""
    import jax
    import jax.numpy as jnp

    x = jnp.zeros((1 << 27,), jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    timing = take_turns([Contender("copy", lambda: copy(x).block_until_ready())], rounds=15)[0]
    return 2 * x.nbytes / timing.median_ms / 1e6


def show(result: dict[str, Any], bandwidth: float | None, row: Row) -> None:
    """Prints a row, the race first."""
    print(f"\n{result['name']}")
    for figure in result["contenders"]:
        rule = "" if figure["same"] else "  another rule"
        compiled = f"  compile {figure['compile_s']:.2f} s" if "compile_s" in figure else ""
        print(
            f"  {figure['name']:24s}{figure['median_ms']:9.2f} ms"
            f" [{figure['quartiles_ms'][0]:.2f}, {figure['quartiles_ms'][1]:.2f}]"
            f" {figure['jaxsr_is_faster']:7.2f}x   cpu {figure['least_cpu_ms']:9.2f} ms"
            f" {figure['jaxsr_is_faster_by_cpu']:7.2f}x"
            f"   differs by {figure['largest_difference']:.1e}{rule}{compiled}",
            flush=True,
        )
    if bandwidth:
        n, c, h, w = row.shape
        moved = n * c * (h * w + row.size[0] * row.size[1]) * np.dtype(row.dtype).itemsize
        rate = moved / result["contenders"][0]["median_ms"] / 1e6
        result["fraction_of_copy_bandwidth"] = round(rate / bandwidth, 3)
        print(f"  {rate:.0f} GB/s, {100 * rate / bandwidth:.0f} % of a copy's {bandwidth:.0f} GB/s")


def tpu_estimates() -> dict[str, Any]:
    """What `ops_tpu.py` prints, from a process of its own that compiles for a TPU."""
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
    with ThreadPoolExecutor(threads) as pool:
        for row in ROWS:
            if options.only in row.name:
                rows.append(measure(row, options, threads, pool))
                show(rows[-1], bandwidth, row)
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

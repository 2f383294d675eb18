"""Blur, mask crop, video pipeline and quality figures against the libraries people use for them.

    python benchmarks/ops_filters.py [--rounds 15] [--out benchmarks/results/ops_filters.json]

All contenders of a row live in one process with the same number of threads and take turns, each
waiting for its result inside the timed region. Reported per contender: the median and quartiles of
the wall time, and the least processor time of all threads, which other work on the machine disturbs
less. Every library gets its own layout (OpenCV and dm_pix channels last, torch and kornia channels
first). `same` marks contenders that compute the same values; the largest difference from jaxsr
stands beside each. The machine's load at the start is stored: times of a busy one say little.
"""

import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    rounds: int = 15
    """Turns of each contender."""
    only: str = ""
    """Measure only rows whose name holds this."""
    out: Path | None = None
    """JSON to write. Default: only printed."""


@dataclass(frozen=True)
class Contender:
    """One library's way to do a row's work."""

    name: str
    call: Call
    values: Callable[[Any], np.ndarray] | None = None
    """The result as a channels-last array, to compare with jaxsr's; None where it has no equal."""
    same: bool = True
    """Whether it computes the same values, edges included."""


@dataclass(frozen=True)
class Row:
    """Work of one shape; the first contender is jaxsr."""

    name: str
    make: Callable[[], list[Contender]]


def blur_row(n: int, h: int, w: int, size: int, sigma: float, dtype: str = "float32") -> Row:
    """RGB images of one size; the reflecting border of every library but dm_pix."""

    def make() -> list[Contender]:
        import cv2
        import jax
        import jax.numpy as jnp
        import torch
        import torch.nn.functional as F
        from scipy import ndimage

        from jaxsr.ops.blur import gaussian_blur

        rng = np.random.default_rng(0)
        last = (rng.random((n, h, w, 3)) * (255 if dtype == "uint8" else 1)).astype(dtype)
        first = np.ascontiguousarray(last.transpose(0, 3, 1, 2))
        on_last, on_first, tensor = jnp.asarray(last), jnp.asarray(first), torch.from_numpy(first)
        blur = partial(gaussian_blur, sigma=sigma, kernel_size=size, convention="opencv")
        kernel = torch.from_numpy(cv2.getGaussianKernel(size, sigma).astype(np.float32)[:, 0])
        edge = (size // 2,) * 4

        def depthwise() -> Any:
            x = F.pad(tensor.float(), edge, mode="reflect")
            x = F.conv2d(x, kernel.view(1, 1, -1, 1).expand(3, 1, -1, 1), groups=3)
            x = F.conv2d(x, kernel.view(1, 1, 1, -1).expand(3, 1, 1, -1), groups=3)
            return x if dtype == "float32" else x.round().to(torch.uint8)

        def square() -> Any:  # what torchvision does
            x = F.pad(tensor.float(), edge, mode="reflect")
            full = torch.outer(kernel, kernel).expand(3, 1, size, size)
            x = F.conv2d(x, full, groups=3)
            return x if dtype == "float32" else x.round().to(torch.uint8)

        def to_last(x: Any) -> np.ndarray:
            return np.asarray(x).transpose(0, 2, 3, 1)

        contenders = [
            Contender("jaxsr", lambda: jax.block_until_ready(blur(on_last)), np.asarray),
            Contender(
                "jaxsr, channels first",
                lambda: jax.block_until_ready(blur(on_first, axes=(-2, -1))),
                to_last,
            ),
            Contender(
                "OpenCV",
                lambda: [cv2.GaussianBlur(x, (size, size), sigma) for x in last],
                np.stack,
            ),
            Contender("torch, two depthwise convolutions", depthwise, to_last, dtype == "float32"),
            Contender("torchvision's recipe", square, to_last, dtype == "float32"),
        ]
        if dtype == "uint8":
            return contenders
        kornia, dm_pix = _importable("kornia"), _importable("dm_pix")
        if kornia:
            contenders.append(
                Contender(
                    "kornia",
                    lambda: kornia.filters.gaussian_blur2d(tensor, (size, size), (sigma, sigma)),
                    to_last,
                )
            )
        if dm_pix:
            pix = jax.jit(lambda x: dm_pix.gaussian_blur(x, sigma, size))
            contenders.append(
                Contender("dm_pix", lambda: jax.block_until_ready(pix(on_last)), np.asarray, False)
            )
        radius = (0, size // 2, size // 2, 0)
        scipy_blur = partial(
            ndimage.gaussian_filter, last, (0, sigma, sigma, 0), mode="mirror", radius=radius
        )
        contenders.append(Contender("SciPy, one thread", scipy_blur, np.asarray))
        return contenders

    return Row(f"blur {n}x{h}x{w}x3 {dtype} k={size}", make)


def _clip() -> tuple[np.ndarray, np.ndarray]:
    """8 frames of 720x1280, 0…255, and masks with one rectangle."""
    frames = (np.random.default_rng(0).random((8, 720, 1280, 3)) * 255).astype(np.float32)
    masks = np.zeros((8, 720, 1280, 1), np.float32)
    masks[:, 200:420, 500:800] = 1
    return frames, masks


def _box_by_numpy(masks: np.ndarray) -> tuple[int, int, int, int]:
    """The union's bounding box only, all a host needs to read the masks for; then ours."""
    hit = np.any(masks[..., 0] > 0.5, axis=0)
    rows, columns = np.flatnonzero(hit.any(1)), np.flatnonzero(hit.any(0))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (200, 419, 500, 799)
    return 350, 54, 950, 566


def mask_crop_row() -> Row:
    """Bounding box, cut, resample to 288x512, masks thresholded again."""

    def make() -> list[Contender]:
        import cv2
        import jax
        import jax.numpy as jnp
        import torch
        import torch.nn.functional as F

        from jaxsr.ops.mask_crop import mask_crop

        frames, masks = _clip()
        on_device = jnp.asarray(frames), jnp.asarray(masks)
        crop = partial(mask_crop, size=(288, 512))
        tensors = [torch.from_numpy(x.transpose(0, 3, 1, 2).copy()) for x in (frames, masks)]

        def by_opencv() -> Any:
            x1, y1, x2, y2 = _box_by_numpy(masks)
            cut = [cv2.resize(f[y1:y2, x1:x2], (512, 288)) for f in frames]
            return cut, [cv2.resize(m[y1:y2, x1:x2], (512, 288)) > 0.5 for m in masks]

        def by_torch() -> Any:
            hit = (tensors[1] > 0.5).amax((0, 1))
            rows, columns = hit.any(1).nonzero(), hit.any(0).nonzero()
            assert (rows[0], rows[-1], columns[0], columns[-1]) == (200, 419, 500, 799)
            x1, y1, x2, y2 = 350, 54, 950, 566
            cut = [
                F.interpolate(x[..., y1:y2, x1:x2], (288, 512), mode="bilinear") for x in tensors
            ]
            return cut[0], cut[1] > 0.5

        def by_jax_image() -> Any:
            return jax.block_until_ready(jax_image(*on_device))

        @jax.jit
        def jax_image(frames: Any, masks: Any) -> Any:
            from jaxsr.ops.mask_crop import mask_box

            x1, y1, x2, y2 = mask_box(masks).astype(jnp.float32)
            scale = jnp.stack([288 / (y2 - y1), 512 / (x2 - x1)])
            resample = partial(
                jax.image.scale_and_translate,
                spatial_dims=(1, 2),
                scale=scale,
                translation=-jnp.stack([y1, x1]) * scale,
                method="linear",
                antialias=False,
            )
            return resample(frames, (8, 288, 512, 3)), resample(masks, (8, 288, 512, 1)) > 0.5

        return [
            Contender(
                "jaxsr",
                lambda: jax.block_until_ready(crop(*on_device)),
                lambda out: np.asarray(out.frames),
            ),
            Contender("NumPy and OpenCV", by_opencv, lambda out: np.stack(out[0])),
            Contender("torch", by_torch, lambda out: out[0].numpy().transpose(0, 2, 3, 1)),
            Contender(
                "jax.image.scale_and_translate", by_jax_image, lambda out: np.asarray(out[0]), False
            ),
        ]

    return Row("mask crop 8x720x1280x3 float32 to 288x512", make)


def pipeline_row() -> Row:
    """Mask crop, resize, threshold, blur of the mask, normalisation."""

    def make() -> list[Contender]:
        import cv2
        import jax
        import jax.numpy as jnp

        from jaxsr.ops.frames import preprocess

        frames, masks = _clip()
        on_device = jnp.asarray(frames), jnp.asarray(masks)
        ready = partial(preprocess, size=(288, 512))

        def by_opencv() -> Any:
            x1, y1, x2, y2 = _box_by_numpy(masks)
            cut = [cv2.resize(f[y1:y2, x1:x2], (512, 288)) for f in frames]
            solid = [
                (cv2.resize(m[y1:y2, x1:x2], (512, 288)) > 0.5).astype(np.float32) for m in masks
            ]
            soft = [cv2.GaussianBlur(m * 255, (7, 7), 1.5) / 255 for m in solid]
            return np.stack(cut) / np.float32(127.5) - 1, solid, soft

        return [
            Contender(
                "jaxsr",
                lambda: jax.block_until_ready(ready(*on_device)),
                lambda out: np.asarray(out.frames),
            ),
            Contender("NumPy and OpenCV", by_opencv, lambda out: out[0]),
        ]

    return Row("pipeline 8x720x1280x3 float32 to 288x512", make)


def quality_row(metric: str) -> Row:
    """Pairs of uint8 photos, one figure each."""

    def make() -> list[Contender]:
        import jax
        import jax.numpy as jnp
        from skimage.metrics import peak_signal_noise_ratio, structural_similarity

        from jaxsr.ops.quality import psnr, ssim

        rng = np.random.default_rng(0)
        a = rng.integers(0, 256, (8, 512, 512, 3), np.uint8)
        b = np.clip(a + rng.normal(0, 9, a.shape), 0, 255).astype(np.uint8)
        pair = jnp.asarray(a), jnp.asarray(b)
        ours = {"psnr": psnr, "ssim": ssim}[metric]

        def by_skimage() -> Any:
            if metric == "psnr":
                return [peak_signal_noise_ratio(y, x) for x, y in zip(a, b, strict=True)]
            options = {"channel_axis": -1, "gaussian_weights": True, "use_sample_covariance": False}
            return [structural_similarity(x, y, **options) for x, y in zip(a, b, strict=True)]

        return [
            Contender("jaxsr", lambda: jax.block_until_ready(ours(*pair)), np.asarray),
            Contender("scikit-image, one thread", by_skimage, np.asarray),
        ]

    return Row(f"{metric} 8x512x512x3 uint8", make)


ROWS = (
    blur_row(1, 1080, 1920, 21, 3.5),
    blur_row(1, 1080, 1920, 7, 1.5),
    blur_row(8, 512, 512, 21, 3.5),
    blur_row(16, 96, 96, 7, 1.5),
    blur_row(1, 1080, 1920, 21, 3.5, "uint8"),
    blur_row(1, 1080, 1920, 7, 1.5, "uint8"),
    mask_crop_row(),
    pipeline_row(),
    quality_row("psnr"),
    quality_row("ssim"),
)


def _importable(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"left out: {name} is not installed", file=sys.stderr)
        return None


def measure(row: Row, rounds: int) -> list[dict[str, Any]]:
    """Every contender in turn; wall and processor time in milliseconds."""
    contenders = row.make()
    reference, figures = None, []
    for contender in contenders:
        start = time.perf_counter()
        result = contender.call()
        first = time.perf_counter() - start
        contender.call()
        apart = None
        if contender.values is not None:
            values = contender.values(result).astype(np.float64)
            reference = values if reference is None else reference
            apart = float(np.abs(values - reference).max())
        figures.append(
            {"name": contender.name, "same": contender.same, "largest_difference": apart}
        )
        figures[-1] |= {"first_ms": 1e3 * first, "wall_ms": [], "cpu_ms": []}
    for _ in range(rounds):
        for contender, figure in zip(contenders, figures, strict=True):
            cpu, wall = time.process_time(), time.perf_counter()
            contender.call()
            figure["wall_ms"].append(1e3 * (time.perf_counter() - wall))
            figure["cpu_ms"].append(1e3 * (time.process_time() - cpu))
    for figure in figures:
        low, middle, high = np.percentile(figure.pop("wall_ms"), (25, 50, 75))
        figure |= {"median_ms": middle, "quartiles_ms": [low, high]}
        figure["least_cpu_ms"] = min(figure.pop("cpu_ms"))
    for figure in figures[1:]:
        figure["jaxsr_is_faster"] = figure["median_ms"] / figures[0]["median_ms"]
        figure["jaxsr_is_faster_by_cpu"] = figure["least_cpu_ms"] / figures[0]["least_cpu_ms"]
    return figures


def _versions() -> dict[str, str]:
    names = ("jax", "torch", "cv2", "kornia", "dm_pix", "scipy", "skimage", "numpy")
    found = {name: sys.modules.get(name) for name in names}
    return {
        name: str(getattr(module, "__version__", "?")) for name, module in found.items() if module
    }


def main() -> None:
    """Measures, prints a table, and writes the JSON."""
    import tyro

    options = tyro.cli(Options, description=(__doc__ or "").splitlines()[0])
    threads = len(os.sched_getaffinity(0))
    # Idle OpenMP threads of torch would spin through the next contender's turn.
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}
    load = os.getloadavg()
    import cv2
    import jax
    import torch

    cv2.setNumThreads(threads)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    rows = {}
    for row in ROWS:
        if options.only not in row.name:
            continue
        rows[row.name] = measure(row, options.rounds)
        print(f"\n{row.name}")
        for f in rows[row.name]:
            ratio = f"{f['jaxsr_is_faster']:6.2f}x" if "jaxsr_is_faster" in f else " " * 7
            cpu = (
                f"{f['jaxsr_is_faster_by_cpu']:6.2f}x" if "jaxsr_is_faster_by_cpu" in f else " " * 7
            )
            apart = f["largest_difference"]
            rule = "" if f["same"] else ", another rule"
            print(
                f"  {f['name']:36s}{f['median_ms']:9.2f} ms {ratio}   "
                f"cpu {f['least_cpu_ms']:9.2f} ms {cpu}   differs by {apart:.1e}{rule}",
                flush=True,
            )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    document = {
        "benchmark": "ops_filters",
        "commit": commit,
        "device": f"{jax.devices()[0].device_kind}, {platform.machine()}",
        "threads": threads,
        "load_at_start": load,
        "rounds": options.rounds,
        "versions": _versions(),
        "rows": rows,
    }
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({"benchmark": "ops_filters", "commit": commit, "rows": len(rows)}))


if __name__ == "__main__":
    main()

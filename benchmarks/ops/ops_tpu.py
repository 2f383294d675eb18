"""Estimates of the TPU compiler for resize and for `jax.image.resize`: no TPU, no measurement.

Compiles each for one chip of a TPU v5e through libtpu and reads the compiled program: estimated
cycles of its operations, the bytes that they read from and write to main memory (without what
stays in the chip's fast memory, for finite values), and the compiler's "bytes accessed", which
counts both, and both ways that a NaN decides between. `ideal` is the input and the output once
each. uint8 images are resized in whole levels; `jax.image`, which has no such rule, gets them as
float32 and is rounded once. For those "jaxsr, as sums" is what the products of digits replaced.

Warps of 64 pictures of 224² × 3 follow, with an angle or a box for each, and a long blur: temporary
memory is counted. The compiler's estimate of a gather's cycles is no measure of its time.
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

from benchmarks.harness.report import Report, ReportOptions, Row, run_benchmark
from benchmarks.ops.on_tpu import TOPOLOGY, program_on_tpu

# shape (n, c, h, w), size, method, antialias, dtype, convention
CASES = [
    ((1, 3, 1080, 1920), (540, 960), "bicubic", True, "float32", "torch"),
    ((8, 3, 512, 512), (256, 256), "bicubic", True, "float32", "torch"),
    ((16, 3, 96, 96), (384, 384), "bicubic", False, "float32", "torch"),
    ((1, 3, 1080, 1920), (640, 1138), "bilinear", False, "float32", "torch"),
    ((64, 3, 256, 256), (64, 64), "bicubic", True, "uint8", "torch"),
    ((64, 3, 256, 256), (64, 64), "bicubic", True, "uint8", "matlab"),
]


def measure(options: ReportOptions) -> None:
    """Compiles every case and reports the estimates."""
    report = Report("ops_tpu", options, topology=TOPOLOGY)
    os.environ["JAX_PLATFORMS"] = "cpu"
    for rows in (resizes(), warps()):
        for row in rows:
            report.show(row)


def resizes() -> Iterator[Row]:
    """jaxsr's program of each case beside that of `jax.image`."""
    import jax
    import numpy as np

    from jaxsr.interop.aot.hlo import cycles
    from jaxsr.ops import resize
    from jaxsr.ops._resize import dispatch

    def figures(call: Any, shape: tuple[int, ...], dtype: str, ideal: float) -> Row:
        program, megabytes = program_on_tpu(call, [(shape, dtype)])
        return {
            "kilocycles": cycles(program.as_text()) / 1e3,
            "megabytes": megabytes["moved"],
            "times_the_ideal": round(megabytes["moved"] / ideal, 2),
            "megabytes_accessed": program.cost_analysis()["bytes accessed"] / 1e6,
        }

    for shape, size, method, antialias, dtype, convention in CASES:
        n, c, h, w = shape
        rule: dict[str, Any] = {"method": method, "antialias": antialias}
        call = partial(resize, size=size, convention=convention, axes=(-2, -1), **rule)
        name = {"bilinear": "linear", "bicubic": "cubic" if antialias else "cubic-pytorch"}[method]

        def other(
            image: Any, size: Any = (n, c, *size), name: str = name, antialias: bool = antialias
        ) -> Any:
            levels = image.dtype == np.uint8
            image = image.astype(np.float32)
            resized = jax.image.resize(image, size, name, antialias=antialias)
            return jax.numpy.round(resized).clip(0, 255).astype(np.uint8) if levels else resized

        ideal = np.dtype(dtype).itemsize * n * c * (h * w + size[0] * size[1]) / 1e6
        estimates = {
            "jaxsr": figures(call, shape, dtype, ideal),
            "jax.image": figures(other, shape, dtype, ideal),
        }
        if dtype == "uint8":
            jax.clear_caches()
            with mock.patch.object(dispatch, "can_take_digits", return_value=False):
                estimates["jaxsr, as sums"] = figures(call, shape, dtype, ideal)
            jax.clear_caches()
        yield {
            "name": f"{'x'.join(map(str, shape))} to {size[0]}x{size[1]} {method}"
            + (" antialias" if antialias else "")
            + ("" if dtype == "float32" else f" {dtype} {convention}"),
            "ideal_megabytes": ideal,
            "estimates": estimates,
        }


def warps() -> Iterator[Row]:
    """Programs of 64 pictures, with an angle, a box or positions for each."""
    from jaxsr import ops

    angles, boxes, places = ((64,), "float32"), ((64, 4), "float32"), ((64, 2, 224, 224), "float32")
    both = ("float32", "uint8")
    for name, call, values, dtypes in (
        ("rotate", ops.rotate, (angles,), both),
        ("rotate bicubic", partial(ops.rotate, method="bicubic"), (angles,), both[:1]),
        ("crop_and_resize", partial(ops.crop_and_resize, size=224, antialias=True), (boxes,), both),
        ("map_coordinates order 1", partial(ops.map_coordinates, order=1), (places,), both),
        ("map_coordinates order 3", partial(ops.map_coordinates, order=3), (places,), both[:1]),
        ("map_coordinates order 5", partial(ops.map_coordinates, order=5), (places,), both[:1]),
        ("gaussian_blur 51 taps", partial(ops.gaussian_blur, sigma=8.0, kernel_size=51), (),
         both[:1]),
    ):  # fmt: skip
        for dtype in dtypes:
            _, megabytes = program_on_tpu(call, [((64, 224, 224, 3), dtype), *values])
            yield {
                "name": f"{name} 64x224x224x3 {dtype}",
                "temporary_megabytes": megabytes["temporary"],
                "ideal_megabytes": megabytes["ideal"],
                "megabytes": megabytes["moved"],
            }


if __name__ == "__main__":
    run_benchmark(measure, ReportOptions)

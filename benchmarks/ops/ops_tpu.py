"""What the TPU compiler estimates for resize and for `jax.image.resize`: no TPU, no measurement.

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
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from benchmarks.harness.report import Report, ReportOptions, run_benchmark

TOPOLOGY = "v5e:1x1"
# shape (n, c, h, w), size, method, antialias, dtype, convention
CASES = [
    ((1, 3, 1080, 1920), (540, 960), "bicubic", True, "float32", "torch"),
    ((8, 3, 512, 512), (256, 256), "bicubic", True, "float32", "torch"),
    ((16, 3, 96, 96), (384, 384), "bicubic", False, "float32", "torch"),
    ((1, 3, 1080, 1920), (640, 1138), "bilinear", False, "float32", "torch"),
    ((64, 3, 256, 256), (64, 64), "bicubic", True, "uint8", "torch"),
    ((64, 3, 256, 256), (64, 64), "bicubic", True, "uint8", "matlab"),
]


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """There is only `out`."""


def measure(options: Options) -> None:
    """Compiles every case and reports the estimates."""
    report = Report("ops_tpu", options, topology=TOPOLOGY)
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np
    from jax.sharding import SingleDeviceSharding

    from jaxsr.interop.aot.hlo import cycles
    from jaxsr.interop.aot.topology import load_topology
    from jaxsr.interop.aot.traffic import main_memory_bytes
    from jaxsr.ops import resize
    from jaxsr.ops._resize import dispatch

    sharding = SingleDeviceSharding(load_topology(TOPOLOGY).devices[0])

    def compiled(call: Any, shape: tuple[int, ...], dtype: str) -> Any:
        image = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        return jax.jit(call).lower(image).compile()

    for shape, size, method, antialias, dtype, convention in CASES:
        n, c, h, w = shape
        rule: dict[str, Any] = {"method": method, "antialias": antialias}
        call = partial(resize, size=size, convention=convention, axes=(-2, -1), **rule)
        program = compiled(call, shape, dtype)
        name = {"bilinear": "linear", "bicubic": "cubic" if antialias else "cubic-pytorch"}[method]

        def other(
            image: Any, size: Any = (n, c, *size), name: str = name, antialias: bool = antialias
        ) -> Any:
            levels = image.dtype == np.uint8
            image = image.astype(np.float32)
            resized = jax.image.resize(image, size, name, antialias=antialias)
            return jax.numpy.round(resized).clip(0, 255).astype(np.uint8) if levels else resized

        contenders = {"jaxsr": program, "jax.image": compiled(other, shape, dtype)}
        if dtype == "uint8":
            jax.clear_caches()
            with mock.patch.object(dispatch, "can_take_digits", return_value=False):
                contenders["jaxsr, as sums"] = compiled(call, shape, dtype)
            jax.clear_caches()
        ideal = np.dtype(dtype).itemsize * n * c * (h * w + size[0] * size[1])
        figures = {
            name: {
                "kilocycles": cycles(program.as_text()) / 1e3,
                "megabytes": (moved := main_memory_bytes(program.as_text())) / 1e6,
                "times_the_ideal": round(moved / ideal, 2),
                "megabytes_accessed": program.cost_analysis()["bytes accessed"] / 1e6,
            }
            for name, program in contenders.items()
        }
        row = {
            "name": f"{'x'.join(map(str, shape))} to {size[0]}x{size[1]} {method}"
            + (" antialias" if antialias else "")
            + ("" if dtype == "float32" else f" {dtype} {convention}"),
            "ideal_megabytes": ideal / 1e6,
            "estimates": figures,
        }
        print(row, flush=True)
        report.add(row)
    for row in _warps(sharding):
        print(row, flush=True)
        report.add(row)


def _warps(sharding: Any) -> Iterator[dict[str, Any]]:
    import jax

    from jaxsr import ops
    from jaxsr.interop.aot.traffic import main_memory_bytes

    def struct(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    angles, boxes, places = struct(64), struct(64, 4), struct(64, 2, 224, 224)
    cut = partial(ops.crop_and_resize, size=224, antialias=True)
    bicubic = partial(ops.rotate, method="bicubic")
    blur = partial(ops.gaussian_blur, sigma=8.0, kernel_size=51)
    both = ("float32", "uint8")
    for name, call, values, dtypes in (
        ("rotate", ops.rotate, (angles,), both),
        ("rotate bicubic", bicubic, (angles,), both[:1]),
        ("crop_and_resize", cut, (boxes,), both),
        ("map_coordinates order 1", partial(ops.map_coordinates, order=1), (places,), both),
        ("map_coordinates order 3", partial(ops.map_coordinates, order=3), (places,), both[:1]),
        ("map_coordinates order 5", partial(ops.map_coordinates, order=5), (places,), both[:1]),
        ("gaussian_blur 51 taps", blur, (), both[:1]),
    ):
        for dtype in dtypes:
            images = struct(64, 224, 224, 3, dtype=dtype)
            program = jax.jit(call).lower(images, *values).compile()
            memory = program.memory_analysis()
            assert memory is not None
            ideal = memory.argument_size_in_bytes + memory.output_size_in_bytes
            yield {
                "name": f"{name} 64x224x224x3 {dtype}",
                "temporary_megabytes": memory.temp_size_in_bytes / 1e6,
                "ideal_megabytes": ideal / 1e6,
                "megabytes": main_memory_bytes(program.as_text() or "") / 1e6,
            }


if __name__ == "__main__":
    run_benchmark(measure, Options)

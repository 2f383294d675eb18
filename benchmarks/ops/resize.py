"""Rows of resize, in every library that has it."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.ops.race import Entry, Row, finished, importable, jit_entry, torch_device
from jaxsr.comparison.kernel_libraries import (
    jax_image_resize,
    jaxsr_resize,
    opencv_resize,
    pillow_resize,
    torch_resize,
)

SAME_FLOAT, SAME_UINT8 = 5e-4, 1
"""Largest difference of the same mathematics: float32 coordinates, fixed-point weights."""


@dataclass(frozen=True, kw_only=True)
class Resize:
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

    @property
    def moved_bytes(self) -> int:
        n, c, h, w = self.shape
        return n * c * (h * w + self.size[0] * self.size[1]) * np.dtype(self.dtype).itemsize


HD, MID, SMALL = (1, 3, 1080, 1920), (8, 3, 512, 512), (16, 3, 96, 96)
_WORK = [
    Resize(shape=HD, size=(540, 960), method="bicubic", antialias=True),
    Resize(shape=MID, size=(256, 256), method="bicubic", antialias=True),
    Resize(shape=SMALL, size=(384, 384), method="bicubic"),
    Resize(shape=HD, size=(540, 960), method="bilinear"),
    Resize(shape=HD, size=(540, 960), method="bilinear", antialias=True),
    Resize(shape=MID, size=(256, 256), method="bilinear", antialias=True),
    Resize(shape=SMALL, size=(384, 384), method="bilinear"),
    Resize(shape=HD, size=(640, 1138), method="bilinear"),
    Resize(shape=HD, size=(640, 1138), method="bicubic"),
    Resize(shape=HD, size=(640, 1138), method="bicubic", antialias=True),
    Resize(shape=(16, 3, 384, 384), size=(96, 96), method="bicubic", antialias=True),
    Resize(shape=HD, size=(540, 960), method="bicubic", antialias=True, dtype="uint8"),
    Resize(shape=HD, size=(640, 1138), method="bilinear", dtype="uint8"),
    Resize(shape=HD, size=(640, 1138), method="bilinear", dtype="uint8", convention="opencv"),
    Resize(shape=HD, size=(640, 1138), method="bilinear", convention="opencv"),
    *(
        Resize(shape=shape, size=size, method=method, dtype="uint8", convention="opencv")
        for shape, size in ((MID, (256, 256)), (SMALL, (384, 384)))
        for method in ("bilinear", "bicubic", "area")
    ),
    Resize(shape=HD, size=(540, 960), method="bicubic", dtype="uint8", convention="pillow"),
]


def _entries(row: Resize) -> list[Entry]:
    """Every contender that can do the row, jaxsr first."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    first = rng.random(row.shape, dtype=np.float32)
    if row.dtype == "uint8":
        first = np.round(first * 255).astype(np.uint8)
    last = np.ascontiguousarray(first.transpose(0, 2, 3, 1))
    entries = [
        *_jaxsr(row, jnp.asarray(first), jnp.asarray(last)),
        *_torch(row, first),
        *_jax_image(row, jnp.asarray(first)),
    ]
    if jax.default_backend() == "cpu":
        entries += [*_opencv(row, last), *_pillow(row, first)]
    return entries


def _last(x: Any) -> np.ndarray:
    return np.asarray(x).transpose(0, 3, 1, 2)


def _jaxsr(row: Resize, first: Any, last: Any) -> list[Entry]:
    make = partial(jaxsr_resize, row.method, row.size, row.antialias, convention=row.convention)
    return [
        jit_entry("jaxsr", make(axes=(-2, -1)), first, values=np.asarray),
        jit_entry("jaxsr, channels last", make(), last, values=_last),
    ]


def _torch(row: Resize, first: np.ndarray) -> list[Entry]:
    import torch

    if row.method == "area" and row.dtype == "uint8":
        return []  # torch has no such kernel
    device = torch_device()
    tensor = torch.from_numpy(first).to(device)
    resize = torch_resize(row.method, row.size, row.antialias)
    name, compiled_name = ("torch CUDA" if device == "cuda" else "torch"), "torch.compile"
    if device == "cuda" and row.dtype == "uint8":  # torch has no such kernel there
        resize = partial(_rounded, resize)
        name, compiled_name = (f"{n}, float32 and rounded" for n in (name, compiled_name))

    def values(out: torch.Tensor) -> np.ndarray:
        return out.cpu().numpy()

    channels_last = tensor.to(memory_format=torch.channels_last)
    entries = [
        Entry(name, finished(lambda: resize(tensor)), values),
        Entry(f"{name}, channels last", finished(lambda: resize(channels_last)), values),
        *_kornia(row, tensor),
    ]
    if device == "cuda":
        compiled = torch.compile(resize, mode="max-autotune-no-cudagraphs")
        entries.append(Entry(compiled_name, finished(lambda: compiled(tensor)), values))
    return entries


def _rounded(resize: Callable[[Any], Any], image: Any) -> Any:
    """A uint8 tensor resized as float32."""
    return resize(image.float()).round().clamp(0, 255).byte()


def _kornia(row: Resize, tensor: Any) -> list[Entry]:
    kornia = importable("kornia")
    if kornia is None or row.antialias or row.dtype == "uint8":
        return []  # its antialias is a Gaussian blur, another rule
    resize = partial(kornia.geometry.transform.resize, size=row.size, interpolation=row.method)
    return [Entry("kornia", finished(lambda: resize(tensor)), lambda out: out.cpu().numpy())]


def _jax_image(row: Resize, first: Any) -> list[Entry]:
    if row.dtype == "uint8":
        return []
    cubic = "cubic" if row.antialias else "cubic-pytorch"
    call = jax_image_resize(row.method, row.size, row.antialias, axes=(-2, -1), cubic=cubic)
    return [jit_entry("jax.image", call, first, values=np.asarray)]


def _opencv(row: Resize, last: np.ndarray) -> list[Entry]:
    resize = opencv_resize(row.method, row.size)
    name = "OpenCV, no antialias" if row.antialias or row.convention == "pillow" else "OpenCV"
    return [Entry(name, lambda: [resize(x) for x in last], lambda out: _last(np.stack(out)))]


def _pillow(row: Resize, first: np.ndarray) -> list[Entry]:
    from PIL import Image

    if not row.antialias and row.convention != "pillow":
        return []  # it always antialiases
    resize = pillow_resize(row.method, row.size)
    if row.dtype == "uint8":
        images = [Image.fromarray(x) for x in first.transpose(0, 2, 3, 1)]
    else:
        images = [Image.fromarray(plane) for x in first for plane in x]

    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    def call() -> list[Image.Image]:
        return list(pool.map(resize, images))

    def values(out: list[Image.Image]) -> np.ndarray:
        stacked = np.stack([np.asarray(image) for image in out])
        if row.dtype == "uint8":
            return _last(stacked)
        return stacked.reshape(*row.shape[:2], *row.size)

    return [Entry("Pillow", call, values)]


_GRADIENTS = [
    Resize(shape=(4, 16, 128, 128), size=(256, 256), method="bilinear"),
    Resize(shape=(4, 128, 64, 64), size=(128, 128), method="bilinear"),
    Resize(shape=(4, 16, 64, 64), size=(200, 210), method="bilinear"),
    Resize(shape=MID, size=(256, 256), method="bilinear", antialias=True),
    Resize(shape=(8, 3, 224, 224), size=(97, 130), method="bicubic", antialias=True),
]


def _gradient_entries(row: Resize) -> list[Entry]:
    """The gradient by the image: jaxsr's, the same map as matrix products, and torch's."""
    import jax
    import jax.numpy as jnp
    import torch

    from jaxsr.ops._resize.conventions.torch import torch_passes
    from jaxsr.ops._resize.dispatch import products

    n, channels, height, width = row.shape
    first = np.random.default_rng(0).random((n, channels, *row.size), dtype=np.float32)
    last = np.ascontiguousarray(first.transpose(0, 2, 3, 1))
    shape_last = (n, height, width, channels)
    make = partial(jaxsr_resize, row.method, row.size, row.antialias, convention="torch")

    def gradient(resize: Any, shape: tuple[int, ...]) -> Any:
        image = jnp.zeros(shape, jnp.float32)
        return lambda g: jax.vjp(resize, image)[1](g)[0]

    passes = torch_passes(
        shape_last, np.dtype(np.float32), (1, 2), row.size,
        method=row.method, antialias=row.antialias, align_corners=False, scale=(None, None),
    )  # fmt: skip
    by_products = gradient(partial(products, passes=passes), shape_last)
    entries = [
        jit_entry("jaxsr", gradient(make(axes=(-2, -1)), row.shape), first, values=np.asarray),
        jit_entry("jaxsr, channels last", gradient(make(), shape_last), last, values=_last),
        jit_entry("as products, channels last", by_products, last, values=_last),
    ]
    resize = torch_resize(row.method, row.size, row.antialias)
    for layout in (torch.contiguous_format, torch.channels_last):
        g = torch.from_numpy(first).to(torch_device()).contiguous(memory_format=layout)
        image = torch.zeros(row.shape, device=g.device).contiguous(memory_format=layout)
        with torch.enable_grad():
            image.requires_grad_()
            out = resize(image)

        def backward(out: Any = out, image: Any = image, g: Any = g) -> Any:
            return torch.autograd.grad(out, image, g, retain_graph=True)[0]

        name = "torch, channels last" if layout == torch.channels_last else "torch"
        entries.append(Entry(name, finished(backward), lambda out: out.cpu().numpy()))
    return entries


BATCH_BYTES = 1 << 28
"""Several times the caches of a GPU."""


def _row(work: Resize) -> Row:
    return Row(
        name=work.name,
        entries=partial(_entries, work),
        tolerance=SAME_UINT8 if work.dtype == "uint8" else SAME_FLOAT,
        moved_bytes=work.moved_bytes,
    )


def _many(work: Resize) -> Resize:
    """The work with so many images that no cache of a GPU has them."""
    n, *rest = work.shape
    return replace(work, shape=(n * max(BATCH_BYTES // work.moved_bytes, 1), *rest))


ROWS = (
    *map(_row, _WORK),
    *(
        Row(
            name=f"gradient of {work.name}",
            entries=partial(_gradient_entries, work),
            tolerance=SAME_FLOAT,
        )
        for work in _GRADIENTS
    ),
)
GPU_ROWS = tuple(map(_row, map(_many, _WORK)))
"""Rows of large batches, for GPUs."""

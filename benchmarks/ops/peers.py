"""Other libraries as contenders: how each takes a batch of pictures, and what a row makes of them.

Libraries of single pictures take them one by one, in as many threads as all contenders have. kornia
has floats alone, in 0…1, its own layout, and stands where OpenCV and Pillow have no such function;
so does torch.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.ops.race import Entry, Row, importable, jit_entry

COUNT, SIDE = 64, 224
Library = SimpleNamespace


def pictures(count: int, height: int, width: int) -> np.ndarray:
    """(n, h, w, 3), uint8, smooth with noise."""
    from scipy import ndimage

    noise = np.random.default_rng(0).random((count, height, width, 3))
    return (ndimage.gaussian_filter(noise, (0, 2, 2, 0)) * 900 - 200).clip(0, 255).astype(np.uint8)


def library() -> Library:
    """Imports the libraries that peers are made of; None for those that are not installed."""
    import cv2
    import scipy.ndimage
    import torch
    from PIL import Image, ImageEnhance, ImageOps

    names = ("kornia", "dm_pix", "skimage", "albumentations", "augmax")
    return SimpleNamespace(
        cv2=cv2, torch=torch, Image=Image, ImageOps=ImageOps, ImageEnhance=ImageEnhance,
        ndimage=scipy.ndimage, **{name: importable(name) for name in names},
    )  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """The pictures of a row, as each library takes them."""

    images: np.ndarray
    """(n, h, w, c)."""

    @cached_property
    def singles(self) -> Sequence[np.ndarray]:
        return [*self.images] if self.images.shape[-1] > 1 else [*self.images[..., 0].copy()]

    @cached_property
    def pillow(self) -> Sequence[Any]:
        from PIL import Image

        return [Image.fromarray(image) for image in self.singles]

    @cached_property
    def tensor(self) -> Any:
        """Float, 0…1, (n, c, h, w), contiguous."""
        import torch

        scale = np.float32(255 if self.images.dtype == np.uint8 else 1)
        return torch.from_numpy(np.moveaxis(self.images, -1, 1) / scale).contiguous()

    @cached_property
    def levels(self) -> Any:
        """A tensor (n, c, h, w) of the pictures' dtype, contiguous."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(self.images, -1, 1)))


@dataclass(frozen=True)
class Peer:
    """How a library does a row's work."""

    call: Callable[[Batch], Callable[[], Any]]
    values: Callable[[Any], Any]
    same: bool | None = None


def _stacked(results: Sequence[Any]) -> np.ndarray:
    return np.stack([np.asarray(result) for result in results])


def each(function: Callable[..., Any], *parameters: Iterable[Any], pillow: bool = False) -> Peer:
    """A function of one picture and of its parameters, over all threads."""
    threads = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(threads)

    def call(batch: Batch) -> Callable[[], list[Any]]:
        work = [*zip(batch.pillow if pillow else batch.singles, *parameters, strict=True)]
        part = -(-len(work) // threads)
        parts = [work[i : i + part] for i in range(0, len(work), part)]

        def share(part: Sequence[tuple[Any, ...]]) -> list[Any]:
            return [function(*arguments) for arguments in part]

        def run() -> list[Any]:
            others = [pool.submit(share, part) for part in parts[1:]]
            results = share(parts[0])
            for other in others:
                results += other.result()
            return results

        return run

    return Peer(call, _stacked)


def by_torch(
    function: Callable[[Any], Any], *, levels: bool = False, same: bool | None = None
) -> Peer:
    """A function of a tensor (n, c, h, w): floats in 0…1, or of the pictures' own dtype."""

    def call(batch: Batch) -> Callable[[], Any]:
        return partial(function, batch.levels if levels else batch.tensor)

    def values(out: Any) -> np.ndarray:
        array = np.asarray(out)
        return np.moveaxis(array, 1, -1) if array.ndim == 4 else array

    return Peer(call, values, same)


def by_jax(function: Callable[[Any], Any]) -> Peer:
    """A function of floats (n, h, w, c) in 0…1, compiled."""

    def call(batch: Batch) -> Callable[[], Any]:
        import jax

        compiled = jax.jit(function)
        scale = np.float32(255 if batch.images.dtype == np.uint8 else 1)
        x = jax.numpy.asarray(batch.images / scale)
        return lambda: jax.block_until_ready(compiled(x))

    return Peer(call, np.asarray, same=False)


def by_augmax(lib: Library, name: str, *args: Any, **options: Any) -> Peer | None:
    """A transformation of augmax, always applied, over the batch with a key for each picture."""
    if lib.augmax is None:
        return None
    import jax

    transform = getattr(lib.augmax, name)(*args, **options)

    def apply(x: Any) -> Any:
        return jax.vmap(transform)(jax.random.split(jax.random.key(0), len(x)), x)

    return by_jax(apply)


def with_augmax(
    peers: Callable[[Library], dict[str, Peer | None]], name: str, *args: Any, **options: Any
) -> Callable[[Library], dict[str, Peer | None]]:
    """The peers, and a transformation of augmax."""
    return lambda lib: {**peers(lib), "augmax": by_augmax(lib, name, *args, **options)}


def row(
    name: str,
    ours: Callable[..., Any],
    peers: Callable[[Library], dict[str, Peer | None]],
    *,
    arguments: Sequence[Any] = (),
    in_planes: Callable[..., Any] | None = None,
    dtype: str = "uint8",
    gray: bool = False,
    tolerance: float = 0,
    count: int = COUNT,
    side: int | tuple[int, int] = SIDE,
) -> Row:
    """Work of one function on all pictures.

    Args:
      name: the function's, and what else tells the row apart.
      ours: of the pictures and `arguments`.
      peers: by name; None for libraries that are not installed.
      arguments: arrays.
      in_planes: `ours` of pictures with channels first, torch's layout.
      dtype: of the pictures: uint8, or float32 in 0…1.
      gray: one channel.
      tolerance: largest difference of the same mathematics.
      count: of pictures.
      side: of each, or height and width.
    """
    height, width = (side, side) if isinstance(side, int) else side

    def make() -> list[Entry]:
        import jax.numpy as jnp

        images = pictures(count, height, width)[..., : 1 if gray else 3]
        if dtype == "float32":
            images = images / np.float32(255)
        batch = Batch(np.ascontiguousarray(images))
        arrays = [jnp.asarray(array) for array in (batch.images, *arguments)]
        entries = [jit_entry("jaxsr", ours, *arrays, values=_squeezed)]
        if in_planes is not None:
            planes = jnp.asarray(np.moveaxis(batch.images, -1, 1))
            entries.append(
                jit_entry(
                    "jaxsr, channels first",
                    in_planes,
                    planes,
                    values=lambda out: np.moveaxis(np.asarray(out), 1, -1),
                )
            )
        for peer_name, peer in peers(library()).items():
            if peer is not None:
                values = peer.values if peer.same is not False else (lambda _: np.zeros(()))
                call = peer.call(batch)
                entries.append(
                    Entry(peer_name, call, lambda x, v=values: _squeezed(v(x)), peer.same)
                )
        return entries

    shape = f"{count} x {height}²" if height == width else f"{count} x {height}x{width}"
    return Row(name=f"{name}, {shape}, {dtype}", entries=make, tolerance=tolerance)


def _squeezed(x: Any) -> np.ndarray:
    """Without an axis of one channel, which libraries of single pictures leave out."""
    array = np.asarray(x)
    return array[..., 0] if array.ndim == 4 and array.shape[-1] == 1 else array


def ours(name: str, *args: Any, **options: Any) -> Callable[..., Any]:
    """A function of jaxsr.ops."""

    def run(images: Any, *arrays: Any) -> Any:
        from jaxsr import ops

        return getattr(ops, name)(images, *arrays, *args, **options)

    return run


def cv(name: str, *args: Any, **options: Any) -> Callable[[Library], dict[str, Peer | None]]:
    """OpenCV's function of this name alone."""
    return lambda lib: {"OpenCV": each(lambda x: getattr(lib.cv2, name)(x, *args, **options))}


def colours(code: str, kornia: str | None = None) -> Callable[[Library], dict[str, Peer | None]]:
    """OpenCV's `cvtColor`, and kornia's function."""

    def peers(lib: Library) -> dict[str, Peer | None]:
        flag = getattr(lib.cv2, f"COLOR_{code}")
        found: dict[str, Peer | None] = {"OpenCV": each(lambda x: lib.cv2.cvtColor(x, flag))}
        if kornia and lib.kornia:
            found["kornia"] = by_torch(getattr(lib.kornia.color, kornia), same=False)
        return found

    return peers


def kornia(
    module: str, name: str, *args: Any, same: bool | None = False, **options: Any
) -> Callable[[Library], dict[str, Peer | None]]:
    """kornia's function alone."""

    def peers(lib: Library) -> dict[str, Peer | None]:
        if lib.kornia is None:
            return {}
        function = getattr(getattr(lib.kornia, module), name)
        return {"kornia": by_torch(lambda x: function(x, *args, **options), same=same)}

    return peers


def enhance(
    pillow: str, albumentations: str, dm_pix: str
) -> Callable[[Library], dict[str, Peer | None]]:
    """Pillow's `ImageEnhance`, albumentations' function of a factor, and dm_pix's."""
    factor = 1.4

    def peers(lib: Library) -> dict[str, Peer | None]:
        enhancer = getattr(lib.ImageEnhance, pillow)
        found: dict[str, Peer | None] = {
            "Pillow": each(lambda x: enhancer(x).enhance(factor), pillow=True)
        }
        if lib.albumentations and albumentations:
            from albumentations.augmentations.pixel import functional  # pyright: ignore

            adjust = getattr(functional, albumentations)
            found["albumentations"] = by_other_rule(each(lambda x: adjust(x, factor)))
        if lib.dm_pix and dm_pix:
            function = getattr(lib.dm_pix, dm_pix)
            found["dm_pix"] = by_jax(lambda x: function(x, factor))
        return found

    return peers


def by_other_rule(peer: Peer) -> Peer:
    """The same contender, said to follow another rule."""
    return Peer(peer.call, peer.values, same=False)


def pixel(
    pillow: str, *args: Any, albumentations: tuple[Any, ...] = ()
) -> Callable[[Library], dict[str, Peer | None]]:
    """Pillow's `ImageOps`, and albumentations' function: its name and arguments."""

    def peers(lib: Library) -> dict[str, Peer | None]:
        function = getattr(lib.ImageOps, pillow)
        found: dict[str, Peer | None] = {"Pillow": each(lambda x: function(x, *args), pillow=True)}
        if lib.albumentations and albumentations:
            from albumentations.augmentations.pixel import functional  # pyright: ignore

            name, *values = albumentations
            found["albumentations"] = by_other_rule(
                each(lambda x: getattr(functional, name)(x, *values))
            )
        return found

    return peers

"""A row of every function that a library has, too: 64 pictures of 224², as in a training batch.

Pictures are smooth with noise, channels last. Libraries of single pictures take them one by one, in
as many threads as all contenders have. kornia has floats alone, in 0…1, its own layout, and stands
where OpenCV and Pillow have no such function; so does torch.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks._ops_pictures import pictures
from benchmarks._ops_race import Entry, Row, importable, jit_entry

COUNT, SIDE = 64, 224
Library = SimpleNamespace


def library() -> Library:
    """What peers are made of, imported; None for what is not installed."""
    import cv2
    import scipy.ndimage
    import torch
    from PIL import Image, ImageEnhance, ImageOps

    names = ("kornia", "dm_pix", "skimage", "albumentations")
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
        x = jax.numpy.asarray(batch.images / np.float32(255))
        return lambda: jax.block_until_ready(compiled(x))

    return Peer(call, np.asarray, same=False)


def row(
    name: str,
    ours: Callable[..., Any],
    peers: Callable[[Library], dict[str, Peer | None]],
    *,
    arguments: Sequence[Any] = (),
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
            found["albumentations"] = _other(each(lambda x: adjust(x, factor)))
        if lib.dm_pix and dm_pix:
            function = getattr(lib.dm_pix, dm_pix)
            found["dm_pix"] = by_jax(lambda x: function(x, factor))
        return found

    return peers


def _other(peer: Peer) -> Peer:
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
            found["albumentations"] = _other(each(lambda x: getattr(functional, name)(x, *values)))
        return found

    return peers


def _flips(lib: Library) -> dict[str, Peer | None]:
    turned = lib.Image.Transpose.FLIP_LEFT_RIGHT
    return {
        "OpenCV": each(lambda x: lib.cv2.flip(x, 1)),
        "Pillow": each(lambda x: x.transpose(turned), pillow=True),
        "torch": by_torch(lambda x: x.flip(-1), levels=True),
        "dm_pix": by_jax(lib.dm_pix.flip_left_right) if lib.dm_pix else None,
    }


def _turns(lib: Library) -> dict[str, Peer | None]:
    flag, turned = lib.cv2.ROTATE_90_COUNTERCLOCKWISE, lib.Image.Transpose.ROTATE_90
    return {
        "OpenCV": each(lambda x: lib.cv2.rotate(x, flag)),
        "Pillow": each(lambda x: x.transpose(turned), pillow=True),
        "torch": by_torch(lambda x: x.rot90(1, (-2, -1)).contiguous(), levels=True),
    }


def _paddings(lib: Library) -> dict[str, Peer | None]:
    return {
        "OpenCV": each(lambda x: lib.cv2.copyMakeBorder(x, *(16,) * 4, lib.cv2.BORDER_REFLECT)),
    }


def _crops(lib: Library) -> dict[str, Peer | None]:
    return {
        "NumPy": each(lambda x: x[20:212, 10:202].copy()),
        "torch": by_torch(lambda x: x[..., 20:212, 10:202].contiguous(), levels=True),
    }


_rng = np.random.default_rng(0)
_ANGLES = _rng.uniform(-0.5, 0.5, COUNT)
_FORWARD = np.stack(
    [
        np.array([[np.cos(a), -np.sin(a), 30 * a + 40], [np.sin(a), np.cos(a), 20 * a - 10]])
        for a in _ANGLES
    ]
)
_HOMOGRAPHIES = np.stack(
    [np.vstack([m, [a * 1e-3, -a * 5e-4, 1]]) for m, a in zip(_FORWARD, _ANGLES, strict=True)]
)
_Y, _X = np.meshgrid(*(np.arange(SIDE, dtype=np.float32),) * 2, indexing="ij")
_ROWS = np.stack([_Y + 6 * np.sin(_X / 9 + k) for k in range(COUNT)]).astype(np.float32)
_COLUMNS = np.stack([_X + 6 * np.sin(_Y / 9 + k) for k in range(COUNT)]).astype(np.float32)
_GRIDS = np.stack([(_COLUMNS + 0.5) / SIDE * 2 - 1, (_ROWS + 0.5) / SIDE * 2 - 1], -1)
_BOXES = np.stack(
    [_rng.uniform(0, 60, COUNT), _rng.uniform(0, 60, COUNT),
     _rng.uniform(120, 224, COUNT), _rng.uniform(120, 224, COUNT)], -1,
).astype(np.float32)  # fmt: skip
_WHOLE_BOXES = np.floor(_BOXES)
_CAMERA = np.array([[160, 0, 111.5], [0, 160, 111.5], [0, 0, 1]], np.float32)
_LENS = np.array([-0.3, 0.08, 0.001, 0.0], np.float32)
_SQUARE = np.array([[0, 0], [200, 0], [200, 200], [0, 200]])
_QUADS = (_rng.uniform(0, 20, (COUNT, 4, 2)) + _SQUARE).astype(np.float32)


def _affine(lib: Library) -> dict[str, Peer | None]:
    def warp(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        return lib.cv2.warpAffine(x, matrix, (SIDE, SIDE))

    found: dict[str, Peer | None] = {"OpenCV": each(warp, _FORWARD)}
    if lib.kornia:
        matrices = lib.torch.from_numpy(_FORWARD).float()
        affine = lib.kornia.geometry.transform.warp_affine
        found["kornia"] = by_torch(lambda x: affine(x, matrices, (SIDE, SIDE)), same=False)
    return found


def _perspective(lib: Library) -> dict[str, Peer | None]:
    def warp(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        return lib.cv2.warpPerspective(x, matrix, (SIDE, SIDE))

    return {"OpenCV": each(warp, _HOMOGRAPHIES)}


def _remap(lib: Library) -> dict[str, Peer | None]:
    def read(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return lib.cv2.remap(x, columns, rows, lib.cv2.INTER_LINEAR)

    return {"OpenCV": each(read, _ROWS, _COLUMNS)}


def _grid(lib: Library) -> dict[str, Peer | None]:
    grid, sample = lib.torch.from_numpy(_GRIDS), lib.torch.nn.functional.grid_sample
    return {"torch": by_torch(lambda x: sample(x, grid, align_corners=False))}


def _coordinates(order: int) -> Callable[[Library], dict[str, Peer | None]]:
    def peers(lib: Library) -> dict[str, Peer | None]:
        places = np.stack([_ROWS[0], _COLUMNS[0]])

        def read(x: np.ndarray) -> np.ndarray:
            planes = [
                lib.ndimage.map_coordinates(x[..., c], places, order=order, mode="mirror")
                for c in range(3)
            ]
            return np.stack(planes, -1)

        return {"SciPy": each(read)}

    return peers


def _cut(lib: Library) -> dict[str, Peer | None]:
    def cut(x: np.ndarray, box: np.ndarray) -> np.ndarray:
        x1, y1, x2, y2 = box.astype(int)
        return lib.cv2.resize(x[y1:y2, x1:x2], (SIDE, SIDE))

    return {"OpenCV": each(cut, _WHOLE_BOXES)}


def _undistort(lib: Library) -> dict[str, Peer | None]:
    return {"OpenCV": each(lambda x: lib.cv2.undistort(x, _CAMERA, _LENS))}


def _filtered(name: str, ksize: int = 3) -> Callable[[Library], dict[str, Peer | None]]:
    def peers(lib: Library) -> dict[str, Peer | None]:
        if name == "sobel":
            function = lambda x: lib.cv2.Sobel(x, lib.cv2.CV_32F, 1, 0, ksize=ksize)  # noqa: E731
        elif name == "laplacian":
            function = lambda x: lib.cv2.Laplacian(x, lib.cv2.CV_32F, ksize=1)  # noqa: E731
        else:
            kernel, kind = np.ones((3, 3), np.uint8), getattr(lib.cv2, f"MORPH_{name}")
            function = lambda x: lib.cv2.morphologyEx(x, kind, kernel)  # noqa: E731
        return {"OpenCV": each(function)}

    return peers


def _gamma(lib: Library) -> dict[str, Peer | None]:
    table = np.rint(255 * (np.arange(256) / 255) ** 0.7).astype(np.uint8)
    return {"OpenCV's LUT, the table given": each(lambda x: lib.cv2.LUT(x, table))}


def _inverted(lib: Library) -> dict[str, Peer | None]:
    return {
        "OpenCV": each(lib.cv2.bitwise_not),
        "Pillow": each(lib.ImageOps.invert, pillow=True),
    }


def _jpeg(lib: Library) -> dict[str, Peer | None]:
    from io import BytesIO

    def by_pillow(x: Any) -> np.ndarray:
        file = BytesIO()
        x.save(file, "JPEG", quality=60)
        return np.asarray(lib.Image.open(file))

    def by_opencv(x: np.ndarray) -> np.ndarray:
        ok, data = lib.cv2.imencode(".jpg", x, [lib.cv2.IMWRITE_JPEG_QUALITY, 60])
        assert ok
        return lib.cv2.imdecode(data, lib.cv2.IMREAD_COLOR)

    return {
        "Pillow, the file too": each(by_pillow, pillow=True),
        "OpenCV, the file too": _other(each(by_opencv)),
    }


def _hue(lib: Library) -> dict[str, Peer | None]:
    found: dict[str, Peer | None] = {}
    if lib.albumentations:
        from albumentations.augmentations.pixel import functional  # pyright: ignore

        adjust = functional.adjust_hue_torchvision
        found["albumentations, OpenCV's table"] = _other(each(lambda x: adjust(x, 0.1)))
    if lib.kornia:
        hue = lib.kornia.enhance.adjust_hue
        found["kornia"] = by_torch(lambda x: hue(x, 0.1 * 2 * np.pi), same=False)
    if lib.dm_pix:
        found["dm_pix"] = by_jax(lambda x: lib.dm_pix.adjust_hue(x, 0.1))
    return found


def _guided(lib: Library) -> dict[str, Peer | None]:
    if lib.kornia is None:
        return {}
    blur = lib.kornia.filters.guided_blur
    return {"kornia": by_torch(lambda x: blur(x, x, 5, 0.01), same=False)}


def _noise(lib: Library) -> dict[str, Peer | None]:
    import threading

    local = threading.local()

    def add(x: np.ndarray) -> np.ndarray:
        if not hasattr(local, "rng"):
            local.rng = np.random.default_rng(0)
        noise = local.rng.standard_normal(x.shape, np.float32)
        return np.clip(np.rint(x + 10 * noise), 0, 255).astype(np.uint8)

    return {"NumPy": _other(each(add))}


def _standardised(lib: Library) -> dict[str, Peer | None]:
    mean, std = (np.array(v, np.float32) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    scale, shift = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
    found: dict[str, Peer | None] = {"NumPy": each(lambda x: x * scale + shift)}
    if lib.albumentations:
        from albumentations import Normalize  # pyright: ignore

        transform = Normalize()
        found["albumentations"] = each(transform.apply)
    return found


def _normalised(lib: Library) -> dict[str, Peer | None]:
    half = np.float32(1 / 127.5)
    return {
        "NumPy": each(lambda x: x * half - np.float32(1)),
        "torch": by_torch(lambda x: x.float().mul_(1 / 127.5).sub_(1), levels=True),
    }


def _distances(lib: Library) -> dict[str, Peer | None]:
    precise = lib.cv2.DIST_L2, lib.cv2.DIST_MASK_PRECISE

    def by_opencv(x: np.ndarray) -> np.ndarray:
        return lib.cv2.distanceTransform((x > 128).view(np.uint8), *precise)

    return {
        "SciPy": each(lambda x: lib.ndimage.distance_transform_edt(x > 128)),
        "OpenCV": each(by_opencv),
    }


def _matrices(lib: Library) -> dict[str, Peer | None]:
    return {
        "OpenCV": each(
            lambda _, a, b: lib.cv2.getPerspectiveTransform(a, b), _QUADS, _QUADS[::-1] + 1
        )
    }


def _perspective_matrix(_: Any, source: Any, target: Any) -> Any:
    from jaxsr import ops

    return ops.perspective_matrix(source, target)


def _masked(function: str) -> Callable[[Any], Any]:
    def run(images: Any) -> Any:
        from jaxsr import ops

        out = getattr(ops, function)(images > 128)
        return out.labels if function == "connected_components" else out

    return run


def _components(lib: Library) -> dict[str, Peer | None]:
    def label(x: np.ndarray) -> np.ndarray:
        return lib.cv2.connectedComponents((x > 128).view(np.uint8), connectivity=4)[1]

    return {"OpenCV": each(label)}


def _clahe(lib: Library) -> dict[str, Peer | None]:
    return {"OpenCV": each(lambda x: lib.cv2.createCLAHE(2.0, (8, 8)).apply(x))}


def _mirrored(images: Any) -> Any:
    from jaxsr import ops

    places = np.stack([_ROWS[0], _COLUMNS[0]])
    return ops.map_coordinates(images, places, order=1, mode="mirror")


def _cubic(images: Any) -> Any:
    from jaxsr import ops

    places = np.stack([_ROWS[0], _COLUMNS[0]])
    return ops.map_coordinates(images, places, order=3, mode="mirror")


def _noisy(images: Any) -> Any:
    import jax

    from jaxsr import ops

    return ops.gaussian_noise(jax.random.key(0), images, 10 / 255)


def _pair(name: str) -> Callable[[Any], Any]:
    def run(images: Any) -> Any:
        from jaxsr import ops

        return getattr(ops, name)(images, images[:, ::-1])

    return run


def _skimage_scaled(name: str) -> Callable[[Library], dict[str, Peer | None]]:
    def peers(lib: Library) -> dict[str, Peer | None]:
        from skimage import color

        return {"scikit-image": each(lambda x: getattr(color, name)(x * 50))}

    return peers


def _pairs_scaled(name: str) -> Callable[[Library], dict[str, Peer | None]]:
    def peers(lib: Library) -> dict[str, Peer | None]:
        from skimage import color

        return {"scikit-image": each(lambda x: getattr(color, name)(x * 50, x[::-1] * 50))}

    return peers


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEVEL, READ = 1, 0.01
"""Tolerances: a level at ties, and float32 positions against OpenCV's."""

ROWS = (
    row("flip", ours("flip"), _flips),
    row("rot90", ours("rot90"), _turns),
    row("transpose", ours("transpose"), cv("transpose")),
    row("pad 16 symmetric", ours("pad", 16, border="symmetric"), _paddings),
    row("crop 192", ours("crop", 20, 10, 192), _crops),
    row("crop_and_resize", ours("crop_and_resize", size=SIDE), _cut, arguments=(_WHOLE_BOXES,),
        dtype="float32", tolerance=1e-4),
    row("warp_affine", ours("warp_affine"), _affine, arguments=(_FORWARD.astype(np.float32),),
        tolerance=2),
    row("warp_affine", ours("warp_affine"), _affine, arguments=(_FORWARD.astype(np.float32),),
        dtype="float32", tolerance=READ),
    row("warp_perspective", ours("warp_perspective"), _perspective,
        arguments=(_HOMOGRAPHIES.astype(np.float32),), dtype="float32", tolerance=READ),
    row("perspective_matrix", _perspective_matrix, _matrices, arguments=(_QUADS, _QUADS[::-1] + 1),
        tolerance=0.1),
    row("remap", ours("remap"), _remap, arguments=(_ROWS, _COLUMNS), tolerance=LEVEL),
    row("remap", ours("remap"), _remap, arguments=(_ROWS, _COLUMNS), dtype="float32",
        tolerance=READ),
    row("grid_sample", ours("grid_sample"), _grid, arguments=(_GRIDS,), dtype="float32",
        tolerance=READ),
    row("undistort", ours("undistort", _CAMERA, _LENS), _undistort, tolerance=2),
    row("map_coordinates order 1", _mirrored, _coordinates(1), dtype="float32", tolerance=READ),
    row("map_coordinates order 3", _cubic, _coordinates(3), dtype="float32", tolerance=READ),
    row("gaussian_blur 5", ours("gaussian_blur", sigma=1.1, kernel_size=5, convention="opencv"),
        cv("GaussianBlur", (5, 5), 1.1)),
    row("gaussian_blur 5", ours("gaussian_blur", sigma=1.1, kernel_size=5),
        cv("GaussianBlur", (5, 5), 1.1), dtype="float32", tolerance=1e-5),
    row("box_filter 5", ours("box_filter", 5), cv("blur", (5, 5)), tolerance=LEVEL),
    row("box_filter 5", ours("box_filter", 5), cv("blur", (5, 5)), dtype="float32",
        tolerance=1e-5),
    row("median_filter 3", ours("median_filter", 3), cv("medianBlur", 3)),
    row("median_filter 3", ours("median_filter", 3), cv("medianBlur", 3), dtype="float32"),
    row("dilate 3", ours("dilate", 3), cv("dilate", np.ones((3, 3), np.uint8))),
    row("dilate 3", ours("dilate", 3), cv("dilate", np.ones((3, 3), np.uint8)), dtype="float32"),
    row("erode 3", ours("erode", 3), cv("erode", np.ones((3, 3), np.uint8))),
    row("opening 3", ours("opening", 3), _filtered("OPEN")),
    row("closing 3", ours("closing", 3), _filtered("CLOSE")),
    row("morphological_gradient 3", ours("morphological_gradient", 3), _filtered("GRADIENT")),
    row("bilateral_filter 5", ours("bilateral_filter", sigma_color=25.5, sigma_space=2.0, size=5),
        cv("bilateralFilter", 5, 25.5, 2.0)),
    row("guided_filter 5", lambda x: ours("guided_filter", x, 5, 0.01)(x), _guided, dtype="float32",
        count=16),
    row("unsharp_mask", ours("unsharp_mask", 1.0, 1.0),
        kornia("filters", "unsharp_mask", (9, 9), (1.0, 1.0)), dtype="float32"),
    row("sobel 3", ours("sobel", (0, 1)), _filtered("sobel"), tolerance=1e-3),
    row("sobel 3", ours("sobel", (0, 1)), _filtered("sobel"), dtype="float32", tolerance=1e-5),
    row("laplacian", ours("laplacian"), _filtered("laplacian"), tolerance=1e-3),
    row("canny", ours("canny", 50, 120),
        lambda lib: {"OpenCV": each(lambda x: lib.cv2.Canny(x, 50, 120) > 0)}, gray=True),
    row("clahe", ours("clahe", 2.0), _clahe, gray=True, tolerance=LEVEL),
    row("connected_components", _masked("connected_components"), _components, gray=True),
    row("distance_transform", _masked("distance_transform"), _distances, gray=True,
        tolerance=1e-4),
    row("adjust_brightness", ours("adjust_brightness", 1.4),
        enhance("Brightness", "adjust_brightness_torchvision", "")),
    row("adjust_contrast", ours("adjust_contrast", 1.4),
        enhance("Contrast", "", "adjust_contrast")),
    row("adjust_saturation", ours("adjust_saturation", 1.4),
        enhance("Color", "", "adjust_saturation")),
    row("adjust_sharpness", ours("adjust_sharpness", 1.4), enhance("Sharpness", "", "")),
    row("adjust_hue", ours("adjust_hue", 0.1), _hue),
    row("adjust_gamma", ours("adjust_gamma", 0.7), _gamma, tolerance=LEVEL),
    row("solarize", ours("solarize", 128),
        pixel("solarize", 128, albumentations=("solarize", 0.5))),
    row("posterize", ours("posterize", 3), pixel("posterize", 3, albumentations=("posterize", 3))),
    row("invert", ours("invert"), _inverted),
    row("equalize", ours("equalize"), pixel("equalize", albumentations=("equalize",))),
    row("autocontrast", ours("autocontrast"), pixel("autocontrast")),
    row("motion_blur 9", ours("motion_blur", 9, 30.0),
        kornia("filters", "motion_blur", 9, 30.0, 0.0), dtype="float32"),
    row("jpeg 60", ours("jpeg", 60), _jpeg),
    row("gaussian_noise", _noisy, _noise),
    row("demosaic bilinear", ours("demosaic", method="bilinear"),
        lambda lib: {"OpenCV": _other(
            each(lambda x: lib.cv2.cvtColor(x, lib.cv2.COLOR_BayerRGGB2RGB)))}, gray=True),
    row("rgb_to_hsv, OpenCV's", ours("rgb_to_hsv", convention="opencv"), colours("RGB2HSV")),
    row("hsv_to_rgb, OpenCV's", ours("hsv_to_rgb", convention="opencv"), colours("HSV2RGB"),
        tolerance=LEVEL),
    row("rgb_to_hls, OpenCV's", ours("rgb_to_hls", convention="opencv"), colours("RGB2HLS"),
        tolerance=LEVEL),
    row("hls_to_rgb, OpenCV's", ours("hls_to_rgb", convention="opencv"), colours("HLS2RGB"),
        tolerance=LEVEL),
    row("rgb_to_hsv", ours("rgb_to_hsv"), kornia("color", "rgb_to_hsv"), dtype="float32"),
    row("rgb_to_lab, OpenCV's", ours("rgb_to_lab", convention="opencv"), colours("RGB2Lab")),
    row("rgb_to_lab", ours("rgb_to_lab"), kornia("color", "rgb_to_lab", same=None),
        dtype="float32", tolerance=0.05),
    row("lab_to_rgb", lambda x: ours("lab_to_rgb")(x * 50), _skimage_scaled("lab2rgb"),
        dtype="float32", tolerance=1e-3),
    row("rgb_to_luv", ours("rgb_to_luv"), kornia("color", "rgb_to_luv"), dtype="float32"),
    row("rgb_to_xyz", ours("rgb_to_xyz"), kornia("color", "rgb_to_xyz"), dtype="float32"),
    row("srgb_to_linear", ours("srgb_to_linear"), kornia("color", "rgb_to_linear_rgb", same=None),
        dtype="float32", tolerance=1e-5),
    row("linear_to_srgb", ours("linear_to_srgb"), kornia("color", "linear_rgb_to_rgb", same=None),
        dtype="float32", tolerance=1e-5),
    row("rgb_to_ycbcr full", ours("rgb_to_ycbcr", convention="full"),
        colours("RGB2YCrCb"), tolerance=255),
    row("rgb_to_yuv", ours("rgb_to_yuv"), colours("RGB2YUV")),
    row("yuv_to_rgb", ours("yuv_to_rgb"), colours("YUV2RGB")),
    row("rgb_to_gray, OpenCV's", ours("rgb_to_gray", convention="opencv"), colours("RGB2GRAY")),
    row("rgb_to_gray", ours("rgb_to_gray"),
        lambda lib: {"Pillow": each(lambda x: x.convert("L"), pillow=True)}),
    row("delta_e", lambda x: _pair("delta_e")(x * 50), _pairs_scaled("deltaE_ciede2000"),
        dtype="float32", count=8, tolerance=1e-2),
    row("standardise", ours("standardise", MEAN, STD), _standardised, tolerance=1e-4),
    row("normalise", ours("normalise"), _normalised, tolerance=1e-5),
)  # fmt: skip

# pyright: basic
# JAX gives primitives no types.
"""`cv2.remap` and `cv2.warpAffine` in programs for CPUs: bilinear reading at any position.

OpenCV 5 weighs in float32; OpenCV 4 rounds positions to 1/32 of a pixel, so it is not called.
It also multiplies pixels by weights of zero, which we do not read: images that are not finite are
taken apart.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxsr.ops._border import BORDERS, border_period
from jaxsr.ops._opencv import for_each_row, opencv, opencv_border, shares_out
from jaxsr.ops._row_primitives import CALLS, first_installed, without_single_channel
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel
from jaxsr.xla_calls.primitives import cpu_primitive, map_by_rows
from jaxsr.xla_calls.rows import RowsCall

CHANNELS = (1, 3, 4)
"""Numbers of channels for which OpenCV computes the weights in float32."""
FARTHEST = float(1 << 22)
"""Positions beyond are as far away: float32 numbers quarters of a pixel up to here."""
CACHED_BYTES = 1 << 24
"""Images that stay in a cache from one reading to the next."""
LARGEST_EXTENT = (1 << 15) - 2
"""Pixels along an axis that `cv2.remap` numbers."""
_MOST_PERIODS = 64
"""OpenCV mirrors positions once for every period that they are away."""

_NORM_L2 = 4
"""OpenCV's number of the Euclidean norm."""

Read = Callable[..., np.ndarray]
"""Takes an image, the fill of its border and an array for the result."""
_Reader = tuple[Read, np.ndarray | None]
"""And where the result is NaN, if anywhere."""


def reading_primitive(name: str, kernel: str, plain: Callable[..., jax.Array]) -> Any:
    """A primitive of images (n, m, h, w, c), arrays (n, ...) that make positions, and fills (n,).

    Args:
      name: for jaxprs.
      kernel: one of this module.
      plain: computes it with JAX's own operations. Options are `border`, a place in
        `_border.BORDERS`, and the `size` of the result.
    """
    kernels = {"OpenCV 5": kernel}

    def shape_of(pictures: Any, *_: Any, size: tuple[int, int], **__: int) -> tuple[int, ...]:
        return (*pictures.shape[:2], *size, pictures.shape[-1])

    def on_cpu(pictures: jax.Array, *others: jax.Array, **options: Any) -> jax.Array:
        installed = first_installed(kernels)
        if installed is None:
            return plain(pictures, *others, **options)
        target, version = installed
        shape = shape_of(pictures, **options)
        # Images that are read alike are also rows of the batch.
        has_rows = len(pictures) > 1
        x = pictures if has_rows else pictures.swapaxes(0, 1)
        call = RowsCall(
            kernel=target,
            shape=(*x.shape[:2], *shape[2:]),
            axes=("n", *("n" if has_rows else "",) * len(others), "n"),
            channels_last=(False,) * (len(others) + 2),
            options=(("border", (options["border"],)), ("version", version)),
        )
        return call(x, *others).reshape(shape)

    CALLS[name] = kernels
    primitive = cpu_primitive(f"jaxsr_{name}", plain, on_cpu, shape_of=shape_of)
    map_by_rows(primitive)
    return primitive


@kernel("jaxsr_opencv_remap")
def remap_kernel(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    """Rows and columns (n, height, width)."""
    _, rows, columns, _ = inputs

    def reader(place: int, border: str, extents: tuple[int, int]) -> _Reader:
        return _by_fields(rows[place], columns[place], border, extents)

    _read_all(reader, inputs, outputs, attributes)


@kernel("jaxsr_opencv_warp_affine")
def warp_affine_kernel(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    """Matrices (n, 2, 3), from (x, y, 1) in the result to (x, y) in the image."""
    pictures, matrices, _ = inputs
    height, width = outputs[0].shape[2:4]
    size, extents = (height, width), (pictures.shape[2], pictures.shape[3])
    are_near = _are_near(matrices, size, BORDERS[attributes["border"][0]], extents)

    def reader(place: int, border: str, extents: tuple[int, int]) -> _Reader:
        if are_near[place]:
            return _by_matrix(matrices[place], size, border)
        rows, columns = _fields_of(matrices[place], size)
        return _by_fields(rows, columns, border, extents)

    _read_all(reader, inputs, outputs, attributes)


def _are_near(
    matrices: np.ndarray, size: tuple[int, int], border: str, extents: tuple[int, int]
) -> list[bool]:
    """For each matrix, whether OpenCV takes its positions as they are."""
    height, width = size
    corners = np.array([(x, y, 1) for x in (0, width - 1) for y in (0, height - 1)], np.float32)
    farthest = np.array([[_farthest(extent, border)] for extent in extents[::-1]])
    near: Any = (np.abs(matrices @ corners.T) <= farthest).all((1, 2))
    return near.tolist()


def _fields_of(matrix: np.ndarray, size: tuple[int, int]) -> list[np.ndarray]:
    """Rows and columns."""
    y, x = np.indices(size, np.float32, sparse=True)
    return [
        np.clip(line[0] * x + line[1] * y + line[2], -FARTHEST, FARTHEST) for line in matrix[::-1]
    ]


def _read_all(
    reader: Callable[[int, str, tuple[int, int]], _Reader],
    inputs: Arrays,
    outputs: Arrays,
    attributes: Attributes,
) -> None:
    pictures, fills, (results,) = inputs[0], inputs[-1], outputs
    border = BORDERS[attributes["border"][0]]
    extents = pictures.shape[2], pictures.shape[3]
    is_real, fills = pictures.dtype == np.float32, fills.tolist()
    most = 1.0 if is_real else np.iinfo(pictures.dtype).max

    def read_row(row: int) -> None:
        place = row if len(fills) == len(pictures) else 0
        read, is_lost = reader(place, border, extents)
        fill = fills[place]
        pairs = map(without_single_channel, (pictures[row], results[row]))
        for picture, result in zip(*pairs, strict=True):
            all_finite = read_ahead(picture)
            if not (is_real or (fill.is_integer() and 0 <= fill <= most)):  # which OpenCV rounds
                real = np.rint(read(picture.astype(np.float32), fill)).clip(0, most)
                result[...] = np.nan_to_num(real)
            else:
                read(picture, fill, result)
            if is_real and not (math.isfinite(fill) and (all_finite or np.isfinite(result).all())):
                result[...] = of_parts(read, picture, fill)
            if is_lost is not None:
                result[is_lost] = np.nan if is_real else 0

    is_large = shares_out(math.prod(results.shape[2:4]), len(pictures))
    for_each_row(read_row, len(pictures), large=is_large)


def _by_fields(
    rows: np.ndarray, columns: np.ndarray, border: str, extents: tuple[int, int]
) -> _Reader:
    if _is_near(rows, extents[0], border) and _is_near(columns, extents[1], border):
        return read_at(rows, columns, border), None
    is_lost = np.isnan(rows) | np.isnan(columns)
    rows, columns = (
        _within_periods(np.nan_to_num(field).clip(-FARTHEST, FARTHEST), extent, border)
        for field, extent in zip((rows, columns), extents, strict=True)
    )
    return read_at(rows, columns, border), is_lost


def read_at(rows: np.ndarray, columns: np.ndarray, border: str) -> Read:
    """Reads at positions that OpenCV takes as they are."""
    cv2, flag = opencv(), opencv_border(border)

    def read(picture: np.ndarray, fill: float, result: np.ndarray | None = None) -> np.ndarray:
        value = (fill,) * 4
        return cv2.remap(picture, columns, rows, cv2.INTER_LINEAR, result, flag, value)

    return read


def _by_matrix(matrix: np.ndarray, size: tuple[int, int], border: str) -> _Reader:
    cv2, flag, (height, width) = opencv(), opencv_border(border), size
    method = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP

    def read(picture: np.ndarray, fill: float, result: np.ndarray | None = None) -> np.ndarray:
        value = (fill,) * 4
        return cv2.warpAffine(picture, matrix, (width, height), result, method, flag, value)

    return read, None


def _farthest(extent: int, border: str) -> float:
    """Position up to which, to both sides, OpenCV takes it as it is."""
    return _MOST_PERIODS * extent if border in ("reflect101", "symmetric") else FARTHEST


def _is_near(field: np.ndarray, extent: int, border: str) -> bool:
    """Whether OpenCV takes these positions as they are; NaN is none."""
    farthest = _farthest(extent, border)
    # The root of the sum of squares bounds them all, in one reading.
    is_near = opencv().norm(field, _NORM_L2) <= farthest
    return is_near or bool(-farthest <= field.min() and field.max() <= farthest)


def _within_periods(field: np.ndarray, extent: int, border: str) -> np.ndarray:
    if border not in ("reflect101", "symmetric"):
        return field
    return field % np.float32(border_period(extent, border))


def read_ahead(picture: np.ndarray) -> bool:
    """`is_finite`, which leaves the image in the cache: turned rows take half the time then."""
    is_real = picture.dtype == np.float32
    return is_finite(picture) if is_real or picture.nbytes <= CACHED_BYTES else True


def is_finite(x: np.ndarray) -> bool:
    """Whether all values are, by a sum in float64; False also where IPP's sum overflows."""
    return math.isfinite(sum(opencv().sumElems(x)))


def of_parts(read: Read, picture: np.ndarray, fill: float, *, least: float = 0.0) -> np.ndarray:
    """Finite pixels, and separately the pixels of each other value with a weight above `least`."""
    out = read(np.nan_to_num(picture, posinf=0, neginf=0), fill if math.isfinite(fill) else 0.0)
    tests = {np.inf: np.isposinf, -np.inf: np.isneginf, np.nan: np.isnan}
    for value, test in tests.items():
        out[read(test(picture).astype(np.float32), float(test(fill))) > least] += np.float32(value)
    return out

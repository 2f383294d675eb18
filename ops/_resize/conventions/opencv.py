"""Tap tables of OpenCV's `cv2.resize`.

It never antialiases; only 'area' averages. On CPUs OpenCV itself is called where it is installed
and faster (`opencv_calls.py`); this module computes the same in JAX. Measured against the x86-64
wheels of OpenCV 4.14 and 5.0, whose results are equal bit for bit:

- float32 bilinear and bicubic run in Intel's IPP with float64 coordinates, but for images of less
  than 2 or 4 pixels on a side; those, Lanczos, and bicubic of float64 run in OpenCV's own code with
  float32 coordinates;
- uint8 bilinear and Lanczos run in OpenCV's own fixed point, weights of 11 fractional bits, width
  first; bilinear drops 4 bits of every row sum and 16 of each of the two products that follow;
- uint8 bicubic runs in IPP, in float32. The order of its sums is not published, so that about one
  value in 200,000, next to a tie, differs by a level; small images run in fixed point, with one
  difference of a level in 12 images. Wheels without IPP (Arm) compute all of them in fixed
  point and differ by a level in about one value of 20.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np

from jaxsr.ops._resize.convention import Convention
from jaxsr.ops._resize.filters import SHARP_CUBIC, TRIANGLE
from jaxsr.ops._resize.opencv_calls import resize_by_opencv
from jaxsr.ops._resize.weights import (
    Pass,
    Taps,
    centred_taps,
    choices,
    drop_bits,
    float_passes,
    make_taps,
    nearest_taps,
    round_half_even,
)

METHODS = ("nearest", "bilinear", "bicubic", "lanczos", "area")
FILTERS = {"bilinear": TRIANGLE, "bicubic": SHARP_CUBIC}
WEIGHT_BITS = 11
LEAST_IPP_EXTENT = {"bilinear": 2, "bicubic": 4}
"""Pixels that an image needs on each side for IPP to take it."""


def opencv_passes(
    shape: Sequence[int], dtype: np.dtype, axes: Sequence[int], size: Sequence[int], *, method: str
) -> list[Pass]:
    """The passes over an image of `shape`; an image that keeps its size is left alone."""
    pairs = [(axis, shape[axis], outputs) for axis, outputs in zip(axes, size, strict=True)]
    if all(extent == outputs for _, extent, outputs in pairs):
        return []
    if method == "nearest":
        return choices([(axis, _nearest(*extents)) for axis, *extents in pairs], dtype)
    is_half = len(pairs) == 2 and all(extent == 2 * outputs for _, extent, outputs in pairs)
    if method == "bilinear" and dtype == np.uint8 and is_half:
        method = "area"  # as OpenCV does
    if method == "area" and all(extent >= outputs for _, extent, outputs in pairs):
        ties_up = ties_go_up(shape, axes, size, method=method)
        return _area_passes(pairs, dtype, ties_up=ties_up)
    in_ipp = min(extent for _, extent, _ in pairs) >= LEAST_IPP_EXTENT.get(method, np.inf)
    in_ipp &= method != "bicubic" or dtype != np.float64
    if dtype == np.uint8 and not (in_ipp and method == "bicubic"):
        return _fixed_point_passes(pairs, method)
    taps: list[tuple[int, Taps]] = []
    for axis, extent, outputs in pairs:
        weights = _weights(extent, outputs, method, single=not in_ipp)
        taps.append((axis, make_taps(extent, *weights, step=extent / outputs)))
    return float_passes(taps, dtype)


def ties_go_up(
    shape: Sequence[int], axes: Sequence[int], size: Sequence[int], *, method: str
) -> bool:
    """Whether means of levels are rounded upwards at ties, and not to the even level.

    OpenCV's code for cells of 2 × 2 pixels does so, which is made for 1, 3 and 4 channels.
    """
    if method != "area" or len(axes) != 2:
        return False
    height, width = axes
    # Of other layouts, each plane is an image.
    channels = math.prod(shape[width + 1 :]) if width == height + 1 else 1
    is_half = all(shape[axis] == 2 * outputs for axis, outputs in zip(axes, size, strict=True))
    return is_half and channels in (1, 3, 4)


def _nearest(extent: int, outputs: int) -> Taps:
    step = 1.0 / (outputs / extent)
    index = np.floor(np.arange(outputs) * step).astype(np.int64)
    return nearest_taps(extent, index, step=step)


def _weights(
    extent: int, outputs: int, method: str, *, single: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Taps relative to the half-pixel centre, in float32 coordinates where `single`."""
    if method == "area":
        return _enlarging_area(extent, outputs)
    centre = (np.arange(outputs) + 0.5) * (1.0 / (outputs / extent)) - 0.5
    if method == "lanczos":
        return _lanczos_weights(centre.astype(np.float32))
    index, weight = centred_taps(centre.astype(np.float32) if single else centre, FILTERS[method])
    return index, weight / weight.sum(axis=1, keepdims=True)


def _lanczos_weights(centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """OpenCV's interpolateLanczos4: sines in float64, weights and their sum in float32."""
    base = np.floor(centre)
    distance = (centre - base)[:, None] + np.float32(3) - np.arange(8, dtype=np.float32)
    angle = -distance.astype(np.float64) * np.pi * 0.25
    at_pixel = np.abs(distance) < 1e-6
    # The sine of each angle follows from the first by the sum formula, an eighth turn apart.
    cosines, sines = np.array(
        [(1, 0), (-(0.5**0.5), -(0.5**0.5)), (0, 1), (0.5**0.5, -(0.5**0.5)),
         (-1, 0), (0.5**0.5, 0.5**0.5), (0, -1), (-(0.5**0.5), 0.5**0.5)]
    ).T  # fmt: skip
    first = angle[:, :1]
    numerator = cosines * np.sin(first) + sines * np.cos(first)
    weight = numerator / np.where(at_pixel, 1, angle**2)
    weight = np.where(at_pixel, 1e30, weight).astype(np.float32)
    total = np.add.accumulate(weight, axis=1)[:, -1:]
    weight = weight * (np.float32(1) / total)
    return base.astype(np.int64)[:, None] + np.arange(-3, 5), weight.astype(np.float64)


def _enlarging_area(extent: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """'area' where an axis grows: two taps, and the part of the output beyond a pixel's edge."""
    grow = outputs / extent
    step = 1.0 / grow
    base = np.floor(np.arange(outputs) * step).astype(np.int64)
    beyond = ((np.arange(outputs) + 1) - (base + 1) * grow).astype(np.float32)
    beyond = np.where(beyond <= 0, np.float32(0), beyond - np.floor(beyond))
    return base[:, None] + np.arange(2), np.stack([1 - beyond, beyond], axis=1).astype(np.float64)


def _fixed_point_passes(pairs: list[tuple[int, int, int]], method: str) -> list[Pass]:
    """Width, then height; a single axis counts as the width of an image that keeps its height."""
    integer = np.dtype(np.int32)
    linear = method in ("bilinear", "area")
    passes: list[Pass] = []
    for axis, extent, outputs in reversed(pairs):
        is_height = len(passes) == 1
        index, weight = _weights(extent, outputs, method, single=True)
        if linear and not is_height:
            # Columns beyond the edge take all of the edge's pixel; rows do not (the two rounded
            # weights may sum to one unit more or less).
            outside = (index[:, 0] < 0) | (index[:, 1] >= extent)
            weight = np.where(outside[:, None], [1.0, 0.0], weight)
        rounded = np.rint(weight.astype(np.float32) * np.float32(1 << WEIGHT_BITS))
        shift = 16 if linear and is_height else 0
        rounded = rounded.astype(np.int32)
        table = make_taps(extent, index, rounded, step=extent / outputs, shift=shift)
        passes.append(Pass(axis, table, integer))
    if len(passes) == 1:
        return [replace(passes[0], finish=_finish_row if linear else drop_bits(WEIGHT_BITS))]
    width, height = passes
    if linear:
        return [replace(width, finish=_drop_four_bits), replace(height, finish=drop_bits(2))]
    return [width, replace(height, finish=drop_bits(2 * WEIGHT_BITS))]


def _finish_row(x: jax.Array) -> jax.Array:
    # As the height's pass does to a row of weight 1.
    return drop_bits(2)(((x >> 4) << WEIGHT_BITS) >> 16)


def _drop_four_bits(x: jax.Array) -> jax.Array:
    return x >> 4


def _area_passes(
    pairs: list[tuple[int, int, int]], dtype: np.dtype, *, ties_up: bool
) -> list[Pass]:
    taps = [(axis, _shrinking_area(extent, outputs)) for axis, extent, outputs in pairs]
    if dtype != np.uint8:
        return float_passes(taps, dtype)
    if any(extent % outputs for _, extent, outputs in pairs):
        single = np.dtype(np.float32)
        ordered = [Pass(axis, replace(table, in_order=True), single) for axis, table in taps[::-1]]
        return [*ordered[:-1], replace(ordered[-1], finish=round_half_even)]
    # Whole ratios: an integer sum, times the reciprocal of the area in float32.
    integer = np.dtype(np.int32)
    area = int(np.prod([extent // outputs for _, extent, outputs in pairs]))

    def mean(x: jax.Array) -> jax.Array:
        if ties_up:
            return (x + 2) >> 2
        return round_half_even(x.astype(np.float32) * np.float32(1.0 / area))

    passes: list[Pass] = []
    for axis, table in taps:
        ones = np.rint(table.weight * (table.extent // table.outputs)).astype(np.int32)
        passes.append(Pass(axis, replace(table, weight=ones), integer))
    return [*passes[:-1], replace(passes[-1], finish=mean)]


def _shrinking_area(extent: int, outputs: int) -> Taps:
    """Overlap of each output's cell with each pixel; slivers below 1/1000 pixel are dropped."""
    step = 1.0 / (outputs / extent)
    start = np.arange(outputs) * step
    stop = start + step
    cell = np.minimum(step, extent - start)
    last = np.minimum(np.floor(stop), extent - 1)
    first = np.minimum(np.ceil(start), last)
    index = (first[:, None] - 1).astype(np.int64) + np.arange(int((last - first).max()) + 2)
    before = np.where(first - start > 1e-3, first - start, 0.0)
    after = np.where(stop - last > 1e-3, np.minimum(np.minimum(stop - last, 1.0), cell), 0.0)
    inside = (index >= first[:, None]) & (index < last[:, None])
    weight = np.where(inside, 1.0, 0.0)
    weight = np.where(index == first[:, None] - 1, before[:, None], weight)
    weight = np.where(index == last[:, None], after[:, None], weight) / cell[:, None]
    return make_taps(extent, index, weight, step=step)


CONVENTION = Convention(
    name="opencv",
    passes=opencv_passes,
    methods=METHODS,
    antialias=False,
    antialias_is_fixed=True,
    most_axes=2,
    ties_go_up=ties_go_up,
    library=resize_by_opencv,
    library_dtypes=("uint8", "float32"),
)

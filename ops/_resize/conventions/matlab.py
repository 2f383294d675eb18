"""Tap tables of MATLAB's `imresize`, the "bicubic" of the super-resolution literature.

Keys' cubic, stretched by the inverse of the scale when shrinking; weights normalised over all taps;
taps outside the image clamped to the edge (older releases, and the published low-resolution images
of Set5, Set14, BSD100 and Urban100) or mirrored (newer releases). uint8 images are resized height
with the axis of the smaller scale first (of equal ones the height), as in float64, rounded half up
and clipped after each pass.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._resize.convention import Convention
from jaxsr.ops._resize.filters import BOX, TRIANGLE, Filter
from jaxsr.ops._resize.weights import (
    Pass,
    Taps,
    choices,
    clamp_to_uint8,
    drop_bits,
    float_passes,
    make_taps,
)


def _cubic(x: np.ndarray) -> np.ndarray:
    # Powers, not Horner's form: the last bit of a weight decides ties between two levels of uint8.
    x = np.abs(x)
    near = 1.5 * x**3 - 2.5 * x**2 + 1
    far = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return near * (x <= 1) + far * ((x > 1) & (x <= 2))


def _lanczos(lobes: int) -> Filter:
    def weigh(x: np.ndarray) -> np.ndarray:
        eps = np.finfo(np.float64).eps
        window = np.sin(np.pi * x) * np.sin(np.pi * x / lobes) + eps
        return window / (np.pi**2 * x**2 / lobes + eps) * (np.abs(x) < lobes)

    return Filter(float(lobes), weigh)


FILTERS = {
    "nearest": BOX,
    "box": BOX,
    "bilinear": TRIANGLE,
    "bicubic": Filter(2.0, _cubic),
    "lanczos2": _lanczos(2),
    "lanczos": _lanczos(3),
}
METHODS = tuple(FILTERS)
EDGES = ("clamp", "mirror")
MOST_BITS = 20
"""Binary digits of a weight that sums of levels leave room for in 32 bits."""


def matlab_size(extents: Sequence[int], scale: float) -> tuple[int, ...]:
    """The extents of `imresize(image, scale)`: each one times the scale, rounded up.

    Example:
      >>> ops.matlab_size((321, 481), 1 / 3)
      (107, 161)
    """
    return tuple(math.ceil(extent * scale) for extent in extents)


def matlab_passes(
    shape: Sequence[int],
    dtype: np.dtype,
    axes: Sequence[int],
    size: Sequence[int],
    *,
    method: str,
    antialias: bool,
    matlab_edges: str,
    scale: Sequence[float | None],
) -> list[Pass]:
    """The passes over an image of `shape`, the smallest scale first."""
    in_order = dtype == np.uint8
    scales = [
        outputs / shape[axis] if factor is None else factor
        for axis, outputs, factor in zip(axes, size, scale, strict=True)
    ]
    taps = [
        (axis, _taps(shape[axis], outputs, factor, method, antialias, matlab_edges, in_order))
        for factor, _, axis, outputs in sorted(
            zip(scales, range(len(axes)), axes, size, strict=True)
        )
    ]
    if all(table.is_choice for _, table in taps):
        return choices(taps, dtype)
    if in_order:
        return [_levels_pass(axis, table) for axis, table in taps]
    return float_passes(taps, dtype)


def _levels_pass(axis: int, taps: Taps) -> Pass:
    """A pass over uint8 levels, in float64 where integers would not give the same sums.

    At scales that are powers of two the weights have few binary digits (×1/4: 12): float64 sums of
    them are exact in any order, and so are those of integers.
    """
    scaled = np.ldexp(taps.weight, MOST_BITS)
    largest = 255 * np.abs(scaled).sum(axis=1).max() + (1 << MOST_BITS)
    if (scaled == np.rint(scaled)).all() and largest < 1 << 31:
        integers = replace(taps, weight=scaled.astype(np.int32), in_order=False)
        return Pass(axis, integers, np.dtype(np.int32), drop_bits(MOST_BITS))
    return Pass(axis, taps, np.dtype(np.float64), _round_half_up)


def _round_half_up(x: jax.Array) -> jax.Array:
    return clamp_to_uint8(jnp.floor(x + 0.5))


def _taps(
    extent: int,
    outputs: int,
    scale: float,
    method: str,
    antialias: bool,
    edges: str,
    in_order: bool,
) -> Taps:
    window = FILTERS[method]
    shrink = min(scale, 1.0) if antialias and method != "nearest" else 1.0
    width = 2 * window.radius / shrink
    # MATLAB counts pixels from 1.
    centre = np.arange(1, outputs + 1) / scale + 0.5 * (1 - 1 / scale)
    index = np.floor(centre - width / 2).astype(np.int64)[:, None]
    index = index + np.arange(math.ceil(width) + 2)
    weight = shrink * window.weigh(shrink * (index - centre[:, None]))
    weight = weight / weight.sum(axis=1, keepdims=True)
    index = index - 1
    if edges == "mirror":
        index = index % (2 * extent)
        index = np.minimum(index, 2 * extent - 1 - index)
    return make_taps(extent, index, weight, step=1 / scale, in_order=in_order)


CONVENTION = Convention(
    name="matlab",
    passes=matlab_passes,
    methods=METHODS,
    antialias=True,
    options=("scale", "matlab_edges"),
)

"""Colour filter arrays: the mosaic that a sensor sees, and the colours of every pixel from it.

A pattern names the colours of the upper left 2 × 2 pixels, row by row. Mosaics have one channel.
`axes` names height and width (NHWC by default), `channel` the channels; uint8, uint16 and floating
point, integers rounded half up. In programs for CPUs OpenCV takes the means of integers.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, normal_axis, one_of
from jaxsr.ops._border import pad_axis
from jaxsr.ops._images import INTEGER_DTYPES, channel_planes, in_dtype_of, picture, real_dtype
from jaxsr.ops._opencv import for_each_row, opencv, shares_out
from jaxsr.ops._row_primitives import row_primitive
from jaxsr.ops._typed_jax import arange, jit
from jaxsr.ops._types import Array, Shaped
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel

PATTERNS = ("RGGB", "BGGR", "GRBG", "GBRG")
Taps = dict[tuple[int, int], float]
"""Weights of a window, by row and column from its middle."""


def _turned(taps: Taps) -> Taps:
    return {(column, row): weight for (row, column), weight in taps.items()}


_CROSS: Taps = {(-1, 0): 1 / 4, (1, 0): 1 / 4, (0, -1): 1 / 4, (0, 1): 1 / 4}
_CORNERS: Taps = {(row, column): 1 / 4 for row in (-1, 1) for column in (-1, 1)}
_IN_ROW: Taps = {(0, -1): 1 / 2, (0, 1): 1 / 2}
# Malvar, He & Cutler, ICASSP 2004, figure 2.
_FAR_CROSS: Taps = {(-2, 0): -1 / 8, (2, 0): -1 / 8, (0, -2): -1 / 8, (0, 2): -1 / 8}
_GREEN: Taps = {key: 2 / 8 for key in _CROSS} | _FAR_CROSS | {(0, 0): 4 / 8}
_OPPOSITE: Taps = (
    {key: 2 / 8 for key in _CORNERS} | {key: -1.5 / 8 for key in _FAR_CROSS} | {(0, 0): 6 / 8}
)
_SIDES: Taps = (
    {key: -1 / 8 for key in _CORNERS}
    | {(-2, 0): 0.5 / 8, (2, 0): 0.5 / 8, (0, -2): -1 / 8, (0, 2): -1 / 8}
    | {key: 4 / 8 for key in _IN_ROW}
    | {(0, 0): 5 / 8}
)
METHODS: dict[str, tuple[Taps, Taps, Taps]] = {
    "bilinear": (_CROSS, _CORNERS, _IN_ROW),
    "malvar": (_GREEN, _OPPOSITE, _SIDES),
}
"""Green on red and blue; red on blue and blue on red; on green the colour of its neighbours in the
row."""


def bayer_mosaic(
    image: Shaped[ImageLike, "..."],
    *,
    pattern: str = "RGGB",
    axes: Sequence[int] = (-3, -2),
    channel: int = -1,
) -> Shaped[Array, "..."]:
    """Keeps of every pixel the colour that a sensor's filter lets through.

    Args:
      image: RGB images.
      pattern: `"RGGB"`, `"BGGR"`, `"GRBG"` or `"GBRG"`.
      axes: the height and the width axis.
      channel: the axis of channels.

    Returns:
      The mosaic, of one channel.

    Raises:
      TypeError: an unsuitable dtype.
      ValueError: channels that are not 3, or an unknown pattern.

    Example:
      >>> ops.bayer_mosaic(np.full((2, 2, 3), [10, 20, 30], np.uint8))[..., 0].tolist()
      [[10, 20], [20, 30]]
    """
    array, positions = picture(image, axes)
    one_of(pattern, PATTERNS, "pattern")
    red, green, blue = channel_planes(array, channel)
    is_red, is_blue, _ = _places(red, positions, pattern)
    return jnp.where(is_red, red, jnp.where(is_blue, blue, green))


def demosaic(
    mosaic: Shaped[ImageLike, "..."],
    *,
    pattern: str = "RGGB",
    method: str = "malvar",
    axes: Sequence[int] = (-3, -2),
    channel: int = -1,
) -> Shaped[Array, "..."]:
    """Gives every pixel all three colours.

    Args:
      mosaic: of one channel.
      pattern: see `bayer_mosaic`.
      method: `"bilinear"` takes means of neighbours, as OpenCV's `demosaicing` within the edge;
        `"malvar"` corrects them by the other colours (Malvar, He & Cutler, ICASSP 2004). Beyond the
        edge images are mirrored.
      axes: the height and the width axis.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype.
      ValueError: more than one channel, or an unknown name.

    Example:
      >>> mosaic = np.array([[10, 20], [20, 30]], np.uint8)[..., None]
      >>> ops.demosaic(mosaic, method="bilinear")[0, 0].tolist()
      [10, 20, 30]
    """
    array, positions = picture(mosaic, axes, "mosaic")
    one_of(pattern, PATTERNS, "pattern")
    one_of(method, tuple(METHODS), "method")
    place = normal_axis(channel, array.ndim, "channel")
    if array.shape[place] != 1:
        raise ValueError(f"a mosaic has one channel, got {array.shape[place]} on axis {channel}")
    return _demosaic(array, pattern, method, positions, place)


@jit("pattern", "method", "axes", "channel")
def _demosaic(
    mosaic: jax.Array, pattern: str, method: str, axes: tuple[int, int], channel: int
) -> jax.Array:
    is_whole = mosaic.dtype in INTEGER_DTYPES and mosaic.size > 0
    if is_whole and method == "bilinear" and axes == (-3, -2) and channel == mosaic.ndim - 1:
        planes = mosaic.reshape(-1, *mosaic.shape[-3:-1])
        colours = _bilinear_p.bind(planes, pattern=PATTERNS.index(pattern))
        return colours.reshape(*mosaic.shape[:-1], 3)
    return _demosaic_in_jax(mosaic, pattern, method, axes, channel)


def _demosaic_in_jax(
    mosaic: jax.Array, pattern: str, method: str, axes: tuple[int, int], channel: int
) -> jax.Array:
    x = mosaic.astype(real_dtype(mosaic))
    wide = x
    for axis in axes:
        wide = pad_axis(wide, wide.ndim + axis, 2, 2, "reflect101")

    def shifted(row: int, column: int) -> jax.Array:
        part = wide
        for axis, offset in zip(axes, (row, column), strict=True):
            start, extent = offset + 2, mosaic.shape[axis]
            part = jax.lax.slice_in_dim(part, start, start + extent, axis=part.ndim + axis)
        return part

    green, opposite, sides = (partial(_sum, shifted, taps) for taps in METHODS[method])
    above = partial(_sum, shifted, _turned(METHODS[method][2]))
    is_red, is_blue, in_red_row = _places(mosaic, axes, pattern)
    beside, over = sides(), above()
    planes = [
        jnp.where(is_red, x, jnp.where(is_blue, opposite(), jnp.where(in_red_row, beside, over))),
        jnp.where(is_red | is_blue, green(), x),
        jnp.where(is_blue, x, jnp.where(is_red, opposite(), jnp.where(in_red_row, over, beside))),
    ]
    colours = jnp.concatenate(planes, channel)
    whole = mosaic.dtype in INTEGER_DTYPES
    return in_dtype_of(mosaic, jnp.floor(colours + 0.5) if whole else colours)


@kernel("jaxsr_opencv_demosaic")
def _bilinear_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (planes,), (results,), cv2 = inputs, outputs, opencv()
    # OpenCV names a pattern by the second row, from the second column on.
    name = PATTERNS[attributes["pattern"][0]][:1:-1]
    code = getattr(cv2, f"COLOR_Bayer{name}2RGB")

    def convert(row: int) -> None:
        # OpenCV repeats its inner pixels at the edge. Two more on each side keep the pattern.
        wide = cv2.copyMakeBorder(planes[row], 2, 2, 2, 2, cv2.BORDER_REFLECT_101)
        cv2.copyTo(cv2.cvtColor(wide, code)[2:-2, 2:-2], None, results[row])

    is_large = shares_out(math.prod(planes.shape[1:]), len(planes))
    for_each_row(convert, len(planes), large=is_large)


def _bilinear_in_jax(planes: jax.Array, *, pattern: int) -> jax.Array:
    return _demosaic_in_jax(planes[..., None], PATTERNS[pattern], "bilinear", (-3, -2), 3)


def _colours_shape(planes: Any) -> tuple[int, ...]:  # also of an abstract array
    return (*planes.shape, 3)


_bilinear_p = row_primitive(
    "demosaic",
    _bilinear_in_jax,
    {"OpenCV": _bilinear_by_opencv},
    shape_of=_colours_shape,
)


def _sum(shifted: Callable[[int, int], jax.Array], taps: Taps) -> jax.Array:
    first, *rest = (shifted(*offset) * weight for offset, weight in taps.items())
    return sum(rest, first)


def _places(
    image: jax.Array, axes: tuple[int, int], pattern: str
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where red is, where blue is, and the rows of red; with axes to broadcast."""

    def parity(axis: int) -> jax.Array:
        shape = [1] * image.ndim
        shape[axis] = image.shape[axis]
        return (arange(image.shape[axis]) % 2).reshape(shape)

    rows, columns = (parity(axis) for axis in axes)
    row, column = divmod(pattern.index("R"), 2)
    in_red_row = rows == row
    in_red_column = columns == column
    return in_red_row & in_red_column, ~in_red_row & ~in_red_column, in_red_row

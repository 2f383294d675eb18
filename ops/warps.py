"""Images read at positions between their pixels: affine and perspective warps, grids, splines.

Images are uint8, uint16 or floating point in any layout; `axes` names height and width (NHWC by
default). Positions are in pixels, (x, y) in matrices and (rows, columns) in fields, with the centre
of the first pixel at 0. Sums run in float32 (float64 for float64). Matrices, angles and fields may
be traced, and may hold one value for each image; one program serves all.

| `method` | filter |
|---|---|
| `"nearest"` | the nearest pixel, halves to the even one |
| `"bilinear"` | two taps an axis |
| `"bicubic"` | four taps, Keys' cubic with a = -3/4: torch's and OpenCV's |

`border` is one of `"constant"` (taps beyond the edge are `fill`), `"edge"`, `"reflect101"`,
`"symmetric"` and `"wrap"`. A NaN reaches the results whose filter covers it and no others.
Gradients pass to images and to positions.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, flag, is_integer, number, one_of, positive_pair
from jaxsr.ops._border import Border, checked_border, pad_axis
from jaxsr.ops._images import (
    Parameter,
    check_per_picture,
    in_dtype_of,
    parameter,
    per_picture,
    picture,
    real_dtype,
)
from jaxsr.ops._sampler import (
    METHODS,
    affine_place,
    at_fields,
    grid_position,
    nearest_up,
    sample,
    spline,
    spline_window,
)
from jaxsr.ops._separable import filter_bordered
from jaxsr.ops._typed_jax import asarray, jit
from jaxsr.ops._types import Array, Shaped
from jaxsr.ops.homography import adjugate
from jaxsr.xla_calls.stored import stored

SPLINE_MODES: dict[str, tuple[Border, Border]] = {
    "reflect": ("symmetric", "symmetric"),
    "grid-mirror": ("symmetric", "symmetric"),
    "mirror": ("reflect101", "reflect101"),
    "constant": ("reflect101", "reflect101"),
    "grid-constant": ("constant", "reflect101"),
    "nearest": ("edge", "symmetric"),
    "grid-wrap": ("wrap", "wrap"),
}
"""SciPy's modes beyond the edge: for taps, and for the spline's coefficients."""
_PADDED = ("nearest", "grid-constant")
_SPLINE_PADDING = 12  # pixels that SciPy adds in these modes before it computes coefficients
_PADDING_MODES: dict[str, Border] = {"zeros": "constant", "border": "edge"}


def warp_affine(
    image: Shaped[ImageLike, "..."],
    matrix: Parameter,
    *,
    size: int | Sequence[int] | None = None,
    method: str = "bilinear",
    border: str = "constant",
    fill: float = 0,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Moves pixels by `[x', y'] = matrix @ [x, y, 1]`, as OpenCV's `warpAffine` and kornia's.

    Args:
      image: input images.
      matrix: (..., 2, 3), from positions in the image to positions in the result. One for all
        images, or one for each.
      size: (height, width) of the result. Default: that of the image. Static.
      method, border, fill: see the module.
      axes: the height and the width axis.

    Returns:
      The warped images. A matrix without an inverse gives NaN, and 0 in integers.

    Raises:
      TypeError: an unsuitable dtype, or a matrix that holds no numbers.
      ValueError: a matrix of another shape, or an unknown name.

    Example:
      >>> image = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
      >>> ops.warp_affine(image, [[1, 0, 1], [0, 1, 0]]).ravel().tolist()
      [0.0, 0.0, 1.0]
    """
    full = parameter(matrix, "matrix", (2, 3))
    last = jnp.broadcast_to(asarray([0, 0, 1], full.dtype), (*full.shape[:-2], 1, 3))
    moves = jnp.concatenate([full, last], -2)
    return _checked_warp(image, moves, size, method, border, fill, axes, is_affine=True)


def warp_perspective(
    image: Shaped[ImageLike, "..."],
    matrix: Parameter,
    *,
    size: int | Sequence[int] | None = None,
    method: str = "bilinear",
    border: str = "constant",
    fill: float = 0,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Moves pixels by a homography, as OpenCV's `warpPerspective` and kornia's.

    Args:
      image: input images.
      matrix: (..., 3, 3), from positions (x, y, 1) in the image to those in the result, up to a
        factor. One for all images, or one for each.
      size, method, border, fill, axes: see `warp_affine`.

    Returns:
      The warped images.

    Raises:
      TypeError: an unsuitable dtype, or a matrix that holds no numbers.
      ValueError: a matrix of another shape, or an unknown name.

    Example:
      >>> image = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
      >>> ops.warp_perspective(image, np.diag([2.0, 2.0, 2.0])).ravel().tolist()
      [0.0, 1.0, 2.0]
    """
    homography = parameter(matrix, "matrix", (3, 3))
    return _checked_warp(image, homography, size, method, border, fill, axes, is_affine=False)


def _checked_warp(
    image: ImageLike,
    matrix: jax.Array,
    size: int | Sequence[int] | None,
    method: str,
    border: str,
    fill: float,
    axes: Sequence[int],
    *,
    is_affine: bool,
) -> jax.Array:
    array, positions = picture(image, axes)
    one_of(method, tuple(METHODS), "method")
    height, width = (array.shape[axis] for axis in positions)
    extents = (height, width) if size is None else positive_pair(size, "size")
    edge, outside = checked_border(border), parameter(number(fill, "fill"), "fill")
    return _warp(array, matrix, outside, extents, method, edge, positions, is_affine)


@jit("size", "method", "border", "axes", "is_affine")
def _warp(
    image: jax.Array,
    matrix: jax.Array,
    fill: jax.Array,
    size: tuple[int, int],
    method: str,
    border: Border,
    axes: tuple[int, int],
    is_affine: bool,
) -> jax.Array:
    def place(numbers: jax.Array, inverse: jax.Array) -> tuple[jax.Array, jax.Array]:
        v, u, scale = affine_place(numbers, inverse, size[1])
        return (v, u) if is_affine else (v / scale, u / scale)

    def warp(x: jax.Array, forward: jax.Array) -> jax.Array:
        return sample(
            x,
            place,
            (_inverse(forward),),
            size,
            axes=axes,
            weigh=METHODS[method],
            border=border,
            fill=fill,
            is_affine=is_affine,
        )

    return per_picture(warp, image, axes, {"matrix": (matrix, 2)})


def rotate(
    image: Shaped[ImageLike, "*shape"],
    degrees: Parameter,
    *,
    scale: Parameter = 1.0,
    method: str = "bilinear",
    border: str = "constant",
    fill: float = 0,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Turns images counter-clockwise about their middle, as scikit-image and torchvision.

    Args:
      image: input images.
      degrees: the angle: one number, or one for each image.
      scale: enlarges about the middle as well: one number, or one for each image.
      method, border, fill, axes: see `warp_affine`.

    Raises:
      TypeError: an unsuitable dtype, or an angle that is not a number.
      ValueError: angles that do not belong to the images, or an unknown name.

    Example:
      >>> image = np.arange(9, dtype=np.float32).reshape(3, 3, 1)
      >>> ops.rotate(image, 90, method="nearest")[..., 0].tolist()
      [[2.0, 5.0, 8.0], [1.0, 4.0, 7.0], [0.0, 3.0, 6.0]]
    """
    array, positions = picture(image, axes)
    height, width = (array.shape[axis] for axis in positions)
    angle, size = parameter(degrees, "degrees"), parameter(scale, "scale")
    check_per_picture(angle, "degrees", array, positions)
    check_per_picture(size, "scale", array, positions)
    matrix = rotation_matrix(angle, size, ((height - 1) / 2, (width - 1) / 2))
    return warp_affine(array, matrix, method=method, border=border, fill=fill, axes=axes)


def rotation_matrix(degrees: jax.Array, scale: jax.Array, center: tuple[float, float]) -> jax.Array:
    """(..., 2, 3) for `warp_affine`: counter-clockwise about (row, column), exact at quarters."""
    degrees = stored(degrees)
    rest = jnp.mod(degrees + 45, 90)
    turn = (rest - 45) * (np.pi / 180)
    # Counted by the rest: a quotient may round up to the next quarter.
    quarter = jnp.mod(jnp.round((degrees + 45 - rest) / 90), 4)
    # Cosines and sines of multiples of a right angle are whole numbers.
    c = scale * jnp.select([quarter == k for k in range(4)], _turned(jnp.cos(turn), jnp.sin(turn)))
    s = scale * jnp.select([quarter == k for k in range(4)], _turned(jnp.sin(turn), -jnp.cos(turn)))
    y, x = center
    rows = [[c, s, x - c * x - s * y], [-s, c, y + s * x - c * y]]
    return jnp.stack([jnp.stack(jnp.broadcast_arrays(*row), -1) for row in rows], -2)


def _turned(near: jax.Array, next_one: jax.Array) -> list[jax.Array]:
    return [near, -next_one, -near, next_one]


def remap(
    image: Shaped[ImageLike, "..."],
    rows: Parameter,
    columns: Parameter,
    *,
    method: str = "bilinear",
    border: str = "constant",
    fill: float = 0,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Reads images at given positions, as OpenCV's `remap(image, columns, rows)`.

    Args:
      image: input images.
      rows: (..., H, W): for each pixel of the result the row to read, in pixels.
      columns: the columns, of the same shape.
      method, border, fill, axes: see `warp_affine`.

    Raises:
      TypeError: an unsuitable dtype, or positions that are not numbers.
      ValueError: positions of two shapes or without height and width, or an unknown name.

    Example:
      >>> image = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
      >>> ops.remap(image, [[0.0, 0.0]], [[0.5, 2.0]]).ravel().tolist()
      [0.5, 2.0]
    """
    array, positions = picture(image, axes)
    fields = {"rows": parameter(rows, "rows"), "columns": parameter(columns, "columns")}
    if fields["rows"].shape != fields["columns"].shape or fields["rows"].ndim < 2:
        shapes = " and ".join(str(field.shape) for field in fields.values())
        raise ValueError(
            f"rows and columns must be (..., height, width), of one shape; got {shapes}"
        )
    one_of(method, tuple(METHODS), "method")
    edge, outside = checked_border(border), parameter(number(fill, "fill"), "fill")
    return _remap(array, fields["rows"], fields["columns"], outside, method, edge, positions)


@jit("method", "border", "axes")
def _remap(
    image: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    fill: jax.Array,
    method: str,
    border: Border,
    axes: tuple[int, int],
) -> jax.Array:
    def read(x: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
        return sample(
            x, *at_fields(rows, columns), axes=axes, weigh=METHODS[method], border=border, fill=fill
        )

    return per_picture(read, image, axes, {"rows": (rows, 2), "columns": (columns, 2)})


def grid_sample(
    image: Shaped[ImageLike, "..."],
    grid: Parameter,
    *,
    method: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Reads images at a grid of (x, y) in [-1, 1], as `torch.nn.functional.grid_sample`.

    Args:
      image: input images.
      grid: (..., H, W, 2): (x, y) of every pixel of the result.
      method: `"nearest"`, `"bilinear"` or `"bicubic"`.
      padding_mode: `"zeros"`, `"border"` or `"reflection"`.
      align_corners: whether -1 and 1 are the centres of the corner pixels, not their outer edges.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a grid that holds no numbers.
      ValueError: a grid of another shape, or an unknown name.

    Example:
      >>> image = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
      >>> grid = np.array([[[0.0, 0.0], [1.0, 0.0]]])
      >>> ops.grid_sample(image, grid, align_corners=True).ravel().tolist()
      [1.0, 2.0]
    """
    array, positions = picture(image, axes)
    places = parameter(grid, "grid", (2,))
    if places.ndim < 3:
        raise ValueError(f"grid must be (..., height, width, 2), got {places.shape}")
    one_of(padding_mode, (*_PADDING_MODES, "reflection"), "padding_mode")
    corners = flag(align_corners, "align_corners")
    border = _PADDING_MODES.get(padding_mode, "reflect101" if corners else "symmetric")

    rows, columns = (
        grid_position(places[..., k], array.shape[axis], method, padding_mode, corners)
        for k, axis in zip((1, 0), positions, strict=True)
    )
    return remap(array, rows, columns, method=method, border=border, axes=axes)


def map_coordinates(
    image: Shaped[ImageLike, "..."],
    coordinates: Parameter,
    *,
    order: int = 3,
    mode: str = "constant",
    cval: float = 0.0,
    prefilter: bool = True,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Reads images with splines of order 0 to 5, as `scipy.ndimage.map_coordinates`.

    Coefficients of a spline depend on the whole image, in weights that fall by 0.43 a pixel or
    faster. They are summed over windows, so that a NaN reaches at most 22 pixels further.

    Args:
      image: input images.
      coordinates: (..., 2, H, W): rows and columns of every pixel of the result.
      order: of the spline: 0 is the nearest pixel, 1 linear. Static.
      mode: SciPy's `"reflect"`, `"grid-mirror"`, `"mirror"`, `"constant"` (positions beyond the
        outermost centres are `cval`), `"grid-constant"`, `"nearest"` or `"grid-wrap"`.
      cval: value beyond the edge.
      prefilter: whether the image holds pixels, not coefficients already.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or an order that is not an integer.
      ValueError: coordinates of another shape, an order beyond 5, or an unknown mode.

    Example:
      >>> image = np.arange(4, dtype=np.float32).reshape(1, 4, 1) ** 2
      >>> ops.map_coordinates(image, [[[0.0]], [[1.5]]], order=1).item()
      2.5
    """
    array, positions = picture(image, axes)
    places = parameter(coordinates, "coordinates")
    if places.ndim < 3 or places.shape[-3] != 2:
        raise ValueError(f"coordinates must be (..., 2, height, width), got {places.shape}")
    if not is_integer(order):
        raise TypeError(f"order must be an integer, got {order!r}")
    if not 0 <= order <= 5:
        raise ValueError(f"order must be 0 to 5, got {order}")
    if mode == "wrap":
        raise ValueError("mode 'wrap' of SciPy overlaps the edge pixels; use 'grid-wrap'")
    one_of(mode, tuple(SPLINE_MODES), "mode")
    smooth = order > 1 and flag(prefilter, "prefilter")
    return _map_coordinates(array, places, order, mode, number(cval, "cval"), smooth, positions)


@jit("order", "mode", "cval", "smooth", "axes")
def _map_coordinates(
    image: jax.Array,
    coordinates: jax.Array,
    order: int,
    mode: str,
    cval: float,
    smooth: bool,
    axes: tuple[int, int],
) -> jax.Array:
    border, spline_border = SPLINE_MODES[mode]
    # Without a spline's sums the pixels are read as they are stored.
    coefficients = image.astype(real_dtype(image)) if smooth else image
    padding = _SPLINE_PADDING if smooth and mode in _PADDED else 0
    for axis in (a + image.ndim for a in axes):
        if padding:
            widths = [(padding, padding, 0) if k == axis else (0, 0, 0) for k in range(image.ndim)]
            coefficients = (
                jax.lax.pad(coefficients, asarray(cval, coefficients.dtype), widths)
                if border == "constant"
                else pad_axis(coefficients, axis, padding, padding, border)
            )
        if smooth and coefficients.shape[axis] > 1 and coefficients.size:
            window = spline_window(order, coefficients.dtype)
            coefficients = filter_bordered(coefficients, window, axis, spline_border)
    weigh = nearest_up if order == 0 else spline(order)
    extents = [coefficients.shape[axis] for axis in axes]

    def read(x: jax.Array, places: jax.Array) -> jax.Array:
        rows, columns = places[0] + padding, places[1] + padding
        inside = ~jnp.isnan(rows + columns)
        fields: list[jax.Array] = []
        for position, extent in zip((rows, columns), extents, strict=True):
            inside &= (position >= 0) & (position <= extent - 1)
            # Beyond its padding SciPy repeats the spline's value at the edge.
            fields.append(jnp.clip(position, 0, extent - 1) if mode == "nearest" else position)
        values = sample(x, *at_fields(*fields), axes=axes, weigh=weigh, border=border, fill=cval)
        if mode != "constant":
            return values
        shape = [1] * x.ndim
        shape[axes[0]], shape[axes[1]] = inside.shape
        inside = inside if axes[0] < axes[1] else inside.T
        return jnp.where(inside.reshape(shape), values, cval)

    return in_dtype_of(
        image, per_picture(read, coefficients, axes, {"coordinates": (coordinates, 3)})
    )


def _inverse(matrix: jax.Array) -> jax.Array:
    """The inverse of 3 x 3, by cofactors: exact where the entries are small whole numbers."""
    cofactors = adjugate(matrix)
    return cofactors / jnp.sum(matrix[0] * cofactors[:, 0])

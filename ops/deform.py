"""Images bent by smooth fields: elastic noise, and thin plates held at points.

Images are uint8, uint16 or floating point in any layout; `axes` names height and width (NHWC by
default). Distances are in pixels, with the centre of the first pixel at 0. Noise, points and
factors may be traced, and may hold one value for each image.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, number, one_of, positive_pair
from jaxsr.ops._border import Border, checked_border
from jaxsr.ops._images import Parameter, parameter, per_picture, picture
from jaxsr.ops._linear import solve
from jaxsr.ops._sampler import METHODS, at_fields, bilinear, sample
from jaxsr.ops._typed_jax import arange, asarray, eye, fori_loop, jit, ones_like, zeros
from jaxsr.ops._types import Array, Shaped
from jaxsr.ops.blur import gaussian_blur
from jaxsr.ops.warps import remap

_STEPS = 16  # of the search for a point's place; each halves the error where fields are smooth


def elastic(
    image: Shaped[ImageLike, "*shape"],
    noise: Parameter,
    *,
    alpha: Parameter,
    sigma: float,
    method: str = "bilinear",
    border: str = "reflect101",
    fill: float = 0,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Bends images by smoothed noise (Simard et al., ICDAR 2003).

    Every pixel is read at its place plus `alpha` times the noise, which a Gaussian smooths.

    Args:
      image: input images.
      noise: (..., 2, H, W): of rows and columns, mostly between -1 and 1. One for all images, or
        one for each.
      alpha: pixels for noise of 1; one number, or one for each image.
      sigma: of the Gaussian, in pixels. Static.
      method, border, fill, axes: see `warp_affine`.

    Raises:
      TypeError: an unsuitable dtype, or noise that holds no numbers.
      ValueError: noise of another shape than the images', or an unknown name.

    Example:
      >>> image = np.arange(5, dtype=np.float32).reshape(1, 5, 1)
      >>> ops.elastic(image, np.ones((2, 1, 5)), alpha=1, sigma=1, border="edge").ravel().tolist()
      [1.0, 2.0, 3.0, 4.0, 4.0]
    """
    array, positions = picture(image, axes)
    size = tuple(array.shape[axis] for axis in positions)
    field = smooth_field(parameter(noise, "noise", (2, *size)), parameter(alpha, "alpha"), sigma)
    return bent(array, field, method=method, border=border, fill=fill, axes=positions)


def smooth_field(noise: jax.Array, alpha: jax.Array | float, sigma: float) -> jax.Array:
    """(..., 2, H, W): the displacement of rows and columns that `elastic` makes of noise."""
    factor = asarray(alpha)
    smooth = gaussian_blur(noise, sigma=sigma, axes=(-2, -1))
    return smooth * factor.reshape(*factor.shape, 1, 1, 1)


def bent(
    image: jax.Array,
    field: jax.Array,
    *,
    method: str,
    border: str,
    fill: float,
    axes: tuple[int, int],
) -> jax.Array:
    """Images read at every pixel's place plus its displacement."""
    height, width = field.shape[-2:]
    rows = field[..., 0, :, :] + arange(height, dtype=field.dtype)[:, None]
    columns = field[..., 1, :, :] + arange(width, dtype=field.dtype)
    return remap(image, rows, columns, method=method, border=border, fill=fill, axes=axes)


def unbent(points: jax.Array, field: jax.Array) -> jax.Array:
    """Where (N, K, 2) points (x, y) come to lie in images that were `bent`.

    Place p shows the pixel from p + d(p). The place of q solves p = q - d(p), by repetition, which
    converges if the field does not fold over itself.
    """

    def one(points: jax.Array, field: jax.Array) -> jax.Array:
        def step(_: jax.Array, place: jax.Array) -> jax.Array:
            rows, columns = place[:, 1:] - 0.5, place[:, :1] - 0.5
            moves = sample(
                field,
                *at_fields(rows, columns),
                axes=(-2, -1),
                weigh=bilinear,
                border="edge",
                fill=0.0,
            )
            return points - moves[::-1, :, 0].T

        return fori_loop(0, _STEPS, step, points)

    return jax.vmap(one)(points, field)


def thin_plate_spline(
    image: Shaped[ImageLike, "..."],
    source: Parameter,
    target: Parameter,
    *,
    smoothing: Parameter = 0.0,
    size: int | Sequence[int] | None = None,
    method: str = "bilinear",
    border: str = "constant",
    fill: float = 0,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Moves points to other places, and all between them with least bending.

    The spline from the result to the image is that of SciPy's `RBFInterpolator(target, source,
    kernel="thin_plate_spline", degree=1)` (Bookstein, IEEE PAMI 1989).

    Args:
      image: input images.
      source: (..., K, 2): (x, y) of at least three points of the image, not on one line.
      target: where they come to lie in the result, of the same shape.
      smoothing: 0 moves the points exactly; more bends less. One number, or one for each image.
      size: (height, width) of the result. Default: that of the image. Static.
      method, border, fill, axes: see `warp_affine`.

    Returns:
      The bent images. Points that coincide or lie on one line give NaN, and 0 in integers.

    Raises:
      TypeError: an unsuitable dtype, or points that are not numbers.
      ValueError: points of two shapes, fewer than three, or an unknown name.

    Example:
      >>> image = np.arange(4, dtype=np.float32).reshape(2, 2, 1)
      >>> corners = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
      >>> turned = ops.thin_plate_spline(image, corners, corners[::-1])
      >>> print(np.asarray(turned).ravel().round(3))
      [3. 2. 1. 0.]
    """
    array, positions = picture(image, axes)
    before, behind = parameter(source, "source"), parameter(target, "target")
    if before.shape != behind.shape or before.ndim < 2 or before.shape[-1] != 2:
        shapes = f"{before.shape} and {behind.shape}"
        raise ValueError(f"source and target must be (..., K, 2), of one shape; got {shapes}")
    if before.shape[-2] < 3:
        raise ValueError(f"a thin plate needs at least 3 points, got {before.shape[-2]}")
    one_of(method, tuple(METHODS), "method")
    height, width = (array.shape[axis] for axis in positions)
    extents = (height, width) if size is None else positive_pair(size, "size")
    edge, outside = checked_border(border), parameter(number(fill, "fill"), "fill")
    stiffness = parameter(smoothing, "smoothing")
    return _thin_plate(array, before, behind, stiffness, outside, extents, method, edge, positions)


@jit("size", "method", "border", "axes")
def _thin_plate(
    image: jax.Array,
    source: jax.Array,
    target: jax.Array,
    smoothing: jax.Array,
    fill: jax.Array,
    size: tuple[int, int],
    method: str,
    border: Border,
    axes: tuple[int, int],
) -> jax.Array:
    unit = float(max(size))  # numbers of a like size, for float32

    def warp(x: jax.Array, source: jax.Array, target: jax.Array, smoothing: jax.Array) -> jax.Array:
        knots = target / unit
        count = knots.shape[0]
        bends = _bending(knots[:, 0, None] - knots[:, 0], knots[:, 1, None] - knots[:, 1])
        plane = jnp.concatenate([ones_like(knots[:, :1]), knots], 1)
        bends += eye(count, dtype=knots.dtype) * (smoothing / unit**2)
        top = jnp.concatenate([bends, plane], 1)
        bottom = jnp.concatenate([plane.T, zeros((3, 3), knots.dtype)], 1)
        moves = jnp.concatenate([source - target, zeros((3, 2), knots.dtype)])
        weights = solve(jnp.concatenate([top, bottom]), moves)
        rows = arange(size[0], dtype=knots.dtype)[:, None]
        columns = arange(size[1], dtype=knots.dtype)

        def add(k: jax.Array, fields: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            bend = _bending(columns / unit - knots[k, 0], rows / unit - knots[k, 1])
            return fields[0] + weights[k, 0] * bend, fields[1] + weights[k, 1] * bend

        flat = weights[count:, :, None, None]
        start = flat[0] + flat[1] * (columns / unit) + flat[2] * (rows / unit)
        across, down = fori_loop(0, count, add, (start[0], start[1]))
        return sample(
            x,
            *at_fields(rows + down, columns + across),
            axes=axes,
            weigh=METHODS[method],
            border=border,
            fill=fill,
        )

    parameters = {"source": (source, 2), "target": (target, 2), "smoothing": (smoothing, 0)}
    return per_picture(warp, image, axes, parameters)


def _bending(across: jax.Array, down: jax.Array) -> jax.Array:
    """r² log r, 0 at 0."""
    square = across * across + down * down
    apart = square > 0
    return jnp.where(apart, 0.5 * square * jnp.log(jnp.where(apart, square, 1)), 0)

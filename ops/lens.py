"""Lens distortion by OpenCV's model: Brown and Conrady's, rational, with thin prisms.

A camera is (..., 3, 3) with focal lengths and centre in pixels; other entries are not read.
Coefficients are OpenCV's, in its order: k1, k2, p1, p2, then k3, then k4, k5, k6, then s1 to s4,
so that there are 4, 5, 8 or 12. Both may be traced, and may hold one value for each image.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, number, one_of, positive_pair
from jaxsr.ops._border import Border, checked_border
from jaxsr.ops._images import Parameter, parameter, per_picture, picture
from jaxsr.ops._sampler import METHODS, at_fields, sample
from jaxsr.ops._typed_jax import arange, fori_loop, jit, pad
from jaxsr.ops._types import Array, Shaped

Place = tuple[jax.Array, jax.Array]
_COUNTS = (4, 5, 8, 12)
_STEPS = 20  # of the inverse; 5 are OpenCV's default, for weaker lenses


def undistort(
    image: Shaped[ImageLike, "..."],
    camera: Parameter,
    distortion: Parameter,
    *,
    new_camera: Parameter | None = None,
    size: int | Sequence[int] | None = None,
    method: str = "bilinear",
    border: str = "constant",
    fill: float = 0,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Removes a lens's distortion, as OpenCV's `undistort`.

    Args:
      image: images that the lens has made.
      camera: (..., 3, 3): focal lengths and centre in pixels.
      distortion: (..., 4), (..., 5), (..., 8) or (..., 12): see the module.
      new_camera: of the result. Default: `camera`.
      size: (height, width) of the result. Default: that of the image. Static.
      method, border, fill, axes: see `warp_affine`.

    Raises:
      TypeError: an unsuitable dtype, or parameters that hold no numbers.
      ValueError: parameters of another shape, or an unknown name.

    Example:
      >>> image = np.arange(5, dtype=np.float32).reshape(1, 5, 1)
      >>> camera = [[2, 0, 2], [0, 2, 0], [0, 0, 1]]
      >>> ops.undistort(image, camera, [-0.25, 0, 0, 0]).ravel().tolist()
      [0.5, 1.0625, 2.0, 2.9375, 3.5]
    """
    options = (new_camera, size, method, border, fill, axes)
    return _lens(image, camera, distortion, "bent", *options)


def distort(
    image: Shaped[ImageLike, "..."],
    camera: Parameter,
    distortion: Parameter,
    *,
    new_camera: Parameter | None = None,
    size: int | Sequence[int] | None = None,
    method: str = "bilinear",
    border: str = "constant",
    fill: float = 0,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Bends images as a lens does; `undistort` is the inverse.

    The inverse of the model has no closed form; it is searched as in OpenCV's `undistortPoints`,
    which converges if the lens does not fold the image over itself.

    Args:
      image: straight images, of `new_camera`.
      camera: of the result.
      distortion: see the module.
      new_camera: of the image. Default: `camera`.
      size, method, border, fill, axes: see `undistort`.

    Raises:
      TypeError: an unsuitable dtype, or parameters that hold no numbers.
      ValueError: parameters of another shape, or an unknown name.

    Example:
      >>> image = np.arange(5, dtype=np.float32).reshape(1, 5, 1)
      >>> camera = [[2, 0, 2], [0, 2, 0], [0, 0, 1]]
      >>> print(np.asarray(ops.distort(image, camera, [0.25, 0, 0, 0])).ravel().round(2))
      [0.3  1.05 2.   2.95 3.7 ]
    """
    options = (new_camera, size, method, border, fill, axes)
    return _lens(image, camera, distortion, "straight", *options)


def _lens(
    image: ImageLike,
    camera: Parameter,
    distortion: Parameter,
    reads: str,
    new_camera: Parameter | None,
    size: int | Sequence[int] | None,
    method: str,
    border: str,
    fill: float,
    axes: Sequence[int],
) -> jax.Array:
    array, positions = picture(image, axes)
    lens = parameter(camera, "camera", (3, 3))
    straight = lens if new_camera is None else parameter(new_camera, "new_camera", (3, 3))
    coefficients = parameter(distortion, "distortion")
    if coefficients.ndim < 1 or coefficients.shape[-1] not in _COUNTS:
        raise ValueError(
            f"distortion must be (..., n) with 4, 5, 8 or 12 coefficients, got {coefficients.shape}"
        )
    one_of(method, tuple(METHODS), "method")
    height, width = (array.shape[axis] for axis in positions)
    extents = (height, width) if size is None else positive_pair(size, "size")
    edge, outside = checked_border(border), parameter(number(fill, "fill"), "fill")
    cameras = (lens, straight) if reads == "bent" else (straight, lens)
    return _read(array, *cameras, coefficients, outside, extents, reads, method, edge, positions)


@jit("size", "reads", "method", "border", "axes")
def _read(
    image: jax.Array,
    camera: jax.Array,
    new_camera: jax.Array,
    distortion: jax.Array,
    fill: jax.Array,
    size: tuple[int, int],
    reads: str,
    method: str,
    border: Border,
    axes: tuple[int, int],
) -> jax.Array:
    """The image of `camera`, seen by `new_camera`."""
    place = {"bent": _bend, "straight": _straighten}[reads]

    def read(
        x: jax.Array, camera: jax.Array, new_camera: jax.Array, coefficients: jax.Array
    ) -> jax.Array:
        kind = jnp.result_type(camera, new_camera, coefficients)
        rows = arange(size[0], dtype=kind)[:, None]
        columns = arange(size[1], dtype=kind)
        across = (columns - new_camera[0, 2]) / new_camera[0, 0]
        down = (rows - new_camera[1, 2]) / new_camera[1, 1]
        across, down = place((across, down), coefficients)
        columns = across * camera[0, 0] + camera[0, 2]
        rows = down * camera[1, 1] + camera[1, 2]
        return sample(
            x, *at_fields(rows, columns), axes=axes, weigh=METHODS[method], border=border, fill=fill
        )

    parameters = {"camera": (camera, 2), "new_camera": (new_camera, 2)}
    return per_picture(read, image, axes, {**parameters, "distortion": (distortion, 1)})


def _terms(place: Place, coefficients: jax.Array) -> tuple[jax.Array, Place]:
    """The factor from the centre outwards, and the offset, in focal lengths."""
    x, y = place
    square = x * x + y * y
    k1, k2, p1, p2, k3, k4, k5, k6, s1, s2, s3, s4 = pad(
        coefficients, (0, 12 - coefficients.shape[0])
    )
    outwards = 1 + square * (k1 + square * (k2 + square * k3))
    outwards /= 1 + square * (k4 + square * (k5 + square * k6))
    across = 2 * p1 * x * y + p2 * (square + 2 * x * x) + square * (s1 + square * s2)
    down = 2 * p2 * x * y + p1 * (square + 2 * y * y) + square * (s3 + square * s4)
    return outwards, (across, down)


def _bend(place: Place, coefficients: jax.Array) -> Place:
    outwards, (across, down) = _terms(place, coefficients)
    return place[0] * outwards + across, place[1] * outwards + down


def _straighten(place: Place, coefficients: jax.Array) -> Place:
    def step(_: jax.Array, straight: Place) -> Place:
        outwards, (across, down) = _terms(straight, coefficients)
        return (place[0] - across) / outwards, (place[1] - down) / outwards

    across, down = jnp.broadcast_arrays(*place)
    return fori_loop(0, _STEPS, step, (across, down))

"""Homographies from four pairs of points."""

import jax
import jax.numpy as jnp

from jaxsr.ops._images import Parameter, parameter
from jaxsr.ops._typed_jax import jit, ones_like
from jaxsr.ops._types import Array, Float


def perspective_matrix(source: Parameter, target: Parameter) -> Float[Array, "..."]:
    """The homography that moves four points, as OpenCV's `getPerspectiveTransform`.

    Each quadrangle is the unit square moved in closed form (Heckbert, Fundamentals of Texture
    Mapping, 1989, section 2.2.3): sums and products alone, without a linear solver.

    Args:
      source: (..., 4, 2): (x, y) of four points in cyclic order.
      target: where they come to lie, of the same shape.

    Returns:
      (..., 3, 3) for `warp_perspective`, with 1 as its last entry. Three points on one line give
      infinite or undefined entries.

    Raises:
      TypeError: points that are not numbers.
      ValueError: points of another shape.

    Example:
      >>> square = [[0, 0], [1, 0], [1, 1], [0, 1]]
      >>> ops.perspective_matrix(square, [[0, 0], [2, 0], [2, 2], [0, 2]]).diagonal().tolist()
      [2.0, 2.0, 1.0]
    """
    before = parameter(source, "source", (4, 2))
    behind = parameter(target, "target", (4, 2))
    return _perspective_matrix(before, behind)


@jit()
def _perspective_matrix(source: jax.Array, target: jax.Array) -> jax.Array:
    forward, backward = _of_unit_square(target), adjugate(_of_unit_square(source))
    matrix = (forward[..., :, :, None] * backward[..., None, :, :]).sum(-2)
    return matrix / matrix[..., 2:, 2:]


def _of_unit_square(corners: jax.Array) -> jax.Array:
    """Moves (0, 0), (1, 0), (1, 1), (0, 1) to the corners."""
    a, b, c, d = (corners[..., k, :] for k in range(4))
    right, left, middle = b - c, d - c, a - b + c - d
    whole = _cross(right, left)
    g, h = _cross(middle, left) / whole, _cross(right, middle) / whole
    first, second = b - a + g[..., None] * b, d - a + h[..., None] * d
    last = jnp.stack([g, h, ones_like(g)], -1)
    return jnp.concatenate([jnp.stack([first, second, a], -1), last[..., None, :]], -2)


def _cross(a: jax.Array, b: jax.Array) -> jax.Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def adjugate(matrix: jax.Array) -> jax.Array:
    """The inverse times the determinant, for 3 x 3."""
    a, b, c = (matrix[..., k, :] for k in range(3))
    return jnp.stack([jnp.cross(b, c), jnp.cross(c, a), jnp.cross(a, b)], -1)

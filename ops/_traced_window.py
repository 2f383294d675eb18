"""Windows of traced weights, one for each picture: programs do not depend on the weights."""

import jax
import jax.numpy as jnp

from jaxsr.ops._border import Border, pad_axis
from jaxsr.ops._images import in_dtype_of, per_picture, real_dtype
from jaxsr.ops._typed_jax import arange, fori_loop, zeros


def correlate(
    image: jax.Array, window: jax.Array, axes: tuple[int, int], border: Border
) -> jax.Array:
    """Correlates height and width with a window of odd sides.

    A loop over the window's rows, a sum of shifted slices in each: not `lax.conv`, which rounds
    float32 to bfloat16 on TPUs.

    Args:
      image: pictures.
      window: (..., rows, columns); one for all pictures, or one for each.
      axes: height and width, counted from the end.
      border: what lies beyond the edge.
    """
    height, width = axes
    sides = window.shape[-2:]

    def one(x: jax.Array, window: jax.Array) -> jax.Array:
        wide = x.astype(real_dtype(image))
        for axis, side in zip(axes, sides, strict=True):
            wide = pad_axis(wide, wide.ndim + axis, side // 2, side // 2, border)

        def add(row: jax.Array, total: jax.Array) -> jax.Array:
            line = jax.lax.dynamic_slice_in_dim(wide, row, x.shape[height], wide.ndim + height)
            for column in range(sides[1]):
                stop = column + x.shape[width]
                part = jax.lax.slice_in_dim(line, column, stop, axis=line.ndim + width)
                total += part * window[row, column]
            return total

        return fori_loop(0, sides[0], add, zeros(x.shape, wide.dtype))

    return in_dtype_of(image, per_picture(one, image, axes, {"window": (window, 2)}))


def gaussian(sigma: jax.Array, size: int) -> jax.Array:
    """(..., size) weights of a Gaussian that sum to 1; a sigma of 0 is one pixel."""
    offset = arange(size, dtype=sigma.dtype) - size // 2
    least = jnp.maximum(sigma[..., None], 1e-3)
    return jax.nn.softmax(-0.5 * (offset / least) ** 2)


def segment(length: jax.Array, degrees: jax.Array, size: int) -> jax.Array:
    """(..., size, size): a straight segment through the middle, drawn with bilinear weights.

    The mean of `4 * size` points that stand evenly on it; degrees are counter-clockwise.
    """
    share = (arange(4 * size, dtype=length.dtype) + 0.5) / (4 * size) - 0.5
    along = length[..., None] * share
    angle = degrees[..., None] * (jnp.pi / 180)
    offset = arange(size, dtype=length.dtype) - size // 2

    def weights(place: jax.Array) -> jax.Array:
        return jnp.maximum(1 - jnp.abs(place[..., None] - offset), 0)

    across, down = weights(along * jnp.cos(angle)), weights(-along * jnp.sin(angle))
    return (down[..., :, :, None] * across[..., :, None, :]).mean(-3)

"""Bilinear resampling between a fixed-size image and a box known only on the device.

Half-pixel centres, no antialias, as `torch.nn.functional.interpolate(mode="bilinear")` on the cut
box, with exact coordinates: torch's float64 result, from which its float32 one differs by the
rounding of its coordinates. Two taps are gathered per axis, so one program serves every box.
"""

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import compute_dtype

LARGEST_EXTENT = 1 << 15
"""Pixels along one axis, beyond which the int32 coordinates would overflow."""


def resample_window(
    image: jax.Array,
    box: jax.Array,
    size: tuple[int, int],
    axes: tuple[int, int],
    *,
    inverse: bool = False,
) -> jax.Array:
    """The box of `image` resampled to `size`; or, inverse, all of `image` spread over the box.

    Args:
      image: images of any range; the result keeps the dtype, uint8 rounded half to even.
      box: (x1, y1, x2, y2), end-exclusive, within the image, or inverse within `size`.
      size: (height, width) of the result.
      axes: the height and the width axis.
      inverse: the result is a frame in which `image` fills the box; outside it, edge pixels repeat.
    """
    x1, y1, x2, y2 = box
    x = image.astype(compute_dtype(image.dtype))
    spans = {axes[0]: (y1, y2, size[0]), axes[1]: (x1, x2, size[1])}
    # The axis that shrinks most goes first where that is known; rows before columns otherwise.
    for axis in sorted(axes, key=lambda a: (spans[a][2] / image.shape[a], a)):
        low, high, extent = spans[axis]
        x = _along(x, axis, low, high, extent, inverse)
    if image.dtype == jnp.uint8:
        x = jnp.round(x)
    return x.astype(image.dtype)


def _along(x: jax.Array, axis: int, low, high, extent: int, inverse: bool) -> jax.Array:
    longest = max(extent, x.shape[axis])
    if longest > LARGEST_EXTENT:
        raise ValueError(f"extents up to {LARGEST_EXTENT} px can be resampled, got {longest}")
    position = jnp.arange(extent)
    if inverse:
        first, taken, given = 0, x.shape[axis], high - low
        position = position - low
    else:
        first, taken, given = low, high - low, extent
    # The source of a pixel is (position + 1/2) taken/given - 1/2: in integers, so that neither
    # float32 nor a compiler's fused multiply-add moves it.
    numerator = jnp.maximum((2 * position + 1) * taken - given, 0)
    whole = numerator // (2 * given)
    rest = numerator - 2 * given * whole
    weight = rest.astype(x.dtype) / (2 * given)
    near = first + jnp.minimum(whole, taken - 1)
    # A pixel of weight 0 is not read at all: it may be infinite.
    far = first + jnp.minimum(whole + (rest > 0), taken - 1)
    shape = [1] * x.ndim
    shape[axis] = extent
    weight = weight.reshape(shape)

    def tap(index: jax.Array) -> jax.Array:
        return jnp.take(x, index, axis=axis, mode="clip")  # in range by construction

    return tap(near) * (1 - weight) + tap(far) * weight

"""From the rows and columns that a mask touches to the box that is cut, in integers on the device.

The rule speaks of Python's `int(size * ratio)` and of quotients compared with a ratio. Those are
float64, which an accelerator does not have, so they are tabulated on the host for every extent that
the frame allows; the device looks them up and every box is exact.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._typed_jax import asarray


def box_around(
    rows: jax.Array,
    columns: jax.Array,
    padding_ratio: float,
    min_size: tuple[int, int],
    critical_ratio: float,
) -> jax.Array:
    """(x1, y1, x2, y2), end-exclusive, around the rows and columns that are set; int32.

    Args:
      rows: for each row of the frame, whether the mask touches it.
      columns: the same for columns.
      padding_ratio: share of the bounding box added on each side.
      min_size: least (height, width).
      critical_ratio: greatest height / width, and inverse of the least.
    """
    height, width = rows.shape[0], columns.shape[0]
    y1, y2 = _padded(rows, padding_ratio)
    x1, x2 = _padded(columns, padding_ratio)
    x1, x2 = _grow(x1, x2, min(min_size[1], width), width)
    y1, y2 = _grow(y1, y2, min(min_size[0], height), height)

    tallest, lowest = _aspect_limits(width, critical_ratio)
    box_height, box_width = y2 - y1, x2 - x1
    too_tall = box_height > asarray(tallest)[box_width]
    too_low = box_height < asarray(lowest)[box_width]
    slimmest = _quotients(height, critical_ratio)[box_height]
    flattest = _quotients(width, critical_ratio)[box_width]
    x1, x2 = _grow(x1, x2, jnp.where(too_tall, slimmest, 0), width)
    y1, y2 = _grow(y1, y2, jnp.where(~too_tall & too_low, flattest, 0), height)

    x1, x2 = _even(x1, x2, width)
    y1, y2 = _even(y1, y2, height)
    box = jnp.stack([x1, y1, x2, y2])
    frame = asarray([0, 0, width, height])
    return jnp.where(rows.any(), box, frame).astype(jnp.int32)


def _padded(hit: jax.Array, ratio: float) -> tuple[jax.Array, jax.Array]:
    extent = hit.shape[0]
    low = jnp.argmax(hit).astype(jnp.int32)
    high = extent - jnp.argmax(hit[::-1]).astype(jnp.int32)
    # Clamped before it becomes int32: no padding needs to exceed the frame.
    padding = np.minimum(np.arange(extent + 1) * ratio, extent).astype(np.int32)
    padding = asarray(padding)[high - low]
    return jnp.maximum(low - padding, 0), jnp.minimum(high + padding, extent)


def _grow(
    low: jax.Array, high: jax.Array, target: jax.Array | int, limit: int
) -> tuple[jax.Array, jax.Array]:
    """Extends to `target`, half before and the remainder after, shifted to stay within 0…limit."""
    missing = jnp.maximum(target - (high - low), 0)
    low, high = low - missing // 2, high + missing - missing // 2
    low, high = jnp.maximum(low, 0), high + jnp.maximum(-low, 0)
    return jnp.maximum(low - jnp.maximum(high - limit, 0), 0), jnp.minimum(high, limit)


def _even(low: jax.Array, high: jax.Array, limit: int) -> tuple[jax.Array, jax.Array]:
    odd = (high - low) % 2
    after = jnp.minimum(high + odd, limit)
    still_odd = (after - low) % 2
    return jnp.maximum(low - still_odd, 0), after


def _quotients(extent: int, ratio: float) -> jax.Array:
    return asarray((np.arange(extent + 1) / ratio).astype(np.int32))


def _aspect_limits(width: int, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """For each box width the greatest height with h/w <= ratio, the least with h/w >= 1/ratio."""
    widths = np.maximum(np.arange(width + 1), 1)
    # The exact limits lie within one of these products; the quotients decide, as in the rule.
    tallest = np.floor(widths * ratio) + 1
    for _ in range(2):
        tallest -= tallest / widths > ratio
    lowest = np.maximum(np.ceil(widths / ratio) - 1, 0)
    for _ in range(2):
        lowest += lowest / widths < 1 / ratio
    largest = np.iinfo(np.int32).max // 2
    tallest, lowest = np.minimum(tallest, largest), np.minimum(lowest, largest)
    return tallest.astype(np.int32), lowest.astype(np.int32)

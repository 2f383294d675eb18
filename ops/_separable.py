"""One axis of a separable filter as a sum of shifted slices.

Shifted sums, not `lax.conv`: a TPU convolution rounds float32 operands to bfloat16 by default, and
on CPU the sums are tens of times faster (a depthwise convolution vectorises badly in XLA).
"""

from collections.abc import Sequence

import jax


def filter_valid(x: jax.Array, weights: Sequence[float], axis: int) -> jax.Array:
    """Correlates one axis with `weights`, keeping only positions where every tap is inside.

    Taps with equal mirrored weights are added before they are multiplied, which saves almost half
    of the products of a symmetric window.
    """
    taps = len(weights)
    extent = x.shape[axis] - taps + 1

    def shifted(tap: int) -> jax.Array:
        return jax.lax.slice_in_dim(x, tap, tap + extent, axis=axis)

    total = None
    for tap in range((taps + 1) // 2):
        mirror = taps - 1 - tap
        if tap == mirror:
            term = shifted(tap) * weights[tap]
        elif weights[tap] == weights[mirror]:
            term = (shifted(tap) + shifted(mirror)) * weights[tap]
        else:
            term = shifted(tap) * weights[tap] + shifted(mirror) * weights[mirror]
        total = term if total is None else total + term
    assert total is not None
    return total

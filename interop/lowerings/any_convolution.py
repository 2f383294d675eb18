"""`lax.conv_general_dilated` in a form that XLA can compile, with its gradients."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def convolve_any(
    x: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    *,
    layout: tuple[str, str, str],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    groups: int = 1,
) -> jax.Array:
    """`lax.conv_general_dilated`: the same sums, in a form that compiles.

    XLA's algebraic simplifier (`SwapConvOperands`, jaxlib 0.10.2) takes an axis for a group where
    the input is dilated by two, the kernel has two taps and nothing is padded. If it then exchanges
    input and kernel, because another axis has more taps than pixels, it makes an invalid program
    and ends the process. The input gradient of a 3 × 2 kernel of stride 2 with padding 1 over 4 × 4
    pixels is such a program. Padding on such axes is done beside the convolution instead.

    Args:
      x: the input, its axes as `layout[0]` says.
      weight: the kernel, as `layout[1]` says.
      stride: of the window, in pixels, for each spatial axis.
      padding: zeros before and after, for each spatial axis.
      layout: of input, kernel and output, as ("NCHW", "OIHW", "NCHW").
      lhs_dilation: distance between pixels of the input. Default: 1.
      rhs_dilation: distance between taps of the kernel. Default: 1.
      groups: of channels that are convolved by themselves.
    """
    spatial = [layout[0].index(letter) for letter in layout[1] if letter not in "OI"]
    taps = [weight.shape[i] for i, letter in enumerate(layout[1]) if letter not in "OI"]
    n = len(taps)
    lhs = tuple(lhs_dilation or (1,) * n)
    rhs = tuple(rhs_dilation or (1,) * n)
    padding = [(int(low), int(high)) for low, high in padding]

    # Of a stride, the input gradient is dilated by it, and padded by as much as this one lacks.
    strided = [i for i in range(n) if (taps[i], stride[i], rhs[i], padding[i][0]) == (2, 2, 1, 1)]
    if 0 < len(strided) < n:
        around = [(0, 0, 0)] * x.ndim
        for i in strided:
            around[spatial[i]] = (*padding[i], 0)
            padding[i] = (0, 0)
        x = lax.pad(x, jnp.zeros((), x.dtype), around)

    dilated = [i for i in range(n) if lhs[i] == 2 and rhs[i] == 1 and padding[i] == (0, 0)]
    for i in dilated:
        padding[i] = (1, 1)
    out = lax.conv_general_dilated(
        x,
        weight,
        tuple(stride),
        padding,
        lhs_dilation=lhs,
        rhs_dilation=rhs,
        dimension_numbers=layout,
        feature_group_count=groups,
    )
    for i in dilated:
        axis = layout[2].index(layout[0][spatial[i]])
        out = lax.slice_in_dim(out, 1, out.shape[axis] - 1, axis=axis)
    return out

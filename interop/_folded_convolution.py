"""Convolution of folded images: one of the same values on wider channels.

Each place of an output group has its own copy of the kernel's row, moved by as many columns as it
lies to the right, in a kernel over whole groups; where a copy has no tap there is a zero.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.interop._any_convolution import convolve_any
from jaxsr.interop._folded import Folded, by_ones, column_order, spread_channels
from jaxsr.interop._weight_gradient import convolve

FEW = 8
"""Pairs of input and output channels up to which a folded kernel is made by a product."""


def convolve_folded(
    x: Folded,
    weight: jax.Array,
    bias: jax.Array | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Folded:
    """Two-dimensional convolution with zeros around the image, as torch has it.

    Args:
      x: the image; its fold must divide by the stride, or the result is folded as the image is.
      weight: (outputs, inputs, height, width).
      bias: a value for each output, or None.
      stride: rows and columns.
      padding: rows and columns of zeros at each side.
      dilation: rows and columns between taps.
    """
    if x.fold == 1:
        array = _one_column(x.array, weight, stride, padding, dilation)
        array = array if bias is None else array + bias
        return Folded(array, (weight.shape[0],), array.shape[2], 1)
    (sh, s), (dh, d), (ph, p) = stride, dilation, padding
    out_fold = x.fold // s if x.fold % s == 0 else x.fold
    step = out_fold * s // x.fold
    width = (x.width + 2 * p - d * (weight.shape[3] - 1) - 1) // s + 1
    groups = -(-width // out_fold)
    kernel, left = folded_kernel(weight, x.parts, x.fold, out_fold, stride=s, dilation=d, padding=p)
    right = (groups - 1) * step + kernel.shape[1] - x.groups - left

    def run(kernel: jax.Array, bias: jax.Array | None, parts: tuple[int, ...]) -> Folded:
        array = convolve_any(
            x.cleaned(),
            kernel,
            (sh, step),
            [(ph, ph), (left, right)],
            rhs_dilation=(dh, 1),
            layout=("NHWC", "HWIO", "NHWC"),
        )
        out = Folded(array, parts, width, out_fold)
        return out if bias is None else out.holding(array + spread_channels(bias, out))

    def again(arrange: Callable[[jax.Array], jax.Array], parts: tuple[int, ...]) -> Folded:
        rows = jnp.split(arrange(weight), np.cumsum(parts)[:-1])
        kernels = [
            folded_kernel(w, x.parts, x.fold, out_fold, stride=s, dilation=d, padding=p)[0]
            for w in rows
        ]
        turned = None if bias is None else arrange(bias)
        return run(jnp.concatenate(kernels, axis=3), turned, parts)

    out = run(kernel, bias, (weight.shape[0],))
    return Folded(out.array, out.parts, out.width, out.fold, again)


def _one_column(
    x: jax.Array, weight: jax.Array, stride: Any, padding: Any, dilation: Any
) -> jax.Array:
    """Groups of one column are pixels with their channels last: an ordinary convolution, NHWC."""
    pairs = [(p, p) for p in padding]
    if tuple(stride) == tuple(dilation) == (1, 1):
        return convolve(x, weight, pairs, channels_last=True)
    return convolve_any(
        x, weight, stride, pairs, rhs_dilation=dilation, layout=("NHWC", "OIHW", "NHWC")
    )


def folded_kernel(
    weight: jax.Array,
    parts: Sequence[int],
    fold: int,
    out_fold: int,
    *,
    stride: int,
    dilation: int,
    padding: int,
) -> tuple[jax.Array, int]:
    """The kernel over groups, (height, groups, input lanes, output lanes).

    Returns:
      It, and how many groups it reaches to the left of the first.
    """
    outputs, inputs, height, width = weight.shape
    first = -padding // fold
    last = ((out_fold - 1) * stride + (width - 1) * dilation - padding) // fold
    if inputs * outputs <= FEW:
        # A product with ones and zeros: there is little to move into its place afterwards.
        columns = np.arange(first, last + 1)[:, None] * fold + column_order(fold) + padding
        away = columns[..., None] - column_order(out_fold) * stride
        ones = np.arange(width)[:, None, None, None] * dilation == away
        taps = weight.transpose(2, 1, 0, 3).reshape(-1, width)
        kernel = by_ones(taps, ones.reshape(width, -1).astype(np.float32))
        kernel = kernel.reshape(height, inputs, outputs, *away.shape).transpose(0, 3, 1, 4, 5, 2)
        pieces = jnp.split(kernel, np.cumsum(parts)[:-1], axis=2)
        pieces = [
            p.swapaxes(2, 3).reshape(height, len(away), -1, out_fold * outputs) for p in pieces
        ]
        return jnp.concatenate(pieces, axis=2), -first
    # A copy of every tap for each pair of columns, of which one tap or none is kept. Copies and
    # comparisons, because a TPU has no quick way to move weights about within tiles.
    taps = weight.transpose(3, 2, 1, 0)
    pieces = jnp.split(taps, np.cumsum(parts)[:-1], axis=2) if len(parts) > 1 else [taps]
    taps = jnp.concatenate([piece for piece in pieces for _ in range(fold)], axis=2)
    taps = jnp.concatenate([taps] * out_fold, axis=3)
    source = np.concatenate([np.repeat(column_order(fold), channels) for channels in parts])
    target = np.repeat(column_order(out_fold), outputs) * stride
    assert taps.shape[2:] == (source.size, target.size), (taps.shape, inputs)
    blocks = []
    for group in range(first, last + 1):
        away = jnp.asarray(source + group * fold + padding)[:, None] - jnp.asarray(target)
        block = jnp.zeros(taps.shape[1:], taps.dtype)
        for tap in range(width):
            block = jnp.where(away == tap * dilation, taps[tap], block)
        blocks.append(block)
    return jnp.stack(blocks, axis=1), -first

"""Convolution of folded images: one of the same values on wider channels.

The kernel spans whole groups of columns. For each column of an output group it has a copy of the
original kernel's row, shifted to that column; all else is zero.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.interop.folding.layout import (
    Folded,
    Maker,
    by_ones,
    column_order,
    cut,
    groups_of,
)
from jaxsr.interop.lowerings.convolution import convolve, general_convolution

WORTH = 0.75
"""Largest share of groups still to be read with which a result is given an offset: 18 of 24
of an image of 8 groups, less of wider ones. It has columns to mask, and is to be made or moved
again where one without is needed."""
FEW = 8
"""Pairs of input and output channels up to which a folded kernel is made by a product."""
PIECES = 3
"""Parts from which on the gradients of a kernel of one pixel are made part by part. For SPAN's four
convolutions that saves 0.9 of 20 M cycles; MSHNet joins two, for another convolution to read as
well, and would take 2 of 64 M more, and 220 MiB."""


def convolve_folded(
    x: Folded,
    weight: jax.Array,
    bias: jax.Array | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    offsets: bool = False,
) -> Folded:
    """Two-dimensional convolution with zeros around the image, as torch has it.

    Args:
      x: the image; its fold must divide by the stride, or the result is folded as the image is.
      weight: (outputs, inputs, height, width).
      bias: a value for each output, or None.
      stride: rows and columns.
      padding: rows and columns of zeros at each side.
      dilation: rows and columns between taps.
      offsets: whether the result may have one where that saves multiplications.
    """
    if x.fold == 1:
        # Groups of one column are pixels with their channels last: an ordinary convolution.
        options: Any = {"stride": stride, "padding": padding, "dilation": dilation}
        array = convolve(x.array, weight, bias, channels_last=True, **options)
        return Folded(array, (weight.shape[0],), array.shape[2], 1)
    if x.offset and x.maker is not None:
        x.maker.read()
    options = tuple(stride), tuple(padding), tuple(dilation)
    call = _Convolution(dataclasses.replace(x, maker=None), weight, bias, *options)
    maker = Maker(call.biased, call.arranged)
    return dataclasses.replace(call.biased(call.best_offset() if offsets else 0), maker=maker)


@dataclasses.dataclass(frozen=True, eq=False)
class _Convolution:
    """The arguments of `convolve_folded`; its result in any grouping."""

    x: Folded
    weight: jax.Array
    bias: jax.Array | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def fold(self) -> int:
        """Fold of the result."""
        stride = self.stride[1]
        return self.x.fold // stride if self.x.fold % stride == 0 else self.x.fold

    @property
    def width(self) -> int:
        """Columns of the result."""
        reach = self.dilation[1] * (self.weight.shape[3] - 1) + 1
        return (self.x.width + 2 * self.padding[1] - reach) // self.stride[1] + 1

    def best_offset(self) -> int:
        """The offset of the result for which it reads the fewest groups.

        None, unless that leaves at most `WORTH` of them: an image with an offset has columns to
        mask.
        """
        if self.stride[1] != 1:
            return 0

        def groups_read(offset: int) -> int:
            taps, dilation = self.weight.shape[3], self.dilation[1]
            padding = self._padding(offset)
            first, last = _reach(
                self.fold, self.fold, taps, stride=1, dilation=dilation, padding=padding
            )
            return (last - first + 1) * groups_of(self.width, self.fold, offset)

        best = min(range(self.fold), key=groups_read)
        return best if groups_read(best) <= WORTH * groups_read(0) else 0

    def biased(self, offset: int = 0) -> Folded:
        """The result."""
        out = self._convolved([self.weight], offset)
        bias = self.bias
        return out if bias is None else out.holding(out.array + out.spread(bias))

    def arranged(
        self, arrange: Callable[[jax.Array], jax.Array], parts: tuple[int, ...]
    ) -> tuple[Folded, jax.Array | None]:
        """The result with its outputs reordered by `arrange` and cut into parts, without offset;
        the bias, arranged, is yet to be added."""
        weights = jnp.split(arrange(self.weight), np.cumsum(parts)[:-1])
        return self._convolved(weights, 0), None if self.bias is None else arrange(self.bias)

    def _padding(self, offset: int) -> int:
        """Columns of zeros before the first group, as a result with that offset sees them."""
        return self.padding[1] + self.stride[1] * offset - self.x.offset

    def _convolved(self, weights: Sequence[jax.Array], offset: int) -> Folded:
        """Without the bias; each weight makes a part."""
        x, fold = self.x, self.fold
        geometry = {"stride": self.stride[1], "dilation": self.dilation[1]}
        kernels = [
            folded_kernel(w, x.parts, x.fold, fold, padding=self._padding(offset), **geometry)
            for w in weights
        ]
        left = kernels[0][1]
        kernel = jnp.concatenate([kernel for kernel, _ in kernels], axis=3)
        step = fold * self.stride[1] // x.fold
        groups = groups_of(self.width, fold, offset)
        right = (groups - 1) * step + kernel.shape[1] - x.groups - left

        def run(lanes: jax.Array, kernel: jax.Array) -> jax.Array:
            return general_convolution(
                lanes,
                kernel,
                (self.stride[0], step),
                [(self.padding[0], self.padding[0]), (left, right)],
                rhs_dilation=(self.dilation[0], 1),
                layout=("NHWC", "HWIO", "NHWC"),
            )

        clean = x.holding(x.cleaned())
        if len(x.parts) >= PIECES and kernel.shape[:2] == (1, 1):
            array = _joined(run, clean.pieces(), kernel)
        else:
            array = run(clean.array, kernel)
        return Folded(array, tuple(w.shape[0] for w in weights), self.width, fold, offset)


def _joined(
    run: Callable[[jax.Array, jax.Array], jax.Array], pieces: Sequence[jax.Array], kernel: jax.Array
) -> jax.Array:
    """`run(pieces side by side, kernel)`, whose gradients are made piece by piece.

    A kernel of one pixel computes little for the memory that it moves: the gradient of the whole
    would be written side by side and cut apart again.
    """
    stops = np.cumsum([piece.shape[3] for piece in pieces])[:-1]

    @jax.custom_jvp
    def joined(pieces: Sequence[jax.Array], kernel: jax.Array) -> jax.Array:
        return run(jnp.concatenate(pieces, axis=3), kernel)

    @joined.defjvp
    def _(
        primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        (pieces, kernel), (piece_tangents, kernel_tangent) = primals, tangents
        kernels, kernel_tangents = (jnp.split(k, stops, axis=2) for k in (kernel, kernel_tangent))
        terms = [
            run(dx, k) + run(x, dk)
            for x, dx, k, dk in zip(pieces, piece_tangents, kernels, kernel_tangents, strict=True)
        ]
        return joined(pieces, kernel), functools.reduce(jnp.add, terms)

    return joined(pieces, kernel)


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
    first, last = _reach(fold, out_fold, width, stride=stride, dilation=dilation, padding=padding)
    if inputs * outputs <= FEW:
        # A product with ones and zeros: there is little to move into its place afterwards.
        columns = np.arange(first, last + 1)[:, None] * fold + column_order(fold) + padding
        distance = columns[..., None] - column_order(out_fold) * stride
        ones = np.arange(width)[:, None, None, None] * dilation == distance
        taps = weight.transpose(2, 1, 0, 3).reshape(-1, width)
        kernel = by_ones(taps, ones.reshape(width, -1).astype(np.float32))
        kernel = kernel.reshape(height, inputs, outputs, *distance.shape).transpose(
            0, 3, 1, 4, 5, 2
        )
        pieces = jnp.split(kernel, np.cumsum(parts)[:-1], axis=2)
        pieces = [
            p.swapaxes(2, 3).reshape(height, len(distance), -1, out_fold * outputs) for p in pieces
        ]
        return jnp.concatenate(pieces, axis=2), -first
    # A copy of every tap for each pair of columns, of which at most one is kept. Copies and
    # comparisons, because a TPU has no quick way to move weights about within tiles.
    taps = weight.transpose(3, 2, 1, 0)
    taps = jnp.concatenate([p for p in cut(taps, parts, axis=2) for _ in range(fold)], axis=2)
    taps = jnp.concatenate([taps] * out_fold, axis=3)
    source = np.concatenate([np.repeat(column_order(fold), channels) for channels in parts])
    target = np.repeat(column_order(out_fold), outputs) * stride
    assert taps.shape[2:] == (source.size, target.size), (taps.shape, inputs)
    blocks = []
    for group in range(first, last + 1):
        distance = jnp.asarray(source + group * fold + padding)[:, None] - jnp.asarray(target)
        block = jnp.zeros(taps.shape[1:], taps.dtype)
        for tap in range(width):
            block = jnp.where(distance == tap * dilation, taps[tap], block)
        blocks.append(block)
    return jnp.stack(blocks, axis=1), -first


def _reach(
    fold: int, out_fold: int, taps: int, *, stride: int, dilation: int, padding: int
) -> tuple[int, int]:
    """The first and the last group, counted from its own, that a group of results reads."""
    furthest = (out_fold - 1) * stride + (taps - 1) * dilation - padding
    return -padding // fold, furthest // fold

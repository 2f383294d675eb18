"""Images after a pixel shuffle whose pixels have not been moved yet.

A pixel shuffle of a folded image moves every pixel of its largest form, and again in the gradient.
Elementwise operators do not depend on where the pixels are. A convolution to few channels, such as
a network's last, can read them where they are: several rows share the lanes then, and the few
outputs of a group fill them better.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsr.interop._core.deferred import DeferredArray
from jaxsr.interop.folding.layout import LANES, Folded, by_ones, column_order, unfold


@dataclasses.dataclass(frozen=True, eq=False)
class Shuffled(DeferredArray):
    """A batch of images, logically (N, C, H·factor, W·factor)."""

    array: jax.Array
    """(N, H, groups, lanes): lanes by row, by column of the group before the shuffle, by column
    made of that one, and by channel."""
    channels: int
    factor: int
    """Rows, and columns, made of each."""
    fold: int
    """Columns in a group before the shuffle; they fill all groups."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the image: (N, C, H, W)."""
        n, height, groups, _ = self.array.shape
        return n, self.channels, height * self.factor, groups * self.fold * self.factor

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def layout(self) -> tuple[int, int, int]:
        return self.channels, self.factor, self.fold

    @property
    def places(self) -> int:
        """Pixels in a group."""
        return self.factor * self.fold * self.factor

    def holding(self, array: jax.Array) -> "Shuffled":
        """Another array in the same layout."""
        return Shuffled(array, self.channels, self.factor, self.fold)

    def rows_and_columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Where in its group each place's pixel belongs."""
        before = column_order(self.fold)[:, None] * self.factor
        columns = (before + column_order(self.factor)).ravel()
        return np.repeat(np.arange(self.factor), columns.size), np.tile(columns, self.factor)

    def settled(self) -> Folded:
        """The shuffle done, each column of before in a group of its own.

        More columns in a group would only add zeros to the next kernel.
        """
        places = tuple(int(p) for p in np.argsort(column_order(self.fold)))
        array = spread_lanes(self.array, self.factor, places)
        return Folded(array, (self.channels,), self.shape[3], self.factor)

    def map_array(self, function: Callable[[jax.Array], jax.Array]) -> "Shuffled":
        return self.holding(function(self.array))

    def dense(self) -> jax.Array:
        """(N, C, H·factor, W·factor).

        A network's output has few channels, and moves at far fewer cycles as rows first and then as
        columns. With a gradient that is not cheaper, so `settled` computes it.
        """
        if self.array.shape[3] > LANES:
            return unfold(self.settled())

        @jax.custom_jvp
        def pixels(array: jax.Array) -> jax.Array:
            n, height, groups, _ = array.shape
            split = array.reshape(n, height, groups, self.factor, self.fold, self.factor, -1)
            lanes = split.transpose(0, 1, 3, 2, 5, 4, 6)
            lanes = lanes.reshape(n, height * self.factor, groups, -1)
            columns = self.fold * self.factor
            return unfold(Folded(lanes, (self.channels,), self.shape[3], columns))

        @pixels.defjvp
        def _(
            primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
        ) -> tuple[jax.Array, jax.Array]:
            return jax.jvp(lambda a: unfold(self.holding(a).settled()), primals, tangents)

        return pixels(self.array)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape has one value for all elements, or one a channel."""
        if int(np.prod(shape)) == 1:
            return True
        return len(shape) in (3, 4) and tuple(shape[-3:]) == (self.channels, 1, 1)

    def in_lanes(self, array: jax.Array) -> jax.Array:
        """An array that `fits`, to be concatenated with `array`."""
        if array.size == 1:
            return array.reshape(())
        return jnp.tile(array.ravel(), self.places)


def convolve_shuffled(
    x: Shuffled, weight: jax.Array, bias: jax.Array | None, padding: Sequence[int]
) -> Shuffled | None:
    """Convolution with stride 1; None where the outputs of a group do not fit the lanes.

    Args:
      x: the image.
      weight: (outputs, inputs, height, width).
      bias: a value for each output, or None.
      padding: rows and columns of zeros at each side; the image must keep its size.
    """
    outputs, inputs, *sides = weight.shape
    keeps = all(side == 2 * pad + 1 for side, pad in zip(sides, padding, strict=True))
    if not keeps or outputs * x.places > LANES:
        return None
    # For each pair of places in a group and another one, the tap between them, if there is one.
    taps, reach = [], []
    extents = (x.factor, x.fold * x.factor)
    for positions, extent, pad in zip(x.rows_and_columns(), extents, padding, strict=True):
        first, last = -pad // extent, (extent - 1 + pad) // extent
        groups = np.arange(first, last + 1)[:, None, None] * extent
        taps.append(groups + positions[:, None] - positions[None] + pad)
        reach.append((-first, last))
    row, column = taps[0][:, None], taps[1][None]
    inside = (row >= 0) & (row < sides[0]) & (column >= 0) & (column < sides[1])
    tap = np.where(inside, row * sides[1] + column, -1)
    ones = (tap.reshape(-1, 1) == np.arange(sides[0] * sides[1])).astype(np.float32)
    kernel = by_ones(weight.transpose(1, 0, 2, 3).reshape(inputs * outputs, -1), ones.T)
    kernel = kernel.reshape(inputs, outputs, *tap.shape).transpose(2, 3, 4, 0, 5, 1)
    kernel = kernel.reshape(*tap.shape[:2], x.places * inputs, x.places * outputs)
    array = lax.conv_general_dilated(
        x.array, kernel, (1, 1), reach, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    if bias is not None:
        array = array + jnp.tile(bias, x.places)
    return Shuffled(array, outputs, x.factor, x.fold)


def spread_lanes(array: jax.Array, rows: int, places: tuple[int, ...]) -> jax.Array:
    """(N, H, G, rows·places·L) as (N, H·rows, G·places, L): lanes by row first, then by place.

    A TPU does it quickest as one transpose, and back again as whole stretches of lanes.
    """

    @jax.custom_jvp
    def spread(array: jax.Array) -> jax.Array:
        split = array.reshape(*array.shape[:3], rows, len(places), -1)
        ordered = split if len(places) < 3 else split[:, :, :, :, np.asarray(places)]
        return merged(ordered.transpose(0, 1, 3, 2, 4, 5))

    def by_stretches(array: jax.Array) -> jax.Array:
        pieces = jnp.split(array, rows * len(places), axis=3)
        pieces = [pieces[row * len(places) + p] for row in range(rows) for p in places]
        split = jnp.stack(pieces).reshape(rows, len(places), *array.shape[:3], -1)
        return merged(split.transpose(2, 3, 0, 4, 1, 5))

    def merged(split: jax.Array) -> jax.Array:
        n, height, _, groups, _, lanes = split.shape
        return split.reshape(n, height * rows, groups * len(places), lanes)

    @spread.defjvp
    def _(
        primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        return spread(*primals), by_stretches(*tangents)

    return spread(array)

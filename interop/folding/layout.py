"""Images with neighbouring columns folded into the channels, and back.

Logically (N, C, H, W), stored as (N, H, W/f, f·C). A TPU fills 128 lanes with the last axis: 16
channels alone leave seven eighths of the lanes, the arithmetic and the memory unused. Lanes are
ordered by column first, then by channel. The columns of a group are in bit-reversed order (of 8:
0 4 2 6 1 5 3 7). So a pooling by 2 is the larger of two halves, and an enlargement by 2 is two
arrays side by side. After a concatenation there are several such parts.

Where f does not divide W the last group is padded with columns of any finite values; `cleaned`
makes them zero before they could reach a real one.

The first group may also begin with such columns: `offset` of them. A 3 × 3 kernel over groups of
two columns reads four columns for a group of results. Where results are grouped like the input,
these lie in three groups, and half of the factors are zeros; where they are grouped one column
further left or right, they fill two.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxsr.interop._core.deferred import DeferredArray
from jaxsr.interop._core.dtypes import wide_dtype, widened
from jaxsr.interop._core.trace_scope import Region
from jaxsr.interop.lowerings.channel_moments import affine, channel_sums, moments, spread
from jaxsr.interop.lowerings.extremes import lowest, sharing

LANES = 128
"""Lanes of a TPU."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["array"],
    meta_fields=["parts", "width", "fold", "offset"],
    drop_fields=["maker", "recipe"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Folded(DeferredArray):
    """A batch of images in folded form; a JAX pytree with one leaf."""

    array: jax.Array
    """(N, H, groups, lanes)."""
    parts: tuple[int, ...]
    """Channels of each stretch of lanes."""
    width: int
    """Columns of the image itself."""
    fold: int
    """Columns in a group."""
    offset: int = 0
    """Columns before the image's first in its group."""
    maker: "Maker | None" = dataclasses.field(default=None, compare=False, repr=False)
    """How it was made, for operations that need it in another layout. JAX's transformations drop
    it."""
    recipe: "Recomputation | None" = dataclasses.field(default=None, compare=False, repr=False)
    """For a gradient that recomputes it instead of storing it. Dropped likewise."""

    @property
    def channels(self) -> int:
        return sum(self.parts)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the image: (N, C, H, W)."""
        return (self.array.shape[0], self.channels, self.array.shape[1], self.width)

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def groups(self) -> int:
        return groups_of(self.width, self.fold, self.offset)

    @property
    def padded(self) -> bool:
        """Whether groups hold columns that are not part of the image."""
        return self.offset > 0 or self.width % self.fold != 0

    @property
    def layout(self) -> tuple[tuple[int, ...], int, int, int]:
        return (self.parts, self.width, self.fold, self.offset)

    def holding(self, array: jax.Array) -> "Folded":
        """Another array in the same layout."""
        return Folded(array, self.parts, self.width, self.fold, self.offset)

    def dense(self) -> jax.Array:
        return unfold(self)

    def settled(self) -> "Folded":
        return self

    def map_array(self, function: Callable[[jax.Array], jax.Array]) -> "Folded":
        return self.holding(function(self.array))

    def channel_sums(self, *, by_row: bool = False) -> jax.Array:
        """Sums over pixels, (C,), or (N, C) for each image by itself."""
        return sum_columns(channel_sums(self.cleaned(), axis=3, by_row=by_row), self)

    def moments(self, array: jax.Array, *, by_row: bool = False) -> tuple[jax.Array, jax.Array]:
        """Mean and variance of each channel of an array in this layout, (C,) or (N, C)."""
        if self.fold == 1:
            return moments(array, axis=3, by_row=by_row)
        pixels = math.prod(self.shape[2:]) * (1 if by_row else self.shape[0])
        mean = self.holding(array).channel_sums(by_row=by_row) / pixels
        squares = jnp.square(array - self.spread(mean))
        return mean, self.holding(squares).channel_sums(by_row=by_row) / pixels

    def spread(self, channels: jax.Array) -> jax.Array:
        """A value for each channel, (C,), or for each image's channel, (N, C), at every pixel."""
        return spread(spread_channels(channels, self), self.array.shape, axis=3)

    def affine(
        self, array: jax.Array, mean: jax.Array, scale: jax.Array, shift: jax.Array
    ) -> jax.Array:
        """`(array - mean) * scale + shift` in this layout, with (C,) or (N, C) each."""
        if self.fold == 1:
            return affine(array, mean, scale, shift, axis=3)
        return (array - self.spread(mean)) * self.spread(scale) + self.spread(shift)

    def made_into(self, array: jax.Array, make: Callable[..., jax.Array], *values: Any) -> "Folded":
        """`array`, which is `make(self.array, *values)`, in the same layout.

        Values are small and elementwise: a gradient may rather make it again than keep it.
        """
        first, inputs = self.recipe or Recomputation(lambda array: array, (self.array,))

        def remake(inputs: tuple, *values: Any) -> jax.Array:
            return make(first(*inputs), *values)

        return dataclasses.replace(
            self.holding(array), recipe=Recomputation(remake, (inputs, *values))
        )

    def pieces(self) -> list[jax.Array]:
        """The array of each part."""
        return cut(self.array, [self.fold * c for c in self.parts])

    def cleaned(self, fill: float = 0.0) -> jax.Array:
        """The array, with `fill` in the columns that are not part of the image."""
        if not self.padded:
            return self.array
        return jnp.where(self._inside(), self.array, jnp.asarray(fill, self.dtype))

    def _inside(self) -> np.ndarray:
        column = columns(self.groups, self.fold) - self.offset
        inside = (column >= 0) & (column < self.width)
        return np.concatenate([np.repeat(inside, c, axis=1) for c in self.parts], axis=1)


class Recomputation(NamedTuple):
    """How to make an array again, of one that gradients keep in any case and of small ones."""

    make: Callable[..., jax.Array]
    values: tuple


class Maker:
    """How an image was made.

    Args:
      aligned: makes it without offset, if no pixel has to move.
      arranged: the arrangement that a convolution leaves. Called with a function that reorders the
        outputs of its weight, and with parts, it makes the same in that order, without offset.
        Returns it without the bias, and the bias in that order, or None.
      sources: of the images it was made of, pixel by pixel.
    """

    def __init__(
        self,
        aligned: Callable[[], Folded],
        arranged: Callable[..., tuple[Folded, jax.Array | None]] | None = None,
        sources: Sequence["Maker"] = (),
    ) -> None:
        self.arranged = arranged
        self._make = aligned
        self._sources = sources
        self._aligned: tuple[Region | None, Folded] | None = None
        self._read = False

    def read(self) -> None:
        """A convolution reads the image as it is: making it otherwise would make it twice."""
        if not self._read:
            self._read = True
            for source in self._sources:
                source.read()

    def _fixed(self) -> bool:
        """Whether a convolution reads it, or an image that it is made of."""
        visited: set[int] = set()
        pending: list[Maker] = [self]
        while pending:
            maker = pending.pop()
            if maker._read:
                return True
            if id(maker) not in visited:
                visited.add(id(maker))
                pending.extend(maker._sources)
        return False

    def aligned(self, image: Folded) -> Folded:
        """The image without offset, one for all who ask."""
        if self._aligned is None or not Region.alive(self._aligned[0]):
            result = shifted(image, 0, offset=0) if self._fixed() else self._make()
            self._aligned = (Region.current(), result)
        return self._aligned[1]


def aligned(x: Folded) -> Folded:
    """The image without offset: made anew, or moved where a convolution also reads it as it is."""
    if x.offset == 0:
        return x
    return shifted(x, 0, offset=0) if x.maker is None else x.maker.aligned(x)


def cut(x: jax.Array, sizes: Sequence[int], axis: int = -1) -> list[jax.Array]:
    """Stretches of an axis; the array itself where there is one."""
    return [x] if len(sizes) == 1 else jnp.split(x, np.cumsum(sizes)[:-1], axis=axis)


def groups_of(width: int, fold: int, offset: int) -> int:
    """Groups of an image: the last may be filled up, the first begins with the offset."""
    return -(-(width + offset) // fold)


def column_order(fold: int) -> np.ndarray:
    """Which column of its group stands at each place: even ones before odd ones, and so on."""
    if fold % 2:
        return np.arange(fold)
    half = column_order(fold // 2)
    return np.concatenate([2 * half, 2 * half + 1])


def columns(groups: int, fold: int) -> np.ndarray:
    """(groups, fold): the column of the image at each place."""
    return np.arange(groups)[:, None] * fold + column_order(fold)


def _radices(fold: int) -> tuple[int, ...]:
    """Radices of a column's number in its group, most significant first: odd part, then bits."""
    twos = (fold & -fold).bit_length() - 1
    return (fold >> twos, *(2,) * twos)


def to_places(x: jax.Array, axis: int, fold: int) -> jax.Array:
    """An axis of a group's columns, from their natural order to that of `column_order`."""
    return _turned(x, axis, _radices(fold))


def to_columns(x: jax.Array, axis: int, fold: int) -> jax.Array:
    """The inverse of `to_places`."""
    return _turned(x, axis, _radices(fold)[::-1])


def _turned(x: jax.Array, axis: int, digits: tuple[int, ...]) -> jax.Array:
    axis %= x.ndim
    if len(digits) <= 2 and 1 in digits:
        return x
    split = x.reshape(*x.shape[:axis], *digits, *x.shape[axis + 1 :])
    n = len(digits)
    order = [*range(axis), *reversed(range(axis, axis + n)), *range(axis + n, split.ndim)]
    return split.transpose(order).reshape(x.shape)


def fold(x: jax.Array, size: int, parts: Sequence[int] | None = None, *, offset: int = 0) -> Folded:
    """(N, C, H, W) in folded form; columns that fill the first and the last group are zero."""
    parts = x.shape[1:2] if parts is None else tuple(parts)
    return _grouped(x.transpose(0, 2, 3, 1), x.shape[3], size, parts, offset)


def _grouped(
    pixels: jax.Array, width: int, size: int, parts: tuple[int, ...], offset: int
) -> Folded:
    """Groups of (N, H, at least `width`, C), whose columns from `width` on are finite."""
    n, height, present, channels = pixels.shape
    groups = groups_of(width, size, offset)
    spare = groups * size - offset - present
    if offset or spare > 0:
        pixels = jnp.pad(pixels, ((0, 0), (0, 0), (offset, max(spare, 0)), (0, 0)))
    pixels = pixels[:, :, : groups * size].reshape(n, height, groups, size, channels)
    pixels = to_places(pixels, 3, size)
    pieces = [p.reshape(n, height, groups, -1) for p in cut(pixels, parts)]
    return Folded(jnp.concatenate(pieces, axis=3), parts, width, size, offset)


def _in_places(x: Folded) -> jax.Array:
    """(N, H, groups, fold, C): the columns of a group in its own order, the parts joined."""
    return jnp.concatenate([p.reshape(*x.array.shape[:3], x.fold, -1) for p in x.pieces()], axis=4)


def _pixels(x: Folded) -> jax.Array:
    """(N, H, columns of all groups, C)."""
    places = _in_places(x)
    n, height, groups, fold, channels = places.shape
    return to_columns(places, 3, fold).reshape(n, height, groups * fold, channels)


def unfold(x: Folded) -> jax.Array:
    """(N, C, H, W) again."""
    if x.maker is not None:
        # Columns cut off a TPU's pixels cost more than the image made without them.
        x = aligned(x)
    return _pixels(x)[:, :, x.offset : x.offset + x.width].transpose(0, 3, 1, 2)


def refold(x: Folded, size: int, *, offset: int = 0) -> Folded:
    """The same image with another fold and offset, in one part."""
    if x.fold == size and x.offset != offset:
        x = shifted(x, 0, offset=offset) if offset else aligned(x)
    if x.fold == size and len(x.parts) == 1:
        return x
    if x.fold == size:
        array = _in_places(x).reshape(x.array.shape)
        return Folded(array, (x.channels,), x.width, size, offset)
    return _grouped(_pixels(aligned(x)), x.width, size, (x.channels,), offset)


def spread_channels(x: jax.Array, like: Folded) -> jax.Array:
    """A value for each channel, on the last axis, repeated for each column of a group."""
    if like.fold == 1:
        return x
    tiles = [jnp.tile(p, (*(1,) * (x.ndim - 1), like.fold)) for p in cut(x, like.parts)]
    return jnp.concatenate(tiles, axis=-1)


def spread_columns(x: jax.Array, like: Folded) -> jax.Array:
    """A value for each column of a group, on the last axis, repeated for each of its channels.

    By a product with ones and zeros, which is exact, and which a TPU makes faster than a repetition
    within lanes.
    """
    if like.channels == 1 or like.fold == 1:
        return x
    ones = np.concatenate([np.repeat(np.eye(like.fold), c, axis=1) for c in like.parts], axis=1)
    return by_ones(x, ones)


def sum_channels(x: jax.Array, like: Folded) -> jax.Array:
    """Sums over the channels of each column, in float32: (…, lanes) to (…, fold)."""
    if like.fold == 1:
        return jnp.sum(widened(x), -1, keepdims=True)
    ones = np.concatenate([np.repeat(np.eye(like.fold), c, axis=0) for c in like.parts], axis=0)
    return by_ones(x, ones, wide_dtype(x.dtype))


def sum_columns(x: jax.Array, like: Folded) -> jax.Array:
    """Sums over the columns of a group, for each channel: (…, lanes) to (…, channels)."""
    return _over_columns(x, like, jnp.add)


def _over_columns(x: jax.Array, like: Folded, join: Callable[..., jax.Array]) -> jax.Array:
    """Joins stretches of lanes, one by one: XLA would make a single reduction of this and of the
    one over pixels before it, which walks through lanes and takes a TPU ten times as long."""
    if like.fold == 1:
        return x
    pieces = cut(x, [like.fold * c for c in like.parts])
    joined = [functools.reduce(join, jnp.split(p, like.fold, axis=-1)) for p in pieces]
    return jnp.concatenate(joined, axis=-1)


def by_ones(x: jax.Array, ones: np.ndarray, out: DTypeLike | None = None) -> jax.Array:
    out = x.dtype if out is None else out
    return jax.lax.dot_general(
        x,
        jnp.asarray(ones, x.dtype),
        (((x.ndim - 1,), (0,)), ((), ())),
        precision=_exact(x.dtype),
        preferred_element_type=out,
    )


def _exact(dtype: DTypeLike) -> jax.lax.Precision:
    """With which a product with ones and zeros moves numbers unchanged: bfloat16's in one pass."""
    return jax.lax.Precision.DEFAULT if dtype == jnp.bfloat16 else jax.lax.Precision.HIGHEST


def largest_channel(x: Folded) -> jax.Array:
    """The largest of each column's channels: (N, H, groups, fold); equal ones share gradients."""

    def largest(array: jax.Array) -> jax.Array:
        if x.fold == 1:
            return jnp.max(array, -1, keepdims=True)
        low = jnp.asarray(lowest(array.dtype), array.dtype)

        def of_part(part: jax.Array, channels: int) -> jax.Array:
            window = (1, 1, 1, channels)
            return jax.lax.reduce_window(part, low, jax.lax.max, window, window, "VALID")

        return functools.reduce(jnp.maximum, map(of_part, x.holding(array).pieces(), x.parts))

    return sharing(
        x.array,
        largest,
        spread=lambda maxima: spread_columns(maxima, x),
        total=lambda values: sum_channels(values, x),
    )


def largest_pixel(x: Folded, *, batch: bool) -> jax.Array:
    """The largest pixel of each channel: (N or 1, 1, 1, C); equal ones share the gradient."""
    axes = (0, 1, 2) if batch else (1, 2)
    rows = 1 if batch else x.array.shape[0]

    def largest(array: jax.Array) -> jax.Array:
        return _over_columns(jnp.max(array, axes, keepdims=True), x, jnp.maximum)

    def total(array: jax.Array) -> jax.Array:
        sums = x.holding(widened(array)).channel_sums(by_row=not batch)
        return sums.reshape(rows, 1, 1, x.channels)

    filled = x.cleaned(-math.inf)
    return sharing(filled, largest, spread=lambda maxima: spread_channels(maxima, x), total=total)


def shifted(x: Folded, by: int, *, offset: int | None = None) -> Folded:
    """The image whose column m is column m + `by`; zero beyond the edge.

    A convolution over groups with ones and zeros, which is exact: pieces of lanes cut out and put
    elsewhere would fill no tile of a TPU, neither here nor in the gradient.

    Args:
      x: the image.
      by: columns.
      offset: of the result. Default: the image's.
    """
    offset = x.offset if offset is None else offset
    if by == 0 and offset == x.offset:
        return x
    order = column_order(x.fold)
    moves, sources = np.divmod(order + by + x.offset - offset, x.fold)
    first_move, last_move = int(moves.min()), int(moves.max())
    groups = groups_of(x.width, x.fold, offset)
    chosen = np.zeros((1, last_move - first_move + 1, x.fold, x.fold), np.float32)
    chosen[0, moves - first_move, np.argsort(order)[sources], np.arange(x.fold)] = 1
    lanes = [
        jax.lax.conv_general_dilated(
            piece,
            jnp.asarray(np.kron(chosen, np.eye(channels)), x.dtype),
            (1, 1),
            [(0, 0), (-first_move, groups - x.groups + last_move)],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision=_exact(x.dtype),
        )
        for piece, channels in zip(x.holding(x.cleaned()).pieces(), x.parts, strict=True)
    ]
    return Folded(jnp.concatenate(lanes, axis=3), x.parts, x.width, x.fold, offset)

"""Enlargement by powers of two, and pixel shuffle, of folded images.

Which pixels an enlargement reads, and with which weights, is the table of `jaxsr.ops`. Rows are
matrix products. Output columns of the same phase are computed together, from shifted images.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.interop._core.dtypes import wide_dtype
from jaxsr.interop.folding.layout import (
    LANES,
    Folded,
    aligned,
    by_ones,
    column_order,
    columns,
    shifted,
    to_columns,
    to_places,
    unfold,
)
from jaxsr.interop.folding.pixel_shuffle import Shuffled
from jaxsr.ops._resize.kernels import by_matmul
from jaxsr.ops._resize.weights import Taps

MOST_SHIFTS = 5
"""Neighbours in its row that a pixel may read."""


def enlarge(
    x: Folded, size: Sequence[int], *, method: str, align: bool, scales: Sequence[float | None]
) -> Folded | None:
    """torch's interpolation; None where the factors are not powers of two."""
    from jaxsr.ops._resize.conventions.torch import torch_passes

    _, _, height, width = x.shape
    factors = size[0] // height, size[1] // width
    if (height * factors[0], width * factors[1]) != tuple(size):
        return None
    if any(f < 1 or f & (f - 1) for f in factors):
        return None
    passes = torch_passes(
        x.shape, np.dtype(np.float32), (2, 3), tuple(size),
        method=method, antialias=False, align_corners=align, scale=scales,
    )  # fmt: skip
    tables: dict[int, Taps] = {step.axis: step.taps for step in passes}
    dtype = x.dtype
    plan = _phases(tables[3], factors[1])
    if any(len(phase) > MOST_SHIFTS for phase in plan):
        return None
    x = aligned(x)
    x = x.holding(x.cleaned().astype(wide_dtype(dtype)))
    # Columns first: there is less to move about before the rows are more.
    if factors[1] > 1:
        x = _columns(x, plan)
    if factors[0] > 1:
        x = x.holding(by_matmul(x.array, tables[2], 1))
    return x.holding(x.array.astype(dtype))


def _phases(taps: Taps, factor: int) -> list[dict[int, np.ndarray]]:
    """For each of the `factor` pixels made of one: weights of its neighbours, pixel by pixel."""

    def weights(phase: int) -> dict[int, np.ndarray]:
        weight = taps.weight[phase::factor]
        distance = taps.index[phase::factor] - np.arange(taps.extent)[:, None]
        steps = map(int, np.unique(distance[weight != 0]))
        return {s: np.where(distance == s, weight, 0).sum(1).astype(np.float32) for s in steps}

    return [weights(phase) for phase in range(factor)]


def _columns(x: Folded, plan: Sequence[dict[int, np.ndarray]]) -> Folded:
    source = np.minimum(columns(x.groups, x.fold), x.width - 1)
    shifted_parts = {step: shifted(x, step).pieces() for phase in plan for step in phase}
    lanes = []
    for part, channels in enumerate(x.parts):
        for phase in column_order(len(plan)):
            terms = [
                shifted_parts[step][part] * np.repeat(weight[source], channels, axis=1)
                for step, weight in plan[phase].items()
            ]
            lanes.append(sum(terms[1:], terms[0]))
    factor = len(plan)
    return Folded(jnp.concatenate(lanes, axis=3), x.parts, x.width * factor, x.fold * factor)


def shuffle(x: Folded, factor: int, *, fewest_lanes: int) -> Folded | Shuffled | jax.Array | None:
    """Pixel shuffle; None where the image does not come straight from a convolution.

    The convolution is computed with its output channels in the order of the shuffled pixels, so
    that only whole rows move. A result of fewer lanes than `fewest_lanes` is (N, C, H, W).
    """
    channels, remainder = divmod(x.channels, factor**2)
    if x.fold == 1 and len(x.parts) == 1 and not remainder:
        n, height, width, _ = x.array.shape
        array = x.array.reshape(n, height, width, channels, factor, factor)
        array = array.transpose(0, 1, 4, 2, 5, 3).reshape(n, height * factor, -1, channels)
        return Folded(array, (channels,), width * factor, 1)
    if x.maker is None or x.maker.arranged is None or factor & (factor - 1) or remainder:
        return None

    lanes = x.fold * factor * channels
    wide, few = lanes > LANES, lanes < fewest_lanes
    # Two float32 columns in a group are unfolded at less by way of whole rows; four columns, and
    # bfloat16 ones, are not.
    natural = few and x.fold == 2 and x.dtype.itemsize > 2

    def arrange(outputs: jax.Array) -> jax.Array:
        remainder = outputs.shape[1:]
        split = outputs.reshape(channels, factor, factor, *remainder)
        split = split if natural else to_places(split, 2, factor)
        return jnp.moveaxis(split, 0, 2).reshape(-1, *remainder)

    parts = (factor * channels,) * factor if wide or natural else (channels,) * factor**2
    result, bias = x.maker.arranged(arrange, parts)

    def biased(image: Folded, bias: jax.Array | None) -> jax.Array:
        return image.array if bias is None else image.array + image.spread(bias)

    if wide:
        shuffled = Shuffled(biased(result, bias), channels, factor, x.fold)
        if not result.padded:
            return shuffled
        settled_image = shuffled.settled()
        return Folded(settled_image.array[:, :, : x.width], (channels,), x.width * factor, factor)

    def rows(array: jax.Array) -> Folded:
        n, height, groups, _ = array.shape
        split = array.reshape(n, height, groups, factor, lanes).swapaxes(2, 3)
        array = split.reshape(n, height * factor, groups, lanes)
        return Folded(array, (channels,), x.width * factor, x.fold * factor)

    def pixels(array: jax.Array) -> jax.Array:
        if not natural:
            return unfold(rows(array))
        n, height, groups, _ = array.shape
        split = array.reshape(n, height, groups, factor, x.fold * factor, channels)
        split = split.transpose(0, 1, 3, 5, 2, 4).reshape(n, height, factor, channels, -1)
        image = split.transpose(0, 3, 1, 2, 4).reshape(n, channels, height * factor, -1)
        return image[..., : x.width * factor]

    if not few:
        return rows(biased(result, bias))
    if bias is None:
        return pixels(result.array)

    # The gradient of the bias is summed where pixels lie in rows: of the convolution's result it
    # would be a reduction of arrays on their way between layouts, at several times the price. Its
    # values are put in place by products with ones, for XLA to sum over images first.
    @jax.custom_jvp
    def settled(array: jax.Array, bias: jax.Array) -> jax.Array:
        return pixels(biased(result.holding(array), bias))

    @settled.defjvp
    def tangent(
        primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        array_tangent, bias_tangent = tangents
        out = settled(*primals)
        by_channel = jnp.moveaxis(bias_tangent.reshape(factor, factor, channels), 2, 0)
        by_channel = by_channel if natural else to_columns(by_channel, 2, factor)
        down, right = (np.tile(np.eye(factor), side // factor) for side in out.shape[2:])
        tiled = by_ones(by_ones(by_channel, right).swapaxes(1, 2), down).swapaxes(1, 2)
        return out, pixels(array_tangent) + tiled

    return settled(result.array, bias)


def pool(x: Folded, reduce: Callable[..., jax.Array]) -> Folded | None:
    """Makes one pixel of each 2 × 2: `reduce` takes the four, row by row.

    None where columns cannot be paired within groups.
    """
    height = x.array.shape[1] // 2
    if x.fold == 1:
        rows = [x.array[:, row : 2 * height : 2] for row in range(2)]
        pairs = [r[:, :, column : x.width // 2 * 2 : 2] for r in rows for column in range(2)]
        return Folded(reduce(*pairs), x.parts, x.width // 2, 1)
    x = aligned(x)
    if x.fold % 2 or (x.width % 2 and x.padded):
        return None
    pairs = []
    for row in range(2):
        array = x.array[:, row : 2 * height : 2]
        halves = [jnp.split(piece, 2, axis=3) for piece in x.holding(array).pieces()]
        pairs += [jnp.concatenate(columns, axis=3) for columns in zip(*halves, strict=True)]
    return Folded(reduce(*pairs), x.parts, x.width // 2, x.fold // 2)

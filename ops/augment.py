"""Batches changed at random, by key: pictures, and the masks, boxes and points that belong to them.

A policy is a tuple of steps, each a frozen dataclass; one policy and shape is one program. Every
picture has a key of its own, made of the batch's key and its place in the batch: results do not
depend on the mesh, and shards do not communicate.

Batches are NHWC, or NCHW with `axes=(-2, -1)`. Boxes are (x1, y1, x2, y2) and points (x, y) in
pixels, with the picture's upper left corner at (0, 0): the middle of the first pixel is (0.5, 0.5).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, number, positive_pair
from jaxsr.ops._border import checked_border
from jaxsr.ops._images import in_dtype_of, parameter, picture
from jaxsr.ops._typed_jax import arange, asarray, jit, ones_like, zeros_like
from jaxsr.ops._types import Array, Float, Shaped
from jaxsr.ops.adjust import adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation
from jaxsr.ops.boxes import crop_and_resize
from jaxsr.ops.geometry import flip
from jaxsr.ops.warps import rotation_matrix, warp_affine

Range = tuple[float, float]
_ATTEMPTS = 10  # of torchvision's RandomResizedCrop, before it falls back to the middle


class Augmented(NamedTuple):
    """What `augment` returns; what was not given is None."""

    images: Shaped[Array, "..."]
    masks: Shaped[Array, "..."] | None = None
    boxes: Float[Array, "..."] | None = None
    """Bounding boxes of the moved corners, clipped to the picture."""
    points: Float[Array, "..."] | None = None
    """Not clipped: a point may leave the picture."""


class _Layout(NamedTuple):
    axes: tuple[int, int]
    channel: int


@runtime_checkable
class Step(Protocol):
    """One step of a policy."""

    def __call__(self, keys: jax.Array, batch: Augmented, layout: _Layout) -> Augmented:
        """The changed batch; `keys` has one key for each picture."""
        ...


@dataclass(frozen=True, kw_only=True)
class RandomFlip:
    """Mirrors pictures."""

    horizontal: float = 0.5
    """Probability of reversed columns."""
    vertical: float = 0.0
    """Probability of reversed rows."""

    def __post_init__(self) -> None:
        _check_share(self.horizontal, "horizontal")
        _check_share(self.vertical, "vertical")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: _Layout) -> Augmented:
        """Flips what belongs to a picture alike."""
        draws = _uniform(keys, 2, 0.0)
        across, down = draws[:, 0] < self.horizontal, draws[:, 1] < self.vertical

        def mirrored(x: jax.Array) -> jax.Array:
            return flip(x, horizontal=across, vertical=down, axes=layout.axes)

        height, width = (batch.images.shape[axis] for axis in layout.axes)
        columns, rows = _signs(across), _signs(down)
        zero = zeros_like(columns)
        matrix = _rows(
            (columns, zero, jnp.where(across, width, 0)), (zero, rows, jnp.where(down, height, 0))
        )
        masks = None if batch.masks is None else mirrored(batch.masks)
        return _moved(batch, mirrored(batch.images), masks, matrix, (height, width))


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """Cuts a box at random and resizes it, as torchvision's transform of this name."""

    size: int | tuple[int, int]
    """(height, width) of the result."""
    scale: Range = (0.08, 1.0)
    """Least and greatest share of the picture's area."""
    ratio: Range = (3 / 4, 4 / 3)
    """Least and greatest width / height."""
    method: str = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        positive_pair(self.size, "size")
        _check_range(self.scale, "scale")
        _check_range(self.ratio, "ratio")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: _Layout) -> Augmented:
        """Cuts masks by the nearest pixel."""
        size = positive_pair(self.size, "size")
        height, width = (batch.images.shape[axis] for axis in layout.axes)
        draw = partial(random_box, height=height, width=width, scale=self.scale, ratio=self.ratio)
        box = jax.vmap(draw)(keys)
        cut = partial(crop_and_resize, boxes=box, size=size, axes=layout.axes)
        images = cut(batch.images, method=self.method, antialias=self.antialias)
        masks = None if batch.masks is None else cut(batch.masks, method="nearest")
        x1, y1, x2, y2 = box.T
        across, down = size[1] / (x2 - x1), size[0] / (y2 - y1)
        zero = zeros_like(across)
        matrix = _rows((across, zero, -x1 * across), (zero, down, -y1 * down))
        return _moved(batch, images, masks, matrix, size)


@dataclass(frozen=True, kw_only=True)
class RandomAffine:
    """Turns, moves, scales and shears about the middle, in one warp."""

    degrees: float = 0.0
    """Greatest angle, to either side."""
    translate: Range = (0.0, 0.0)
    """Greatest move down and right, as shares of (height, width), to either side."""
    scale: Range = (1.0, 1.0)
    """Least and greatest enlargement."""
    shear: float = 0.0
    """Greatest angle of the columns, in degrees, to either side."""
    method: str = "bilinear"
    border: str = "constant"
    fill: float = 0.0

    def __post_init__(self) -> None:
        number(self.degrees, "degrees", least=0)
        number(self.shear, "shear", least=0)
        for share in self.translate:
            _check_share(share, "translate")
        _check_range(self.scale, "scale")
        checked_border(self.border)

    def __call__(self, keys: jax.Array, batch: Augmented, layout: _Layout) -> Augmented:
        """Masks are warped by the nearest pixel, and are 0 beyond the edge."""
        height, width = (batch.images.shape[axis] for axis in layout.axes)
        draws = _uniform(keys, 5, -1.0)
        middle = (height - 1) / 2, (width - 1) / 2
        low, high = self.scale
        size = low * (high / low) ** ((draws[:, 0] + 1) / 2)
        turn = rotation_matrix(draws[:, 1] * self.degrees, size, middle)
        slope = jnp.tan(draws[:, 2] * math.radians(self.shear))
        one, zero = ones_like(slope), zeros_like(slope)
        sheared = _rows((one, slope, -slope * middle[0]), (zero, one, zero))
        move = jnp.stack(
            [draws[:, 3] * self.translate[1] * width, draws[:, 4] * self.translate[0] * height], -1
        )
        matrix = _after(turn, sheared).at[..., 2].add(move)
        images = warp_affine(
            batch.images,
            matrix,
            method=self.method,
            border=self.border,
            fill=self.fill,
            axes=layout.axes,
        )
        masks = batch.masks
        if masks is not None:
            # The nearest pixel of a warp may be any of a mask's values, and no other.
            masks = warp_affine(masks, matrix, method="nearest", axes=layout.axes)
        # From centres of pixels to their corners.
        offset = 0.5 - matrix[..., :2].sum(-1) * 0.5
        matrix = matrix.at[..., 2].add(offset)
        return _moved(batch, images, masks, matrix, (height, width))


@dataclass(frozen=True, kw_only=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue of RGB pictures, in this order."""

    brightness: float = 0.0
    """Factors lie within 1 - x and 1 + x, and not below 0."""
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    """Greatest shift to either side, in turns of the colour circle."""

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation", "hue"):
            number(getattr(self, name), name, least=0)

    def __call__(self, keys: jax.Array, batch: Augmented, layout: _Layout) -> Augmented:
        """Changes pictures alone."""
        draws = _uniform(keys, 4, -1.0)
        images, (axes, channel) = batch.images, layout
        if self.brightness:
            factor = jnp.maximum(1 + draws[:, 0] * self.brightness, 0)
            images = adjust_brightness(images, factor, axes=axes)
        if self.contrast:
            factor = jnp.maximum(1 + draws[:, 1] * self.contrast, 0)
            images = adjust_contrast(images, factor, axes=axes, channel=channel)
        if self.saturation:
            factor = jnp.maximum(1 + draws[:, 2] * self.saturation, 0)
            images = adjust_saturation(images, factor, axes=axes, channel=channel)
        if self.hue:
            images = adjust_hue(images, draws[:, 3] * self.hue, axes=axes, channel=channel)
        return batch._replace(images=images)


@dataclass(frozen=True, kw_only=True)
class RandomErasing:
    """Fills a box of some pictures, as torchvision's transform of this name."""

    probability: float = 0.5
    scale: Range = (0.02, 0.33)
    """Least and greatest share of the picture's area."""
    ratio: Range = (0.3, 3.3)
    """Least and greatest width / height."""
    fill: float = 0.0

    def __post_init__(self) -> None:
        _check_share(self.probability, "probability")
        _check_range(self.scale, "scale")
        _check_range(self.ratio, "ratio")
        number(self.fill, "fill")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: _Layout) -> Augmented:
        """Changes pictures alone."""
        height, width = (batch.images.shape[axis] for axis in layout.axes)
        outside = in_dtype_of(batch.images, asarray(self.fill, jnp.float32))

        def erase(key: jax.Array, image: jax.Array) -> jax.Array:
            chance, place = jax.random.split(key)
            x1, y1, x2, y2 = random_box(
                place, height=height, width=width, scale=self.scale, ratio=self.ratio
            )
            rows, columns = arange(height)[:, None], arange(width)
            inside = (rows >= y1) & (rows < y2) & (columns >= x1) & (columns < x2)
            inside &= jax.random.uniform(chance) < self.probability
            shape = [1] * image.ndim
            for axis, extent in zip(layout.axes, (height, width), strict=True):
                shape[axis] = extent
            return jnp.where(inside.reshape(shape), outside, image)

        return batch._replace(images=jax.vmap(erase)(keys, batch.images))


def augment(
    key: jax.Array,
    images: Shaped[ImageLike, "..."],
    policy: Sequence[Step],
    *,
    masks: Shaped[ImageLike, "..."] | None = None,
    boxes: ImageLike | None = None,
    points: ImageLike | None = None,
    axes: Sequence[int] = (-3, -2),
) -> Augmented:
    """Changes a batch at random, and all that belongs to its pictures alike.

    Args:
      key: of `jax.random`; the same key gives the same result, on any mesh.
      images: NHWC or NCHW; uint8, uint16 or floating point.
      policy: steps, in order. Static.
      masks: pictures of labels or opacity, of the same batch, height and width; moved by the
        nearest pixel.
      boxes: (N, K, 4): (x1, y1, x2, y2).
      points: (N, K, 2): (x, y).
      axes: the height and the width axis: (-3, -2) or (-2, -1).

    Returns:
      The changed batch.

    Raises:
      TypeError: an unsuitable dtype.
      ValueError: shapes that do not belong together.

    Example:
      >>> import jax
      >>> images = np.zeros((4, 32, 40, 3), np.uint8)
      >>> policy = (ops.RandomResizedCrop(size=24), ops.RandomFlip(), ops.ColorJitter(contrast=0.4))
      >>> ops.augment(jax.random.key(0), images, policy).images.shape
      (4, 24, 24, 3)
    """
    array, positions = picture(images, axes)
    if array.ndim != 4 or positions not in ((-3, -2), (-2, -1)):
        raise ValueError(
            f"images must be NHWC, or NCHW with axes=(-2, -1); got {array.shape} and axes={axes}"
        )
    layout = _Layout(positions, -1 if positions == (-3, -2) else -3)
    batch = Augmented(
        array, None, _places(boxes, "boxes", 4, array), _places(points, "points", 2, array)
    )
    if masks is not None:
        labels, _ = picture(masks, axes)
        size = [array.shape[axis] for axis in (0, *positions)]
        if labels.ndim != 4 or [labels.shape[axis] for axis in (0, *positions)] != size:
            raise ValueError(f"masks of shape {labels.shape} do not fit images of {array.shape}")
        batch = batch._replace(masks=labels)
    return _augment(key, batch, tuple(policy), layout)


def random_box(
    key: jax.Array, *, height: int, width: int, scale: Range, ratio: Range
) -> Float[Array, "4"]:
    """A box in whole pixels: torchvision's rule of RandomResizedCrop, as (x1, y1, x2, y2)."""
    areas, ratios, rows, columns = jax.random.uniform(key, (4, _ATTEMPTS))
    area = height * width * (scale[0] + (scale[1] - scale[0]) * areas)
    aspect = jnp.exp(math.log(ratio[0]) + math.log(ratio[1] / ratio[0]) * ratios)
    box_width, box_height = jnp.round(jnp.sqrt(area * aspect)), jnp.round(jnp.sqrt(area / aspect))
    fits = (box_width >= 1) & (box_width <= width) & (box_height >= 1) & (box_height <= height)
    first = jnp.argmax(fits)
    # Where none fits: the middle, as near to the ratio as the picture allows.
    nearest = min(max(width / height, ratio[0]), ratio[1])
    middle_width, middle_height = (
        min(width, round(height * nearest)),
        min(height, round(width / nearest)),
    )
    box_width = jnp.where(fits.any(), box_width[first], max(middle_width, 1))
    box_height = jnp.where(fits.any(), box_height[first], max(middle_height, 1))

    def start(room: jax.Array, share: jax.Array) -> jax.Array:
        anywhere = jnp.minimum(jnp.floor(share * (room + 1)), room)
        return jnp.where(fits.any(), anywhere, jnp.floor(room / 2))

    x1, y1 = start(width - box_width, columns[first]), start(height - box_height, rows[first])
    return jnp.stack([x1, y1, x1 + box_width, y1 + box_height])


@jit("policy", "layout")
def _augment(
    key: jax.Array, batch: Augmented, policy: tuple[Step, ...], layout: _Layout
) -> Augmented:
    keys = jax.vmap(partial(jax.random.fold_in, key))(arange(batch.images.shape[0]))
    for place, step in enumerate(policy):
        batch = step(_folded(keys, place), batch, layout)
    return batch


def _places(value: ImageLike | None, name: str, length: int, images: jax.Array) -> jax.Array | None:
    if value is None:
        return None
    array = parameter(value, name, (length,))
    if array.ndim != 3 or array.shape[0] != images.shape[0]:
        raise ValueError(
            f"{name} must be (N, K, {length}) with N={images.shape[0]}, got {array.shape}"
        )
    return array


def _moved(
    batch: Augmented,
    images: jax.Array,
    masks: jax.Array | None,
    matrix: jax.Array,
    size: tuple[int, int],
) -> Augmented:
    """The batch with moved boxes and points; `matrix` (N, 2, 3) moves corners of pixels."""
    boxes, points = batch.boxes, batch.points
    if points is not None:
        points = _at(matrix, points)
    if boxes is not None:
        corners = boxes[..., asarray([[0, 1], [2, 1], [0, 3], [2, 3]])]
        corners = _at(matrix[:, None], corners)
        limit = asarray([size[1], size[0]], jnp.float32)
        low, high = (jnp.clip(edge, 0, limit) for edge in (corners.min(-2), corners.max(-2)))
        boxes = jnp.concatenate([low, high], -1)
    return Augmented(images, masks, boxes, points)


def _at(matrix: jax.Array, points: jax.Array) -> jax.Array:
    """(x, y) of the last axis, moved. Sums of products, exact on TPUs too."""
    x, y = points[..., :1], points[..., 1:]
    column = matrix[..., None, :, :]
    return column[..., 0] * x + column[..., 1] * y + column[..., 2]


def _after(outer: jax.Array, inner: jax.Array) -> jax.Array:
    """(N, 2, 3) of two moves, the inner one first."""
    linear = (
        outer[..., :, 0, None] * inner[..., None, 0, :]
        + outer[..., :, 1, None] * inner[..., None, 1, :]
    )
    return linear.at[..., 2].add(outer[..., 2])


def _uniform(keys: jax.Array, count: int, least: float) -> jax.Array:
    """(N, count) numbers from `least` to 1, each picture's of its own key."""

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.uniform(key, (count,), minval=least)

    return jax.vmap(draw)(keys)


def _folded(keys: jax.Array, place: int) -> jax.Array:
    def fold(key: jax.Array) -> jax.Array:
        return jax.random.fold_in(key, place)

    return jax.vmap(fold)(keys)


def _rows(first: tuple[jax.Array, ...], second: tuple[jax.Array, ...]) -> jax.Array:
    return jnp.stack([jnp.stack(first, -1), jnp.stack(second, -1)], -2)


def _signs(is_reversed: jax.Array) -> jax.Array:
    return jnp.where(is_reversed, -1.0, 1.0)


def _check_share(value: float, name: str) -> None:
    if not 0 <= number(value, name) <= 1:
        raise ValueError(f"{name} must be 0 to 1, got {value!r}")


def _check_range(value: Range, name: str) -> None:
    low, high = (number(end, name, above=0) for end in value)
    if low > high:
        raise ValueError(f"{name} must be (least, greatest), got {value!r}")

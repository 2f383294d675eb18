"""Steps that move pixels, and with them masks, boxes and points."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import number, positive_pair
from jaxsr.ops._augment.batch import (
    Augmented,
    CheckedStep,
    Layout,
    Range,
    after,
    by_matrix,
    check_range,
    check_reading,
    check_share,
    matrix_of,
    moved,
    size_of,
    two,
    uniform,
)
from jaxsr.ops._typed_jax import asarray, eye, ones_like, zeros_like
from jaxsr.ops._types import Array, Float
from jaxsr.ops.boxes import check_filter, cut_within
from jaxsr.ops.deform import bent, smooth_field, unbent
from jaxsr.ops.geometry import flip
from jaxsr.ops.homography import perspective_matrix
from jaxsr.ops.warps import rotation_matrix, warp_affine, warp_perspective

_ATTEMPTS = 10  # of torchvision's RandomResizedCrop, before it falls back to the middle


@dataclass(frozen=True, kw_only=True)
class RandomFlip(CheckedStep):
    """Mirrors images."""

    horizontal: float = 0.5
    """Probability of reversed columns."""
    vertical: float = 0.0
    """Probability of reversed rows."""

    def _check_fields(self) -> None:
        check_share(self.horizontal, "horizontal")
        check_share(self.vertical, "vertical")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Flips an image and everything that belongs to it alike."""
        draws = uniform(keys, 2)
        across, down = draws[:, 0] < self.horizontal, draws[:, 1] < self.vertical

        def mirrored(x: jax.Array) -> jax.Array:
            return flip(x, horizontal=across, vertical=down, axes=layout.axes)

        height, width = size_of(batch, layout)
        columns, rows = _signs(across), _signs(down)
        zero = zeros_like(columns)
        matrix = matrix_of(
            (columns, zero, jnp.where(across, width, 0)), (zero, rows, jnp.where(down, height, 0))
        )
        masks = None if batch.masks is None else mirrored(batch.masks)
        return moved(batch, mirrored(batch.images), masks, by_matrix(matrix), (height, width))


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(CheckedStep):
    """Cuts a box at random and resizes it, as torchvision's transform of this name."""

    size: int | tuple[int, int]
    """(height, width) of the result."""
    scale: Range = (0.08, 1.0)
    """Least and greatest share of the image's area."""
    ratio: Range = (3 / 4, 4 / 3)
    """Least and greatest width / height."""
    method: str = "bilinear"
    antialias: bool = True

    def _check_fields(self) -> None:
        positive_pair(self.size, "size")
        check_filter(self.method, self.antialias)
        check_range(self.scale, "scale")
        check_range(self.ratio, "ratio")

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Cuts masks by the nearest pixel."""
        size = positive_pair(self.size, "size")
        height, width = size_of(batch, layout)
        draw = partial(random_box, height=height, width=width, scale=self.scale, ratio=self.ratio)
        box = jax.vmap(draw)(keys)
        cut = partial(cut_within, boxes=box, size=size, axes=layout.axes)
        images = cut(batch.images, method=self.method, antialias=self.antialias)
        masks = None if batch.masks is None else cut(batch.masks, method="nearest", antialias=False)
        x1, y1, x2, y2 = box.T
        across, down = size[1] / (x2 - x1), size[0] / (y2 - y1)
        zero = zeros_like(across)
        matrix = matrix_of((across, zero, -x1 * across), (zero, down, -y1 * down))
        return moved(batch, images, masks, by_matrix(matrix), size)


@dataclass(frozen=True, kw_only=True)
class RandomAffine(CheckedStep):
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

    def _check_fields(self) -> None:
        number(self.degrees, "degrees", least=0)
        number(self.shear, "shear", least=0)
        for share in two(self.translate, "translate", "shares of (height, width)"):
            check_share(share, "translate")
        check_range(self.scale, "scale")
        check_reading(self.method, self.fill, self.border)

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Masks are warped by the nearest pixel, and are 0 beyond the edge."""
        height, width = size_of(batch, layout)
        draws = uniform(keys, 5, -1.0)
        middle = (height - 1) / 2, (width - 1) / 2
        low, high = self.scale
        size = low * (high / low) ** ((draws[:, 0] + 1) / 2)
        turn = rotation_matrix(draws[:, 1] * self.degrees, size, middle)
        slope = jnp.tan(draws[:, 2] * math.radians(self.shear))
        one, zero = ones_like(slope), zeros_like(slope)
        sheared = matrix_of((one, slope, -slope * middle[0]), (zero, one, zero))
        move = jnp.stack(
            [draws[:, 3] * self.translate[1] * width, draws[:, 4] * self.translate[0] * height], -1
        )
        matrix = after(turn, sheared).at[..., 2].add(move)
        return warped(batch, layout, matrix, self.method, self.border, self.fill)


@dataclass(frozen=True, kw_only=True)
class RandomPerspective(CheckedStep):
    """Moves the four corners inwards, as torchvision's transform of this name."""

    distortion: float = 0.5
    """Greatest move of a corner, as a share of half the height and half the width."""
    probability: float = 0.5
    method: str = "bilinear"
    border: str = "constant"
    fill: float = 0.0

    def _check_fields(self) -> None:
        check_share(self.distortion, "distortion")
        check_share(self.probability, "probability")
        check_reading(self.method, self.fill, self.border)

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Masks are warped by the nearest pixel, and are 0 beyond the edge."""
        height, width = size_of(batch, layout)
        draws = uniform(keys, 9)
        # Whole pixels, as torchvision draws them.
        most = asarray([int(self.distortion * (extent // 2)) for extent in (width, height)])
        inwards = jnp.floor(draws[:, :8].reshape(-1, 4, 2) * (most + 1))
        corners = asarray([[0, 0], [1, 0], [1, 1], [0, 1]], jnp.float32)
        start = corners * asarray([width - 1, height - 1], jnp.float32)
        end = start + inwards * (1 - 2 * corners)
        matrix = perspective_matrix(jnp.broadcast_to(start, end.shape), end)
        chosen = (draws[:, 8] < self.probability) & (height > 1) & (width > 1)
        matrix = jnp.where(chosen[:, None, None], matrix, eye(3))
        return warped(batch, layout, matrix, self.method, self.border, self.fill)


@dataclass(frozen=True, kw_only=True)
class ElasticTransform(CheckedStep):
    """Bends images by smooth noise, as torchvision's transform of this name."""

    alpha: float = 25.0
    """Times the smoothed noise it is the move in pixels; torchvision's is twice this number."""
    sigma: float = 5.0
    """Standard deviation in pixels of the Gaussian that smooths noise between -1 and 1."""
    method: str = "bilinear"
    border: str = "constant"
    fill: float = 0.0

    def _check_fields(self) -> None:
        number(self.alpha, "alpha", least=0)
        number(self.sigma, "sigma", above=0)
        check_reading(self.method, self.fill, self.border)

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """Masks are warped by the nearest pixel; boxes by 64 points of their outline."""
        size = size_of(batch, layout)

        def draw(key: jax.Array) -> jax.Array:
            return jax.random.uniform(key, (2, *size), minval=-1.0)

        field = smooth_field(jax.vmap(draw)(keys), self.alpha, self.sigma)
        bend = partial(bent, field=field, axes=layout.axes)
        images = bend(batch.images, method=self.method, border=self.border, fill=self.fill)
        masks = batch.masks
        if masks is not None:
            masks = bend(masks, method="nearest", border="constant", fill=0)
        return moved(batch, images, masks, partial(unbent, field=field), size, bends=True)


def warped(
    batch: Augmented, layout: Layout, matrix: jax.Array, method: str, border: str, fill: float
) -> Augmented:
    """The batch moved by (N, 2, 3) or (N, 3, 3) matrices of pixels' centres.

    The nearest pixel of a warp may be any of a mask's values, and no other.
    """
    warp = partial(warp_affine if matrix.shape[-2] == 2 else warp_perspective, axes=layout.axes)
    images = warp(batch.images, matrix, method=method, border=border, fill=fill)
    masks = None if batch.masks is None else warp(batch.masks, matrix, method="nearest")
    return moved(batch, images, masks, by_matrix(matrix, center=0.5), size_of(batch, layout))


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
    # Where none fits: the middle, as near to the ratio as the image allows.
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


def _signs(is_reversed: jax.Array) -> jax.Array:
    return jnp.where(is_reversed, -1.0, 1.0)

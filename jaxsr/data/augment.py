"""Augmentation of infrared images and masks, on the device, inside the jitted step.

Each sample's random numbers come from its own number folded into a key that stays the same for the
whole run: they do not depend on the mesh, the hosts or the batch. They become a `Placement`, which
says how the image is turned, scaled, cut and blurred; `place` carries it out as two matrix products
an image, so that every size of image and every draw share one program.

Two ways, in the order that each is applied:

- `scale` (MSHNet's paper, and DNA-Net before it): mirrored left and right (p = 0.5); long side
  scaled to a whole number from 0.5 to 2 times `base`, the image bilinear with antialiasing and the
  mask nearest, both as Pillow does; black added at the right and bottom up to `crop`; a random
  crop; Gaussian blur (p = 0.5, radius uniform in 0…1) as Pillow's three box blurs.
- `patch` (in the manner of BasicIRSTD): a crop of the image as it is, black beyond its right and
  bottom; half of them hold a pixel of a target, if the image has one; mirrored left and right, up
  and down, and its axes swapped, each with p = 0.5.

A policy of `jaxsr.ops.augment` may follow, on the crop and its mask.

Departure: Pillow rounds to whole levels after each pass of the resize and of each box blur; here
nothing is rounded, and the image becomes a network's input without further rounding.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32, UInt8

from jaxsr.data.input_form import IMAGENET
from jaxsr.errors import InputError, did_you_mean, one_line
from jaxsr.interop.json_text import json_object

Prepare = Callable[..., dict[str, Array]]
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]

# Uses of a sample's random numbers, folded into its key: an option that draws more leaves the
# numbers of the others unchanged.
_MIRROR, _SCALE, _ROW, _COLUMN, _BLUR, _RADIUS, _TURN, _SWAP, _AIM, _PIXEL = range(10)
_ZOOM, _LIGHT, _POLICY = 10, 11, 12


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Placement:
    """How one sample is cut from its image; fields have the batch's axis outside `vmap`."""

    mirror: Bool[Array, "*b"]
    """Left and right exchanged, before everything else."""
    turn: Bool[Array, "*b"]
    """Up and down exchanged."""
    swap: Bool[Array, "*b"]
    """Rows and columns of the finished crop exchanged."""
    size: Int32[Array, "*b 2"]
    """Height and width that the image is scaled to."""
    corner: Int32[Array, "*b 2"]
    """Top row and left column of the crop in the scaled image."""
    radius: Float[Array, "*b"]
    """Radius (standard deviation) of the blur in pixels, below 1; 0 for none."""


def make_augmentation(
    *,
    crop: int,
    base: int | None = None,
    kind: Literal["scale", "patch"] = "scale",
    zoom: float = 1.0,
    contrast: float = 0.0,
    policy: str = "",
    normalisation: Normalisation = IMAGENET,
) -> Prepare:
    """Makes the pure function `prepare(batch, key)` for use inside the step.

    Args:
      crop: side in pixels of the square that the network sees.
      base: side in pixels that `scale` scales about. Default: `crop`.
      kind: which of the two ways above.
      zoom: for `patch`: each image is scaled by a factor between 1/zoom and zoom.
      contrast: differences from a crop's mean are multiplied by 1 ± contrast, and up to half of
        contrast, as a share of 255, is added to all levels; 0 leaves them as they are.
      policy: steps of `jaxsr.ops.augment` for each crop and its mask, as a JSON object of their
        names and arguments.
      normalisation: mean and standard deviation of the network's three channels, for images in 0…1.

    Returns:
      `prepare(batch, key)`, which gives `image`, float32 (b, 3, crop, crop), normalised, and
      `mask`, float32 (b, 1, crop, crop), 0 or 1. `key` must be the same at every step. `batch`
      holds `InfraredItems`, and `sample`, the number of each in the run.

    Raises:
      ValueError: an argument is out of range.
    """
    base = crop if base is None else base
    if crop < 16 or crop % 16:
        raise InputError(f"crop must be a multiple of 16 px, got {crop}")
    if base < 2:
        raise InputError(f"base must be at least 2 px, got {base}")
    if kind not in ("scale", "patch"):
        raise InputError(f"kind must be 'scale' or 'patch', got {kind!r}")
    if not 1 <= zoom <= 4 or (kind == "scale" and zoom != 1):
        raise InputError(f"zoom must be from 1 to 4, and 1 with kind='scale', got {zoom}")
    if not 0 <= contrast < 1:
        raise InputError(f"contrast must be from 0 to below 1, got {contrast}")
    change = _policy_change(policy, crop)

    def prepare(batch: Mapping[str, Array], key: Array) -> dict[str, Array]:
        image, mask, size = batch["image"], batch["mask"], batch["size"]
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, batch["sample"])
        if kind == "scale":
            placement = draw_scale(keys, size, base=base, crop=crop)
        else:
            placement = draw_patch(keys, size, mask, crop=crop, zoom=zoom)
        levels, target = place(image, mask, size, placement, crop=crop, blur=kind == "scale")
        if contrast:
            levels = change_light(keys, levels, contrast)
        if policy:
            levels, target = jax.vmap(change)(keys, levels, target)
        return {"image": normalise(levels, normalisation), "mask": target[:, None]}

    return prepare


def draw_scale(keys: Array, size: Int32[Array, "b 2"], *, base: int, crop: int) -> Placement:
    """A random placement for each sample in the paper's way."""
    count = size.shape[0]
    nothing = jnp.zeros(count, bool)
    least, most = int(base * 0.5), int(base * 2.0)
    long_side = _each(keys, _SCALE, lambda k: _integer(k, least, most + 1))
    scaled = scaled_size(size, long_side)
    blurred = _each(keys, _BLUR, jax.random.bernoulli)
    return Placement(
        mirror=_each(keys, _MIRROR, jax.random.bernoulli),
        turn=nothing,
        swap=nothing,
        size=scaled,
        corner=_uniform_corner(keys, scaled, crop),
        radius=jnp.where(blurred, _each(keys, _RADIUS, jax.random.uniform), 0.0),
    )


def draw_patch(
    keys: Array,
    size: Int32[Array, "b 2"],
    mask: UInt8[Array, "b h w"],
    *,
    crop: int,
    zoom: float = 1.0,
) -> Placement:
    """A random placement for each sample in the toolbox's way."""
    scaled = size
    if zoom > 1:
        power = _each(keys, _ZOOM, lambda k: jax.random.uniform(k, minval=-1.0))
        factor = jnp.asarray(zoom, jnp.float32) ** power
        scaled = jnp.maximum(jnp.round(size * factor[:, None]), 1).astype(jnp.int32)
    anywhere = _uniform_corner(keys, scaled, crop)
    row_sums = mask.astype(jnp.int32).sum(axis=2)
    pixels = row_sums.sum(axis=1)

    def aim(key: Array, mask: Array, row_sums: Array, count: Array) -> Array:
        """Row and column of a target pixel, each equally likely."""
        rank = _integer(key, 0, jnp.maximum(count, 1))
        ends = jnp.cumsum(row_sums)
        row = jnp.minimum(jnp.searchsorted(ends, rank, side="right"), mask.shape[0] - 1)
        rest = rank - (ends[row] - row_sums[row])
        column = jnp.searchsorted(jnp.cumsum(mask[row].astype(jnp.int32)), rest, side="right")
        return jnp.stack([row, jnp.minimum(column, mask.shape[1] - 1)])

    pixel_keys = _each(keys, _PIXEL, lambda k: k)
    pixel = jax.vmap(aim)(pixel_keys, mask, row_sums, pixels)
    aimed = _each(keys, _AIM, jax.random.bernoulli) & (pixels > 0)
    if zoom > 1:
        pixel = (2 * pixel + 1) * scaled // (2 * size)
    # All corners whose crop contains the pixel are equally likely.
    room = jnp.maximum(scaled - crop, 0)
    least, most = jnp.clip(pixel - crop + 1, 0, room), jnp.clip(pixel, 0, room)
    around = _corner_between(keys, least, most)
    mirror, turn = (_each(keys, purpose, jax.random.bernoulli) for purpose in (_MIRROR, _TURN))
    corner = jnp.where(aimed[:, None], around, anywhere)
    # `place` cuts after exchanging sides: the corner follows, where the crop lies inside.
    flipped = jnp.stack([turn, mirror], axis=1)
    corner = jnp.where(flipped, jnp.maximum(scaled - crop - corner, 0), corner)
    return Placement(
        mirror=mirror,
        turn=turn,
        swap=_each(keys, _SWAP, jax.random.bernoulli),
        size=scaled,
        corner=corner,
        radius=jnp.zeros(size.shape[0]),
    )


def scaled_size(size: Int32[Array, "b 2"], long_side: Int32[Array, " b"]) -> Int32[Array, "b 2"]:
    """Height and width with the longer one made `long_side`, the other rounded half up."""
    longest = size.max(axis=1, keepdims=True)
    # In whole numbers, so that no device rounds a half the other way.
    return jnp.maximum((2 * size * long_side[:, None] + longest) // (2 * longest), 1)


def place(
    image: UInt8[Array, "b c h w"],
    mask: UInt8[Array, "b h w"],
    size: Int32[Array, "b 2"],
    placement: Placement,
    *,
    crop: int,
    blur: bool = True,
) -> tuple[Float[Array, "b c crop crop"], Float[Array, "b crop crop"]]:
    """Cuts, scales and blurs each image as its placement says.

    Args:
      image: canvases of which each image takes the top left.
      mask: its mask, 0 or 1.
      size: height and width of each image on its canvas.
      placement: how to cut, scale and blur each image.
      crop: side of the results.
      blur: whether any radius may be above 0; if not, the blur is free.

    Returns:
      The image in levels 0…255 and the mask, 0 or 1; both black outside the image.
    """
    height, width = image.shape[-2:]

    def one(image: Array, mask: Array, size: Array, p: Placement) -> tuple[Array, Array]:
        axes = ((0, height, p.turn), (1, width, p.mirror))
        resample = [_bilinear(crop, n, size[k], p.size[k], p.corner[k], f) for k, n, f in axes]
        if blur:
            resample = [_blurred(rows, p.radius) for rows in resample]
        pick = [_nearest(crop, n, size[k], p.size[k], p.corner[k], f) for k, n, f in axes]
        # Whole levels up to 255 survive an accelerator's bfloat16 products, the weights would not.
        exact = jax.lax.Precision.HIGHEST
        levels = jnp.einsum(
            "ih,chw,jw->cij", resample[0], image.astype(jnp.float32), resample[1], precision=exact
        )
        target = jnp.einsum("ih,hw,jw->ij", pick[0], mask.astype(jnp.float32), pick[1])
        levels = jnp.where(p.swap, levels.swapaxes(-1, -2), levels)
        return levels, jnp.where(p.swap, target.T, target)

    return jax.vmap(one)(image, mask, size, placement)


def change_light(
    keys: Array, levels: Float[Array, "b c h w"], contrast: float
) -> Float[Array, "b c h w"]:
    """Levels 0…255 with another brightness and contrast for each sample."""
    draw = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, _LIGHT), (2,), minval=-1.0))
    gain, shift = (contrast * draw(keys)).T[:, :, None, None, None]
    mean = levels.mean((1, 2, 3), keepdims=True)
    return jnp.clip(levels + gain * (levels - mean) + 127.5 * shift, 0.0, 255.0)


def _policy_change(text: str, crop: int) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    """The function from a sample's key, levels and mask to those changed by the policy.

    Raises:
      InputError: `jaxsr.ops` has no such step, or it does not take these arguments or masks.
    """
    from jaxsr import ops

    known = [name for name in ops.__all__ if dataclasses.is_dataclass(getattr(ops, name))]
    steps: list[Any] = []

    def change(key: Array, levels: Array, target: Array) -> tuple[Array, Array]:
        key = jax.random.fold_in(key, _POLICY)
        image, mask = levels[None] / 255, target[None, None]
        changed = ops.augment(key, image, tuple(steps), masks=mask, axes=(-2, -1))
        assert changed.masks is not None
        return changed.images[0] * 255, changed.masks[0, 0]

    for name, values in json_object("policy", text).items():
        if name not in known:
            meant = did_you_mean(name, known)
            raise InputError(f"policy: no step {name!r:.80}{meant}; there are {', '.join(known)}")
        try:
            pairs = {n: tuple(v) if isinstance(v, list) else v for n, v in dict(values).items()}
            steps[:] = [*steps, getattr(ops, name)(**pairs)]
            square = jnp.zeros((crop, crop))
            levels, _ = jax.eval_shape(change, jax.random.key(0), square[None], square)
        except (TypeError, ValueError) as error:
            raise InputError(f"policy: {name} cannot be taken ({one_line(error)})") from error
        if levels.shape[1:] != (crop, crop):
            raise InputError(f"policy: {name} makes other sizes; give {crop}, the crop's")
    return change


def normalise(
    levels: Float[Array, "b c h w"], normalisation: Normalisation
) -> Float[Array, "b 3 h w"]:
    """Normalises levels 0…255 by mean and standard deviation of 0…1; gray becomes 3 channels."""
    mean, deviation = (jnp.asarray(v, jnp.float32)[:, None, None] for v in normalisation)
    return (levels / 255 - mean) / deviation


def _bilinear(crop: int, extent: int, size, scaled, corner, flip) -> Float[Array, "crop extent"]:
    """Weights of the canvas' rows for each row of the crop: Pillow's BILINEAR resize.

    A triangle as wide as a source pixel, or as a target pixel where that is larger; weights outside
    the image are dropped and the rest add up to 1.
    """
    source = jnp.arange(extent)
    row = jnp.arange(crop) + corner
    ratio = size.astype(jnp.float32) / scaled
    centre = (row + 0.5) * ratio
    centre = jnp.where(flip, size - centre, centre)
    distance = jnp.abs(source + 0.5 - centre[:, None]) / jnp.maximum(ratio, 1.0)
    weight = jnp.where(source < size, jnp.maximum(1.0 - distance, 0.0), 0.0)
    inside = ((row >= 0) & (row < scaled))[:, None]
    return jnp.where(inside, weight, 0.0) / jnp.maximum(weight.sum(axis=1, keepdims=True), 1e-6)


def _nearest(crop: int, extent: int, size, scaled, corner, flip) -> Float[Array, "crop extent"]:
    """One for the canvas' row under the middle of each row of the crop: Pillow's NEAREST resize.

    A middle exactly between two rows takes the second; Pillow, adding up rounded steps, either.
    """
    row = jnp.arange(crop) + corner
    source = (2 * row + 1) * size // (2 * scaled)
    source = jnp.where(flip, size - 1 - source, source)
    source = jnp.where((row >= 0) & (row < scaled), source, -1)
    return (source[:, None] == jnp.arange(extent)).astype(jnp.float32)


def _blurred(rows: Float[Array, "crop extent"], radius: Float[Array, ""]) -> Array:
    """Rows of weights mixed as Pillow's Gaussian blur mixes rows of pixels.

    Three box blurs, the border repeated before each, whose variances add up to the radius squared.
    A box as Pillow extends it for radii below 1 is a pixel's own value and `a` of each neighbour's,
    divided by 1 + 2a (Gwosdek et al. 2011, equation 14, with l = 0).
    """
    square = radius**2
    a = square / (6 - 2 * square)
    for _ in range(3):
        above, below = (rows[place] for place in _neighbours(len(rows)))
        rows = (rows + a * (above + below)) / (1 + 2 * a)
    return rows


def _neighbours(count: int) -> tuple[np.ndarray, np.ndarray]:
    place = np.arange(count)
    return np.maximum(place - 1, 0), np.minimum(place + 1, count - 1)


def _uniform_corner(keys: Array, size: Array, crop: int) -> Int32[Array, "b 2"]:
    return _corner_between(keys, jnp.zeros_like(size), jnp.maximum(size - crop, 0))


def _corner_between(keys: Array, least: Array, most: Array) -> Int32[Array, "b 2"]:
    def draw(key: Array, least: Array, most: Array) -> Array:
        return _integer(key, least, most + 1)

    sides = [
        jax.vmap(draw)(_each(keys, purpose, lambda k: k), least[:, axis], most[:, axis])
        for axis, purpose in enumerate((_ROW, _COLUMN))
    ]
    return jnp.stack(sides, axis=1)


def _integer(key: Array, least: ArrayLike, end: ArrayLike) -> Array:
    # The default dtype is int64 where JAX has 64 bits, and draws other numbers there.
    return jax.random.randint(key, (), least, end, jnp.int32)


def _each(keys: Array, purpose: int, draw: Callable[[Array], Array]) -> Array:
    """One draw per sample from its key, for one purpose."""
    return jax.vmap(lambda key: draw(jax.random.fold_in(key, purpose)))(keys)

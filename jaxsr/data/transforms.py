"""Changes a batch of crops on the device, inside the jitted step: turns, degrades, scales.

In: the dictionary that `batches.py` describes. Out: float32, images NCHW, by default in [-1, 1]
(level 0 is -1, level 255 is 1): `high`, the target, and `low`, the network's input. All random
numbers of a sample come from its own number, folded into a key that stays the same for the whole
run, so they do not depend on the mesh, the hosts or the batch. Only `mixup` and `cutmix` take a
partner, and their shares, by the sample's place in its batch.

- Super-resolution (`scale` 2, 3, 4 …): `low` is `high` shrunk by bicubic interpolation with
  antialiasing, as `torch.nn.functional.interpolate(antialias=True)` or MATLAB computes it.
- Restoration (`scale` 1): `low` has the size of `high` and lost detail, see `DetailLoss`.
- Either may then be damaged as photos are, see `degradation.py`.

Low-resolution images reach a network as 8-bit files, so by default everything before the scaling to
that range is uint8, and resizing is the integer arithmetic of torch's uint8 images, which is also
Pillow's. A network trained without (`eight_bit=False`: float32 without rounding) sees fractions of
a level that no file has. Integers also make `low` the same to the bit on every device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Num, UInt8

from jaxsr.data.degradation import degrade
from jaxsr.data.degradation_options import Degradation
from jaxsr.data.device_cache import ResidentPhotos
from jaxsr.errors import InputError
from jaxsr.ops import CutMix, Mixup
from jaxsr.ops.augment import augment as ops_augment
from jaxsr.ops.colour import rgb_to_y
from jaxsr.ops.resize import resize

Prepare = Callable[..., dict[str, Array]]

# Uses of a sample's random numbers, folded into its key: an option that draws more leaves the
# numbers of the others unchanged. Labels follow in the order of their names.
_TURN, _FACTOR, _NOISE_STRENGTH, _NOISE, _LABELS = range(5)
_COLOURS, _DEGRADATION, _MIX, _CUT = range(2**16, 2**16 + 4)  # beyond any number of labels
_CUT_SIDE = 0.7
"""Share of an image: the sides of the box of CutBlur, as in its paper."""


@dataclass(frozen=True, kw_only=True)
class DetailLoss:
    """How the restoration form takes detail away: shrink, enlarge back, add noise."""

    factors: tuple[int, ...] = (2,)
    """Each sample is shrunk by one of these, drawn uniformly, and enlarged back, both bicubic."""
    noise: float = 0.0
    """Gaussian noise: its standard deviation is drawn per sample from 0 to this many levels of
    255."""

    def __post_init__(self) -> None:
        if not self.factors or min(self.factors) < 1:
            raise InputError(f"factors must be one or more integers from 1, got {self.factors}")
        if self.noise < 0:
            raise InputError(f"noise must be 0 or more levels of 255, got {self.noise}")


def make_preparation(
    *,
    crop: int,
    scale: int,
    channels: Literal[1, 3] = 3,
    augment: Literal["none", "flip", "turn"] = "turn",
    swap_colours: bool = False,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    cutblur: float = 0.0,
    eight_bit: bool = True,
    bicubic: Literal["torch", "matlab"] = "torch",
    loss_of_detail: DetailLoss | None = None,
    degradation: Degradation | None = None,
    labels: Mapping[str, tuple[float, float]] | None = None,
    value_range: tuple[float, float] = (-1.0, 1.0),
) -> Prepare:
    """Makes the pure function `prepare(batch, key, resident=None)` for use inside the step.

    Args:
      crop: side in pixels of the crops in the batch, a multiple of `scale` and of all `factors`.
      scale: sides of `high` over those of `low`; 1 for restoration.
      channels: 3 for RGB, 1 for luma (BT.601, full range: 0.299 R + 0.587 G + 0.114 B).
      augment: "flip" mirrors left and right at random; "turn" also turns by quarters, all eight
        positions being equally likely.
      swap_colours: put red, green and blue in a random order: shapes stay, and a network that sees
        each photo a hundred times cannot learn its colours by heart.
      mixup, cutmix: shares of the samples that are blended with their neighbour in the batch, or
        get a box of it, before `low` is made (Yoo et al., CVPR 2020). The batch is even then.
      cutblur: share of the samples whose `low` is undamaged inside or outside a box (the same
        paper): a network learns where to leave pixels as they are.
      eight_bit: make `low`, and luma, from and into whole levels, as files store them.
      bicubic: whose bicubic makes `low` at a scale above 1; papers use MATLAB's for their figures.
      loss_of_detail: for `scale` 1 only. Default: `DetailLoss()`.
      degradation: damage to `low` after it was made. Default: none.
      labels: name to (low, high): adds float32 (b, 1, 1, 1) drawn uniformly from that range.
      value_range: values of levels 0 and 255.

    Returns:
      `prepare(batch, key, resident=None)`. `key` must be the same at every step. `batch` has
      `image` (b, crop, crop, 3), or `window` if `resident` is given; both give equal results.

    Raises:
      ValueError: an argument is out of range, or they do not go together.
    """
    factors = (scale,)
    if scale < 1:
        raise InputError(f"scale must be 1 or more, got {scale}")
    if channels not in (1, 3):
        raise InputError(f"channels must be 1 (luma) or 3 (RGB), got {channels}")
    if augment not in ("none", "flip", "turn"):
        raise InputError(f"augment must be 'none', 'flip' or 'turn', got {augment!r}")
    if bicubic not in ("torch", "matlab"):
        raise InputError(f"bicubic must be 'torch' or 'matlab', got {bicubic!r}")
    if scale > 1 and loss_of_detail is not None:
        raise InputError(f"loss_of_detail is for scale=1 (restoration), got scale={scale}")
    if scale == 1:
        loss_of_detail = loss_of_detail or DetailLoss()
        factors = loss_of_detail.factors
    if any(crop % factor for factor in factors):
        raise InputError(f"crop={crop} must be a multiple of {', '.join(map(str, factors))}")
    if cutblur and scale > 1 and degradation is None:
        raise InputError("cutblur needs damage to low; give a degradation, such as low_jpeg")
    mixing = (
        *([Mixup(probability=mixup)] if mixup else []),
        *([CutMix(probability=cutmix)] if cutmix else []),
    )
    ranges = dict(sorted((labels or {}).items()))
    for name, (low, high) in ranges.items():
        if not low <= high:
            raise InputError(f"label {name!r} must be drawn from (low, high), got ({low}, {high})")

    def prepare(
        batch: Mapping[str, Array], key: Array, resident: ResidentPhotos | None = None
    ) -> dict[str, Array]:
        if resident is None:
            image = jnp.moveaxis(batch["image"], -1, -3)
        else:
            image = resident.crops(batch["window"], crop)
        if image.shape[-2:] != (crop, crop):
            raise InputError(f"crops must be {crop}×{crop} px, got {image.shape[-2:]}")
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, batch["sample"])
        if augment != "none":
            image = turn(image, _each(keys, _TURN, jax.random.bits), quarters=augment == "turn")
        if swap_colours:
            order = _each(keys, _COLOURS, lambda key: jax.random.permutation(key, 3))
            image = jnp.take_along_axis(image, order[:, :, None, None], axis=1)
        if mixing:
            key_of_batch = jax.random.fold_in(jax.random.fold_in(key, _MIX), batch["sample"][0])
            image = ops_augment(key_of_batch, image, mixing, axes=(-2, -1)).images
        levels = to_levels(image, channels=channels, eight_bit=eight_bit)
        if scale > 1:
            low = shrink(levels, scale, convention=bicubic)
        else:
            assert loss_of_detail is not None
            low = _lose_detail(levels, keys, loss_of_detail)
        undamaged = low if scale > 1 else levels
        if degradation is not None:
            low = degrade(low, _each(keys, _DEGRADATION, lambda key: key), degradation)
        if cutblur:
            low = _cut_blurred(low, undamaged.astype(low.dtype), keys, cutblur)
        made = {
            "high": to_model_range(levels, value_range),
            "low": to_model_range(low, value_range),
        }
        for place, (name, (least, most)) in enumerate(ranges.items()):
            draw = _each(keys, _LABELS + place, jax.random.uniform)
            made[name] = (least + (most - least) * draw)[:, None, None, None]
        return made

    return prepare


def turn(image: UInt8[Array, "b c s s"], bits: Array, *, quarters: bool) -> UInt8[Array, "b c s s"]:
    """Mirrors and turns each square image by its own lowest bits.

    Bit 0 mirrors left and right; with `quarters`, bit 1 mirrors up and down and bit 2 swaps rows
    and columns, which together reach all eight positions of a square.
    """
    bit = [(bits >> k & 1).astype(bool)[:, None, None, None] for k in range(3)]
    image = jnp.where(bit[0], jnp.flip(image, -1), image)
    if quarters:
        image = jnp.where(bit[1], jnp.flip(image, -2), image)
        image = jnp.where(bit[2], jnp.swapaxes(image, -1, -2), image)
    return image


def to_levels(
    image: UInt8[Array, "b 3 h w"], *, channels: int, eight_bit: bool = True
) -> Num[Array, "b c h w"]:
    """RGB or its full-range luma in levels 0…255: uint8, or float32 without `eight_bit`."""
    levels = image if eight_bit else image.astype(jnp.float32) / 255
    levels = levels if channels == 3 else rgb_to_y(levels, convention="full", channel=-3)
    return levels if eight_bit else 255 * levels


def to_model_range(
    levels: Num[Array, "..."], value_range: tuple[float, float] = (-1.0, 1.0)
) -> Float32[Array, "..."]:
    """Levels 0…255 as float32 from black to white of a range."""
    low, high = value_range
    # Not levels / 127.5 - 1: compiled, the division becomes a product and 255 lands above 1.
    return ((high - low) * levels.astype(jnp.float32) + 255 * low) * (1 / 255)


def shrink(
    levels: Num[Array, "b c h w"], factor: int, *, convention: Literal["torch", "matlab"] = "torch"
) -> Num[Array, "b c small_h small_w"]:
    """Bicubic with antialiasing; uint8 comes out as uint8, as a file would hold it."""
    height, width = levels.shape[-2:]
    return _bicubic(levels, (height // factor, width // factor), convention)


def enlarge(
    levels: Num[Array, "b c h w"], factor: int, *, convention: Literal["torch", "matlab"] = "torch"
) -> Num[Array, "b c large_h large_w"]:
    """Bicubic; uint8 comes out as uint8, as a file would hold it."""
    height, width = levels.shape[-2:]
    return _bicubic(levels, (height * factor, width * factor), convention)


def _lose_detail(levels: Array, keys: Array, loss: DetailLoss) -> Array:
    choice = _each(keys, _FACTOR, jax.random.bits) % len(loss.factors)
    low = levels
    for index, factor in enumerate(loss.factors):
        restored = enlarge(shrink(levels, factor), factor)
        low = jnp.where((choice == index)[:, None, None, None], restored, low)
    if loss.noise:
        deviation = loss.noise * _each(keys, _NOISE_STRENGTH, jax.random.uniform)
        noise = _each(keys, _NOISE, lambda key: jax.random.normal(key, levels.shape[1:]))
        low = low.astype(jnp.float32) + deviation[:, None, None, None] * noise
        if levels.dtype == jnp.uint8:
            low = jnp.clip(jnp.floor(low + 0.5), 0, 255)
    return low


def _cut_blurred(low: Array, undamaged: Array, keys: Array, probability: float) -> Array:
    """`low` with undamaged pixels inside or outside a box, for a share of the samples."""
    draw = _each(keys, _CUT, lambda key: jax.random.uniform(key, (4,)))[:, :, None]
    inside = []
    for axis, extent in enumerate(low.shape[-2:]):
        side = max(round(_CUT_SIDE * extent), 1)
        start = jnp.floor(draw[:, axis] * (extent - side + 1))
        inside.append((jnp.arange(extent) >= start) & (jnp.arange(extent) < start + side))
    box = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    box ^= draw[:, 2, :, None, None] < 0.5
    return jnp.where(box & (draw[:, 3, :, None, None] < probability), undamaged, low)


def _each(keys: Array, purpose: int, draw: Callable[[Array], Array]) -> Array:
    """One draw per sample from its key, for one purpose."""
    return jax.vmap(lambda key: draw(jax.random.fold_in(key, purpose)))(keys)


def _bicubic(levels: Array, size: tuple[int, int], convention: Literal["torch", "matlab"]) -> Array:
    return resize(
        levels, size, method="bicubic", antialias=True, convention=convention, axes=(-2, -1)
    )

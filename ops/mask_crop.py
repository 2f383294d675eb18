"""Cut video frames around their masks, and paste results back.

Frames and masks share their leading axes, (N, …) or (N, T, …), and are channels last unless `axes`
says otherwise; masks have one channel and count as set above 0.5. One box, the union over all
leading axes, cuts every frame, so that a clip stays aligned; `jax.vmap` over clips gives each its
own box. A box is (x1, y1, x2, y2) in whole pixels, end-exclusive.

The rule: bounding box of the union; padded on each side by a share of its own size; grown to a
least size, shifted where it would leave the frame; widened or heightened where it is too slim;
made even. A mask that is empty in every frame stands for the whole frame.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxsr.ops._arguments import (
    MASK_THRESHOLD,
    ImageLike,
    compute_dtype,
    frames_and_masks,
    image_array,
    is_integer,
    masks_and_axes,
    number,
    positive_pair,
)
from jaxsr.ops._box_rule import box_around
from jaxsr.ops._images import integers
from jaxsr.ops._opencv_crop import crop_box, crop_masks
from jaxsr.ops._typed_jax import asarray, cond, jit, zeros_like
from jaxsr.ops._types import Array, Float, Int, Shaped
from jaxsr.ops._window import resample_window
from jaxsr.ops.blur import gaussian_blur
from jaxsr.xla_calls.stored import stored

Box = Shaped[ImageLike, "4"] | Sequence[int]
Rule = tuple[float, tuple[int, int], float]


class MaskCrop(NamedTuple):
    """Result of `mask_crop`."""

    frames: Shaped[Array, "..."]
    masks: Shaped[Array, "..."]
    box: Int[Array, "4"] | tuple[int, int, int, int]
    """(x1, y1, x2, y2), end-exclusive: int32 on the device, or Python integers without a size."""


def mask_box(
    masks: Shaped[ImageLike, "..."],
    *,
    padding_ratio: float = 0.5,
    min_size: int | Sequence[int] = (512, 512),
    critical_ratio: float = 2.0,
    axes: Sequence[int] = (-3, -2),
) -> Int[Array, "4"]:
    """The box (x1, y1, x2, y2) that the rule gives for the union of all masks; int32.

    Args:
      masks: set where above 0.5; boolean, uint8 or floating point.
      padding_ratio: share of the bounding box's height and width added on each side, from 0.
      min_size: least (height, width) of the box in pixels, as far as the frame allows.
      critical_ratio: greatest height / width, and its inverse the least; at least 1.
      axes: the height and the width axis.

    Raises:
      TypeError: complex or integer masks other than uint8.
      ValueError: empty axes, or an option outside its range.

    Example:
      >>> masks = np.zeros((1, 90, 160, 1), np.uint8)
      >>> masks[:, 40:50, 60:80] = 1
      >>> ops.mask_box(masks, min_size=(20, 30)).tolist()
      [50, 35, 90, 55]
    """
    masks, axes = masks_and_axes(masks, axes)
    return _box(masks, axes, checked_rule(padding_ratio, min_size, critical_ratio))


def mask_crop(
    frames: Shaped[ImageLike, "..."],
    masks: Shaped[ImageLike, "..."],
    *,
    size: int | Sequence[int] | None = None,
    padding_ratio: float = 0.5,
    min_size: int | Sequence[int] = (512, 512),
    critical_ratio: float = 2.0,
    axes: Sequence[int] = (-3, -2),
) -> MaskCrop:
    """Cuts all frames and masks with the box around the masks.

    Args:
      frames: images of any range.
      masks: one channel, otherwise the frames' shape; set where above 0.5.
      size: (height, width) to which the cut is resampled, bilinear with torch's half-pixel centres
        and no antialias; masks are cut at 0.5 again, to 0 and 1. The box may then depend on traced
        values, and one compiled program serves every mask. Default: the cut itself, whose size
        depends on the masks, so that it only works outside jit.
      padding_ratio, min_size, critical_ratio, axes: see `mask_box`.

    Raises:
      TypeError: unsuitable dtypes, or no `size` where the masks are traced.
      ValueError: masks of another size, empty axes, or an option outside its range.

    Example:
      >>> frames, masks = np.zeros((1, 90, 160, 3), np.uint8), np.zeros((1, 90, 160, 1), np.uint8)
      >>> masks[:, 40:50, 60:80] = 1
      >>> ops.mask_crop(frames, masks, min_size=(20, 30)).frames.shape
      (1, 20, 40, 3)
      >>> ops.mask_crop(frames, masks, size=(32, 32)).frames.shape
      (1, 32, 32, 3)
    """
    frames, masks, axes = frames_and_masks(frames, masks, axes)
    rule = checked_rule(padding_ratio, min_size, critical_ratio)
    if size is not None:
        return crop_resampled(frames, masks, axes, rule, positive_pair(size, "size"))
    if isinstance(masks, Tracer):
        raise TypeError(
            "mask_crop without a size cuts a box that depends on the masks' values, which are not "
            "known under jit; give size=(height, width)"
        )
    x1, y1, x2, y2 = (int(edge) for edge in jax.device_get(_box(masks, axes, rule)))

    def cut(x: jax.Array) -> jax.Array:
        x = jax.lax.slice_in_dim(x, y1, y2, axis=axes[0])
        return jax.lax.slice_in_dim(x, x1, x2, axis=axes[1])

    return MaskCrop(cut(frames), cut(masks), (x1, y1, x2, y2))


def mask_paste(
    frames: Shaped[ImageLike, "*frames"],
    patches: Shaped[ImageLike, "..."],
    masks: Shaped[ImageLike, "..."],
    box: Box,
    *,
    feather_size: int = 7,
    feather_sigma: float = 1.5,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*frames"]:
    """Puts processed cuts back into their frames where the masks are set, with soft edges.

    The patches are resampled to the box (bilinear, half-pixel centres) and blended by the mask
    after a Gaussian blur. Pixels that the blurred mask does not reach, and all outside the box,
    stay as they are, bit for bit.

    Args:
      frames: the uncut images.
      patches: the processed cuts, of any one height and width, in the frames' dtype and range.
      masks: the uncut masks: one channel, otherwise the frames' shape; set where above 0.5.
      box: (x1, y1, x2, y2) as `mask_crop` returned it, traced or not. Within the frame and not
        empty, which only a box that is not traced is checked for.
      feather_size: window of the blur in pixels, odd.
      feather_sigma: standard deviation of the blur in pixels.
      axes: the height and the width axis.

    Raises:
      TypeError: unsuitable dtypes, frames and patches of two, or a box that is not 4 integers.
      ValueError: shapes that do not belong together, an even window, or a box outside the frame.

    Example:
      >>> frames, masks = np.zeros((1, 20, 20, 1)), np.ones((1, 20, 20, 1))
      >>> pasted = ops.mask_paste(frames, np.ones((1, 4, 4, 1)), masks, (5, 5, 15, 15))
      >>> round(float(pasted.sum()))
      100
    """
    frames, masks, axes = frames_and_masks(frames, masks, axes)
    patches = image_array(patches, "patches")
    if patches.dtype != frames.dtype:
        raise TypeError(f"patches are {patches.dtype} but frames {frames.dtype}; convert one")
    expected = [n for k, n in enumerate(frames.shape) if k not in axes]
    if [n for k, n in enumerate(patches.shape) if k not in axes] != expected:
        raise ValueError(
            f"patches of shape {patches.shape} do not belong to frames of shape {frames.shape}: "
            "only height and width may differ"
        )
    box = _checked_box(box, frames.shape[axes[0]], frames.shape[axes[1]])
    if not is_integer(feather_size) or feather_size < 1 or feather_size % 2 == 0:
        raise ValueError(f"feather_size must be an odd integer from 1, got {feather_size!r}")
    feather_sigma = number(feather_sigma, "feather_sigma", above=0)
    alpha = feather(masks, kernel_size=feather_size, sigma=feather_sigma, axes=axes)
    return _paste(frames, patches, alpha, box, axes)


def _checked_box(box: Box | None, height: int, width: int) -> jax.Array:
    corners = None if box is None else asarray(box)
    if corners is None or corners.shape != (4,) or not jnp.issubdtype(corners.dtype, jnp.integer):
        raise TypeError(f"box must be 4 integers (x1, y1, x2, y2), got {box!r}")
    if not isinstance(corners, Tracer):
        x1, y1, x2, y2 = np.asarray(corners).tolist()
        if not (0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height):
            raise ValueError(
                f"box=({x1}, {y1}, {x2}, {y2}) is empty or leaves the frame of {height}x{width}; "
                "clip it first"
            )
    return integers(corners, "box")


def feather(
    masks: Shaped[ImageLike, "*shape"],
    *,
    kernel_size: int = 7,
    sigma: float = 1.5,
    axes: Sequence[int] = (-3, -2),
) -> Float[Array, "*shape"]:
    """Masks cut at 0.5, then blurred on a scale of 0…255 with reflected borders: float32, 0…1.

    Example:
      >>> print(ops.feather(np.ones((1, 4, 4, 1), bool))[0, 0, :, 0].round(3))
      [1. 1. 1. 1.]
    """
    masks, axes = masks_and_axes(masks, axes)
    return _feather(masks, kernel_size, sigma, axes)


def checked_rule(
    padding_ratio: float, min_size: int | Sequence[int], critical_ratio: float
) -> Rule:
    """The options of `mask_box`, checked."""
    padding_ratio = number(padding_ratio, "padding_ratio", least=0)
    critical_ratio = number(critical_ratio, "critical_ratio", least=1)
    return padding_ratio, positive_pair(min_size, "min_size"), critical_ratio


@jit("axes", "rule")
def _box(masks: jax.Array, axes: tuple[int, int], rule: Rule) -> jax.Array:
    return box_around(*_touched(masks, axes), *rule)


def _touched(masks: jax.Array, axes: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """The rows and the columns that any mask is set in."""
    # Frames first, then rows and columns: the greatest of bytes along an outer axis vectorises in
    # XLA's CPU loops, `any` over several axes at once does not.
    height, width = (masks.shape[axis] for axis in axes)
    planes = jnp.moveaxis(masks, axes, (-2, -1)).reshape(
        masks.size // (height * width), height, width
    )
    # Not made of all frames for each of both results, which are of the same hits.
    hit = stored((planes > MASK_THRESHOLD).astype(jnp.uint8).max(0, initial=0))
    return hit.max(1) > 0, hit.max(0) > 0


@jit("axes", "rule", "size")
def crop_resampled(
    frames: jax.Array, masks: jax.Array, axes: tuple[int, int], rule: Rule, size: tuple[int, int]
) -> MaskCrop:
    """`mask_crop` to a fixed size, as one program."""
    rows, columns = _touched(masks, axes)
    box = box_around(rows, columns, *rule)
    cut = crop_box(frames, box, size, axes)

    def cut_masks(masks: jax.Array) -> jax.Array:
        return crop_masks(masks, box, size, axes)

    def no_masks(masks: jax.Array) -> jax.Array:
        shape = list(masks.shape)
        for axis, extent in zip(axes, size, strict=True):
            shape[axis] = extent
        return zeros_like(masks, shape=shape)

    # Not only for the empty clip: XLA's CPU fusion stops at a branch, and a blur that follows would
    # otherwise cut the masks anew for every tap.
    return MaskCrop(cut, cond(rows.any(), cut_masks, no_masks, masks), box)


@jit("kernel_size", "sigma", "axes")
def _feather(masks: jax.Array, kernel_size: int, sigma: float, axes: tuple[int, int]) -> jax.Array:
    solid = jnp.where(masks > MASK_THRESHOLD, jnp.float32(255), jnp.float32(0))
    soft = gaussian_blur(solid, sigma=sigma, kernel_size=kernel_size, border="reflect", axes=axes)
    return soft / 255


@jit("axes")
def _paste(
    frames: jax.Array, patches: jax.Array, alpha: jax.Array, box: jax.Array, axes: tuple[int, int]
) -> jax.Array:
    size = (frames.shape[axes[0]], frames.shape[axes[1]])
    x1, y1, x2, y2 = box
    patches = patches.astype(compute_dtype(frames.dtype))
    x = resample_window(patches, box, size, axes, inverse=True)
    mixed = frames + alpha * (x - frames)
    if frames.dtype == jnp.uint8:
        mixed = jnp.clip(jnp.round(mixed), 0, 255)

    def along(axis: int, low: jax.Array, high: jax.Array) -> jax.Array:
        shape = [1] * frames.ndim
        shape[axis] = frames.shape[axis]
        position = np.arange(frames.shape[axis]).reshape(shape)
        return (low <= position) & (high > position)

    inside = along(axes[0], y1, y2) & along(axes[1], x1, x2)
    return jnp.where(inside & (alpha > 0), mixed.astype(frames.dtype), frames)

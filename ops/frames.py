"""Video frames before and after a network: cut, shrink, mask, normalise, and back again.

The pipeline of video in-painting. Frames and masks share their leading axes and are channels last
unless `axes` says otherwise; frames are 0…255 (uint8 or floating point), masks have one channel and
are set above 0.5. Each step is a function; `preprocess` and `postprocess` are all of them as one
compiled program each, whatever the masks hold.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import (
    MASK_THRESHOLD,
    ImageLike,
    compute_dtype,
    frames_and_masks,
    image_and_axes,
    image_array,
    is_integer,
    positive_pair,
)
from jaxsr.ops._typed_jax import asarray, jit, map_in_batches
from jaxsr.ops._types import Array, Float, Int, Shaped
from jaxsr.ops.mask_crop import Box, Rule, checked_rule, crop_resampled, feather, mask_paste
from jaxsr.ops.resize import resize


def normalise(
    image: Shaped[ImageLike, "*shape"], *, dtype: jax.typing.DTypeLike = jnp.float32
) -> Float[Array, "*shape"]:
    """0…255 to [-1, 1], as `dtype`; the arithmetic runs in float32 or wider.

    Raises:
      TypeError: the image is not uint8 or floating point, or `dtype` is not floating point.

    Example:
      >>> print(ops.normalise(np.array([0, 255], np.uint8)).round(3))
      [-1.  1.]
    """
    image = image_array(image)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"normalise needs a floating-point dtype, got {jnp.dtype(dtype)}")
    return _normalise(image, jnp.dtype(dtype))


def denormalise(
    image: Shaped[ImageLike, "*shape"], *, dtype: jax.typing.DTypeLike = jnp.uint8
) -> Shaped[Array, "*shape"]:
    """[-1, 1] to 0…255, clamped, rounded half to even for uint8.

    Raises:
      TypeError: the image is not floating point, or `dtype` neither uint8 nor floating point.

    Example:
      >>> ops.denormalise(np.array([-1.0, 1.0])).tolist()
      [0, 255]
    """
    image = image_array(image)
    if image.dtype == jnp.uint8:
        raise TypeError("denormalise needs an image in [-1, 1], got uint8; it is 0…255 already")
    if jnp.dtype(dtype) != jnp.uint8 and not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"denormalise gives uint8 or floating point, not {jnp.dtype(dtype)}")
    return _denormalise(image, jnp.dtype(dtype))


def frame_size(
    height: int, width: int, *, image_size: int = 640, max_length: int = 1280, multiple: int = 16
) -> tuple[int, int]:
    """(height, width) to which the pipeline shrinks a frame; it never enlarges one.

    Args:
      height: rows of the frame.
      width: columns of the frame.
      image_size: a longer short side shrinks to this, the other side in proportion.
      max_length: a long side still longer then shrinks to this.
      multiple: both extents are floored to multiples of it.

    Raises:
      ValueError: an extent or option below 1, or a side that floors to 0.

    Example:
      >>> ops.frame_size(1080, 1920)
      (640, 1136)
    """
    values = {
        "height": height, "width": width, "image_size": image_size,
        "max_length": max_length, "multiple": multiple,
    }  # fmt: skip
    for name, value in values.items():
        if not is_integer(value) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    short, long = sorted((height, width))
    if short > image_size:
        short, long = image_size, int(long * (image_size / short))
    if long > max_length:
        short, long = int(short * (max_length / long)), max_length
    size = (long, short) if height > width else (short, long)
    floored = size[0] // multiple * multiple, size[1] // multiple * multiple
    if 0 in floored:
        raise ValueError(
            f"a {height}x{width} frame becomes {size[0]}x{size[1]}, less than one multiple of "
            f"{multiple}; lower the multiple or raise image_size={image_size}"
        )
    return floored


def resize_frames(
    frames: Shaped[ImageLike, "..."],
    masks: Shaped[ImageLike, "..."] | None = None,
    *,
    image_size: int = 640,
    max_length: int = 1280,
    multiple: int = 16,
    chunk: int | None = 32,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."] | tuple[Shaped[Array, "..."], Shaped[Array, "..."]]:
    """Shrinks frames to `frame_size`, bilinear without antialias; masks are cut at 0.5 again.

    Args:
      frames: images of any range.
      masks: one channel, otherwise the frames' shape. Come back as 0 and 1 in their own dtype.
      image_size, max_length, multiple: see `frame_size`.
      chunk: images resized at a time, which bounds the memory of intermediates. `None` resizes all
        at once; use it where the leading axes are sharded, since chunks would move between devices.
      axes: the height and the width axis.

    Returns:
      The frames, or (frames, masks) where masks were given.

    Raises:
      TypeError: unsuitable dtypes.
      ValueError: masks of another size, empty axes, an option below 1, or a side that floors to 0.

    Example:
      >>> frames, masks = np.zeros((2, 90, 160, 3), np.uint8), np.zeros((2, 90, 160, 1), np.uint8)
      >>> small, small_masks = ops.resize_frames(frames, masks, image_size=48)
      >>> small.shape, small_masks.shape
      ((2, 48, 80, 3), (2, 48, 80, 1))
    """
    if chunk is not None and (not is_integer(chunk) or chunk < 1):
        raise ValueError(f"chunk must be an integer of at least 1 or None, got {chunk!r}")
    if masks is None:
        frames, axes = image_and_axes(frames, axes, "frames")
    else:
        frames, masks, axes = frames_and_masks(frames, masks, axes)
    height, width = (frames.shape[axis] for axis in axes)
    size = frame_size(
        height, width, image_size=image_size, max_length=max_length, multiple=multiple
    )
    small = _resize_in_chunks(frames, size, axes, chunk)
    if masks is None:
        return small
    solid = asarray(masks > MASK_THRESHOLD, jnp.float32)
    small_masks = _resize_in_chunks(solid, size, axes, chunk) > MASK_THRESHOLD
    return small, small_masks.astype(masks.dtype)


class Prepared(NamedTuple):
    """Result of `preprocess`."""

    frames: Float[Array, "..."]
    """Cut, resampled and in [-1, 1]."""
    masks: Float[Array, "..."]
    """The same cut: float32, 0 and 1."""
    soft_masks: Float[Array, "..."]
    """The masks after the Gaussian blur: float32, 0…1."""
    box: Int[Array, "4"]
    """(x1, y1, x2, y2), end-exclusive, int32: `postprocess` pastes the results there."""


def preprocess(
    frames: Shaped[ImageLike, "..."],
    masks: Shaped[ImageLike, "..."],
    *,
    size: int | Sequence[int] | None = None,
    padding_ratio: float = 0.5,
    min_size: int | Sequence[int] = (512, 512),
    critical_ratio: float = 2.0,
    dtype: jax.typing.DTypeLike = jnp.float32,
    axes: Sequence[int] = (-3, -2),
) -> Prepared:
    """Mask crop, resize, threshold and blur of the masks, normalisation: one compiled program.

    Args:
      frames: 0…255.
      masks: one channel, otherwise the frames' shape; set where above 0.5.
      size: (height, width) of the result. Default: `frame_size` of the uncut frame, so that one
        program serves a whole video; a cut of another aspect is stretched, and `postprocess`
        undoes it. Outside jit, `mask_crop` and `resize_frames` keep the cut's own aspect.
      padding_ratio, min_size, critical_ratio, axes: see `mask_box`.
      dtype: of the normalised frames.

    Raises:
      TypeError: unsuitable dtypes.
      ValueError: an argument that `mask_crop` or `frame_size` refuses.

    Example:
      >>> frames, masks = np.zeros((2, 90, 160, 3), np.uint8), np.zeros((2, 90, 160, 1), np.uint8)
      >>> masks[:, 40:50, 60:80] = 1
      >>> ready = ops.preprocess(frames, masks, size=(32, 48), min_size=(20, 30))
      >>> ready.frames.shape, ready.box.tolist()
      ((2, 32, 48, 3), [50, 35, 90, 55])
    """
    frames, masks, axes = frames_and_masks(frames, masks, axes)
    if size is None:
        size = frame_size(frames.shape[axes[0]], frames.shape[axes[1]])
    rule = checked_rule(padding_ratio, min_size, critical_ratio)
    size = positive_pair(size, "size")
    return _preprocess(frames, masks, size, rule, jnp.dtype(dtype), axes)


def postprocess(
    results: Float[ImageLike, "..."],
    frames: Shaped[ImageLike, "*frames"],
    masks: Shaped[ImageLike, "..."],
    box: Box,
    *,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*frames"]:
    """Denormalises results and pastes them into the frames they were cut from: one program.

    Args:
      results: the network's output for `preprocess(...).frames`, in [-1, 1].
      frames: the uncut frames, 0…255.
      masks: the uncut masks.
      box: `preprocess(...).box`.
      axes: the height and the width axis.

    Returns:
      Frames in the dtype of `frames`; unmasked pixels are untouched.

    Raises:
      TypeError: unsuitable dtypes.
      ValueError: shapes that do not belong together.

    Example:
      >>> frames, masks = np.zeros((2, 90, 160, 3), np.uint8), np.zeros((2, 90, 160, 1), np.uint8)
      >>> ready = ops.preprocess(frames, masks, size=(32, 48))
      >>> ops.postprocess(ready.frames, frames, masks, ready.box).shape
      (2, 90, 160, 3)
    """
    frames, masks, axes = frames_and_masks(frames, masks, axes)
    patches = denormalise(results, dtype=frames.dtype)
    return _postprocess(frames, patches, masks, box, axes=axes)


@jit("dtype")
def _normalise(image: jax.Array, dtype: np.dtype) -> jax.Array:
    x = image.astype(jnp.promote_types(compute_dtype(image.dtype), dtype))
    return (x / 255 * 2 - 1).astype(dtype)


@jit("dtype")
def _denormalise(image: jax.Array, dtype: np.dtype) -> jax.Array:
    x = jnp.clip((image.astype(compute_dtype(image.dtype)) + 1) / 2 * 255, 0, 255)
    return (jnp.round(x) if dtype == jnp.uint8 else x).astype(dtype)


@jit("size", "axes", "chunk")
def _resize_in_chunks(
    x: jax.Array, size: tuple[int, int], axes: tuple[int, int], chunk: int | None
) -> jax.Array:
    shrink = partial(resize, size=size, method="bilinear", antialias=False)
    lead = min(axes)
    images = math.prod(x.shape[:lead])
    if chunk is None or images <= chunk:
        return shrink(x, axes=axes)
    shrink = partial(shrink, axes=[axis - lead for axis in axes])
    small = map_in_batches(shrink, x.reshape(images, *x.shape[lead:]), batch_size=chunk)
    return small.reshape(*x.shape[:lead], *small.shape[1:])


@jit("size", "rule", "dtype", "axes")
def _preprocess(
    frames: jax.Array,
    masks: jax.Array,
    size: tuple[int, int],
    rule: Rule,
    dtype: np.dtype,
    axes: tuple[int, int],
) -> Prepared:
    frames = frames.astype(compute_dtype(frames.dtype))
    cut = crop_resampled(frames, masks, axes, rule, size)
    solid = cut.masks.astype(jnp.float32)
    frames = normalise(cut.frames, dtype=dtype)
    return Prepared(frames, solid, feather(solid, axes=axes), asarray(cut.box))


_postprocess = jit("axes")(mask_paste)

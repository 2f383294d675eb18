"""What the kernels for video frames ask of masks, alone and beside their frames."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, image_array, normal_axes

THRESHOLD = 0.5
"""A mask is set where it lies above this."""


def mask_array(masks: ImageLike) -> jax.Array:
    """The masks as a JAX array: boolean, uint8 or floating point, with no empty axis."""
    if getattr(masks, "dtype", None) != np.dtype(bool):
        return image_array(masks, "masks")
    masks = jnp.asarray(masks)
    image_array(masks.astype(jnp.uint8), "masks")
    return masks


def frames_and_masks(
    frames: ImageLike, masks: ImageLike, axes: Sequence[int]
) -> tuple[jax.Array, jax.Array, tuple[int, int]]:
    """Both as JAX arrays, and (height axis, width axis) counted from the front.

    Raises:
      TypeError: unsuitable dtypes.
      ValueError: masks without one channel, or otherwise of another shape than the frames.
    """
    frames, masks = image_array(frames, "frames"), mask_array(masks)
    axes = normal_axes(axes, frames.ndim)
    differing = [
        k
        for k, pair in enumerate(zip(frames.shape, masks.shape, strict=False))
        if len(set(pair)) > 1
    ]
    one_channel = len(differing) <= 1 and all(masks.shape[k] == 1 for k in differing)
    if masks.ndim != frames.ndim or not one_channel or set(differing) & set(axes):
        raise ValueError(
            f"masks of shape {masks.shape} do not fit frames of shape {frames.shape}: they need "
            "one channel and otherwise the same shape"
        )
    return frames, masks, axes

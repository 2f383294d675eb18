"""Batches changed at random, by key: images, and the masks, boxes and points that belong to them.

A policy is a tuple of steps, each a frozen dataclass; one policy and shape is one program. Every
image has a key of its own, made of the batch's key and its place in the batch: results do not
depend on the mesh, and shards do not communicate.

Batches are NHWC, or NCHW with `axes=(-2, -1)`. Boxes are (x1, y1, x2, y2) and points (x, y) in
pixels, with the image's upper left corner at (0, 0): the middle of the first pixel is (0.5, 0.5).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import jax

from jaxsr.ops._arguments import ImageLike
from jaxsr.ops._augment.batch import Augmented, Layout, Step, folded
from jaxsr.ops._images import parameter, picture, pixels
from jaxsr.ops._random import check_key
from jaxsr.ops._typed_jax import arange, jit
from jaxsr.ops._types import Shaped


def augment(
    key: jax.Array,
    images: Shaped[ImageLike, "..."],
    policy: Sequence[Step] | Step,
    *,
    masks: Shaped[ImageLike, "..."] | None = None,
    boxes: ImageLike | None = None,
    points: ImageLike | None = None,
    labels: ImageLike | None = None,
    axes: Sequence[int] = (-3, -2),
) -> Augmented:
    """Changes a batch at random, and all that belongs to its images alike.

    Args:
      key: of `jax.random`; the same key gives the same result, on any mesh.
      images: NHWC or NCHW; uint8, uint16 or floating point.
      policy: steps, in order, or one step. Static.
      masks: images of labels or opacity, of the same batch, height and width; moved by the
        nearest pixel.
      boxes: (N, K, 4): (x1, y1, x2, y2).
      points: (N, K, 2): (x, y).
      labels: (N, classes): the share of each class, as `jax.nn.one_hot` has it.
      axes: the height and the width axis: (-3, -2) or (-2, -1).

    Returns:
      The changed batch.

    Raises:
      TypeError: an unsuitable dtype, or a key that is not a JAX random key.
      ValueError: shapes that do not belong together.

    Example:
      >>> import jax
      >>> images = np.zeros((4, 32, 40, 3), np.uint8)
      >>> policy = (ops.RandomResizedCrop(size=24), ops.RandomFlip(), ops.ColorJitter(contrast=0.4))
      >>> ops.augment(jax.random.key(0), images, policy).images.shape
      (4, 24, 24, 3)
    """
    check_key(key)
    steps: Any = tuple(cast(Any, policy)) if hasattr(policy, "__iter__") else (policy,)
    if others := [step for step in steps if not callable(step)]:
        raise TypeError(f"policy must be steps such as (ops.RandomFlip(),), got {others[0]!r}")
    for step in steps:
        try:
            hash(step)
        except TypeError as error:
            raise TypeError(
                f"policy must be hashable steps, got {step!r} ({error}); use tuples for lists"
            ) from None
    array, positions = picture(images, axes, "images")
    if array.ndim != 4 or positions not in ((-3, -2), (-2, -1)):
        raise ValueError(
            f"images must be NHWC, or NCHW with axes=(-2, -1); got {array.shape} and axes={axes}"
        )
    layout = Layout(positions, -1 if positions == (-3, -2) else -3)
    batch = Augmented(
        array, None, _places(boxes, "boxes", 4, array), _places(points, "points", 2, array)
    )
    if labels is not None:
        shares = parameter(labels, "labels")
        if shares.ndim != 2 or shares.shape[0] != array.shape[0]:
            raise ValueError(
                f"labels must be (N, classes) with N={array.shape[0]}, got {shares.shape}; "
                "jax.nn.one_hot makes them of numbers"
            )
        batch = batch._replace(labels=shares)
    if masks is not None:
        labels = pixels(masks, "masks")
        size = [array.shape[axis] for axis in (0, *positions)]
        if labels.ndim != 4 or [labels.shape[axis] for axis in (0, *positions)] != size:
            raise ValueError(f"masks of shape {labels.shape} do not fit images of {array.shape}")
        batch = batch._replace(masks=labels)
    return _augment(key, batch, steps, layout)


@jit("policy", "layout")
def _augment(
    key: jax.Array, batch: Augmented, policy: tuple[Step, ...], layout: Layout
) -> Augmented:
    keys = jax.vmap(partial(jax.random.fold_in, key))(arange(batch.images.shape[0]))
    for place, step in enumerate(policy):
        batch = step(folded(keys, place), batch, layout)
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

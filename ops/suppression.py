"""Non-maximum suppression of boxes, with a fixed number of results."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, is_integer
from jaxsr.ops._images import Parameter, parameter
from jaxsr.ops._typed_jax import arange, asarray, jit, zeros_like
from jaxsr.ops._types import Array, Int, Shaped


class Kept(NamedTuple):
    """Result of `nms`."""

    indices: Int[Array, "... most"]
    """Indices of the boxes kept, the best first; -1 in the places left over."""
    total: Int[Array, "..."]
    """How many boxes are kept."""


def nms(
    boxes: Shaped[ImageLike, "... n 4"],
    scores: Shaped[ImageLike, "... n"],
    iou_threshold: Parameter,
    *,
    most: int | None = None,
    score_threshold: Parameter = -jnp.inf,
    classes: Int[ImageLike, "... n"] | None = None,
) -> Kept:
    """Keeps the best boxes and drops those that overlap a better one, as torchvision's `nms`.

    A step for each result, each in the time of n boxes; nothing is gathered in matrices of n².

    Args:
      boxes: (x1, y1, x2, y2), with leading axes or none.
      scores: one for each box. The first of equal scores is better; NaN is dropped.
      iou_threshold: intersection over union above which the worse box is dropped; traced or not,
        one number or one for each of the leading axes.
      most: results, at most. Static. Default: all boxes.
      score_threshold: boxes need a higher score; see `iou_threshold`.
      classes: integers; boxes of different classes drop each other not (`batched_nms`).

    Raises:
      TypeError: thresholds that are not numbers, a number of results that is not an integer.
      ValueError: shapes that do not belong together, or fewer than one result.

    Example:
      >>> boxes = np.array([[0, 0, 10, 10], [1, 0, 10, 10], [20, 0, 30, 10]], np.float32)
      >>> kept = ops.nms(boxes, np.array([0.5, 0.9, 0.7], np.float32), 0.5)
      >>> kept.indices.tolist(), kept.total.item()
      ([1, 2, -1], 2)
    """
    corners, ranks = asarray(boxes), asarray(scores)
    if corners.ndim < 2 or corners.shape[-1] != 4 or corners.shape[:-1] != ranks.shape:
        raise ValueError(
            f"boxes must be (…, n, 4) and scores (…, n), got {corners.shape} and {ranks.shape}"
        )
    kinds = zeros_like(ranks, jnp.int32) if classes is None else asarray(classes)
    if kinds.shape != ranks.shape or not jnp.issubdtype(kinds.dtype, jnp.integer):
        raise ValueError(
            f"classes must be integers of the shape {ranks.shape}, got {kinds.dtype} of the shape "
            f"{kinds.shape}"
        )
    results = ranks.shape[-1] if most is None else most
    if not is_integer(results):
        raise TypeError(f"most must be an integer, got {most!r}")
    if results < 1 and ranks.shape[-1]:
        raise ValueError(f"most must be at least 1, got {most}")
    leading = ranks.shape[:-1]
    overlap = jnp.broadcast_to(parameter(iou_threshold, "iou_threshold"), leading)
    worst = jnp.broadcast_to(parameter(score_threshold, "score_threshold"), leading)
    return _nms(corners, ranks, kinds, overlap, worst, results)


@jit("most")
def _nms(
    boxes: jax.Array,
    scores: jax.Array,
    classes: jax.Array,
    iou_threshold: jax.Array,
    score_threshold: jax.Array,
    most: int,
) -> Kept:
    function = cast(Callable[..., jax.Array], partial(_of_one_picture, most=most))
    for _ in range(scores.ndim - 1):
        function = jax.vmap(function)
    indices = function(boxes, scores, classes, iou_threshold, score_threshold)
    return Kept(indices, (indices >= 0).sum(-1, dtype=jnp.int32))


def _of_one_picture(
    boxes: jax.Array,
    scores: jax.Array,
    classes: jax.Array,
    iou_threshold: jax.Array,
    score_threshold: jax.Array,
    most: int,
) -> jax.Array:
    count = scores.shape[0]
    none = zeros_like(arange(most)) - 1
    if not count:
        return none
    boxes = boxes.astype(jnp.promote_types(boxes.dtype, jnp.float32))  # areas beyond other dtypes
    x1, y1, x2, y2 = (boxes[:, k] for k in range(4))
    area = (x2 - x1) * (y2 - y1)

    def keep_best(alive: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        best = jnp.argmax(jnp.where(alive, scores, -jnp.inf))
        best = jnp.where(alive[best], best, jnp.argmax(alive))  # a score of -inf
        box, box_area = boxes[best], area[best]
        width = jnp.maximum(jnp.minimum(x2, box[2]) - jnp.maximum(x1, box[0]), 0)
        height = jnp.maximum(jnp.minimum(y2, box[3]) - jnp.maximum(y1, box[1]), 0)
        shared = width * height
        overlaps = shared / (area + box_area - shared) > iou_threshold
        dropped = (overlaps & (classes == classes[best])) | (arange(count) == best)
        index = jnp.where(alive.any(), best.astype(jnp.int32), -1)
        return alive & ~dropped, index

    alive = scores > score_threshold
    alive = jnp.where(score_threshold == -jnp.inf, ~jnp.isnan(scores), alive)
    steps = min(most, count)
    _, indices = jax.lax.scan(keep_best, alive, None, length=steps)
    return none.at[:steps].set(indices)

"""Shared parts of the steps of a policy: the batch, draws by key, and how places move.

Boxes are (x1, y1, x2, y2) and points (x, y) in pixels, with the image's upper left corner at
(0, 0): the middle of the first pixel is (0.5, 0.5).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import number, one_of
from jaxsr.ops._border import checked_border
from jaxsr.ops._sampler import METHODS
from jaxsr.ops._typed_jax import arange, asarray, ones_like, zeros_like
from jaxsr.ops._types import Array, Float, Shaped

Range = tuple[float, float]
Move = Callable[[jax.Array], jax.Array]
"""From (N, K, 2) points of the images to where they come to lie."""
_GAMMA_ATTEMPTS = 8  # each is accepted with a probability of at least 0.95
_TINY = 1e-30
_EDGE_POINTS = 16  # of each side of a box that is bent


class Augmented(NamedTuple):
    """Result of `augment`; parts that were not given are None."""

    images: Shaped[Array, "..."]
    masks: Shaped[Array, "..."] | None = None
    boxes: Float[Array, "..."] | None = None
    """Bounding boxes of the moved outlines, clipped to the image."""
    points: Float[Array, "..."] | None = None
    """Not clipped: a point may leave the image."""
    labels: Float[Array, "..."] | None = None
    """Shares of both images' classes after `Mixup` and `CutMix`."""


class Layout(NamedTuple):
    """Height and width axes, and the axis of channels, counted from the end."""

    axes: tuple[int, int]
    channel: int


@runtime_checkable
class Step(Protocol):
    """One step of a policy."""

    def __call__(self, keys: jax.Array, batch: Augmented, layout: Layout) -> Augmented:
        """The changed batch; `keys` has one key for each image."""
        ...


@dataclass(frozen=True, kw_only=True)
class CheckedStep:
    """Fields of a step, checked when it is made. They are static: lists are stored as tuples."""

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if isinstance(value, list | np.ndarray):
                object.__setattr__(self, name, tuple(cast(Sequence[Any], value)))
        self._check_fields()

    def _check_fields(self) -> None:
        """Raises TypeError or ValueError where a field is unsuitable."""


def size_of(batch: Augmented, layout: Layout) -> tuple[int, int]:
    """(height, width)."""
    height, width = (batch.images.shape[axis] for axis in layout.axes)
    return height, width


def moved(
    batch: Augmented,
    images: jax.Array,
    masks: jax.Array | None,
    move: Move,
    size: tuple[int, int],
    *,
    bends: bool = False,
) -> Augmented:
    """The batch with new images, and with its boxes and points moved.

    Args:
      batch: before the step.
      images, masks: after the step.
      move: where points come to lie.
      size: (height, width) of the new images.
      bends: whether straight lines do not stay straight.
    """
    boxes, points = batch.boxes, batch.points
    if points is not None:
        points = move(points)
    if boxes is not None:
        outline = _outline(boxes, _EDGE_POINTS if bends else 1)
        outline = move(outline.reshape(boxes.shape[0], -1, 2)).reshape(outline.shape)
        limit = asarray([size[1], size[0]], jnp.float32)
        low, high = (jnp.clip(edge, 0, limit) for edge in (outline.min(-2), outline.max(-2)))
        boxes = jnp.concatenate([low, high], -1)
    return batch._replace(images=images, masks=masks, boxes=boxes, points=points)


def _outline(boxes: jax.Array, count: int) -> jax.Array:
    """(N, K, 4 * count, 2): points around each box, its corners among them."""
    share = arange(count, dtype=boxes.dtype) / count
    one, zero = ones_like(share), zeros_like(share)
    across = jnp.concatenate([share, one, 1 - share, zero])
    down = jnp.concatenate([zero, share, one, 1 - share])
    x1, y1, x2, y2 = (boxes[..., k, None] for k in range(4))
    # Weighted sums: at the corners exact.
    return jnp.stack([x1 * (1 - across) + x2 * across, y1 * (1 - down) + y2 * down], -1)


def by_matrix(matrix: jax.Array, *, center: float = 0.0) -> Move:
    """The move of (N, 2, 3) or (N, 3, 3) matrices. Sums of products, also exact on TPUs.

    Args:
      matrix: applied to the points.
      center: the place that is (0, 0) to the matrix: 0.5 where it moves centres of pixels.
    """

    def move(points: jax.Array) -> jax.Array:
        x, y = points[..., :1] - center, points[..., 1:] - center
        column = matrix[..., None, :, :]
        places = column[..., 0] * x + column[..., 1] * y + column[..., 2]
        if matrix.shape[-2] == 3:
            places = places[..., :2] / places[..., 2:]
        return places + center

    return move


def after(outer: jax.Array, inner: jax.Array) -> jax.Array:
    """(N, 2, 3) of two moves, the inner one first."""
    linear = (
        outer[..., :, 0, None] * inner[..., None, 0, :]
        + outer[..., :, 1, None] * inner[..., None, 1, :]
    )
    return linear.at[..., 2].add(outer[..., 2])


def matrix_of(first: tuple[jax.Array, ...], second: tuple[jax.Array, ...]) -> jax.Array:
    """Matrices of two rows, from their entries."""
    return jnp.stack([jnp.stack(first, -1), jnp.stack(second, -1)], -2)


def uniform(keys: jax.Array, count: int, least: float = 0.0) -> jax.Array:
    """(N, count) numbers from `least` to 1, each image's of its own key."""

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.uniform(key, (count,), minval=least)

    return jax.vmap(draw)(keys)


def log_gamma(key: jax.Array, alpha: float, count: int) -> jax.Array:
    """(count,) logarithms of draws of the Gamma distribution (Marsaglia & Tsang, ACM TOMS 2000).

    The first accepted one of a fixed number of attempts is taken: `jax.random.gamma` repeats until
    a whole batch is done, which shards would have to tell each other.
    """
    # Below 1 by the draw for alpha + 1, times a power of a uniform number.
    mean = alpha + (alpha < 1) - 1 / 3
    normal_key, accept_key, power_key = jax.random.split(key, 3)
    normal = jax.random.normal(normal_key, (_GAMMA_ATTEMPTS, count))
    uniform = jax.random.uniform(accept_key, (_GAMMA_ATTEMPTS, count), minval=_TINY)
    cube = (1 + normal / math.sqrt(9 * mean)) ** 3
    log_cube = jnp.log(jnp.maximum(cube, _TINY))
    accepted = jnp.log(uniform) < normal**2 / 2 + mean * (1 - cube + log_cube)
    first = jnp.argmax(accepted & (cube > 0), 0)
    draw = math.log(mean) + jnp.take_along_axis(log_cube, first[None], 0)[0]
    if alpha >= 1:
        return draw
    return draw + jnp.log(jax.random.uniform(power_key, (count,), minval=_TINY)) / alpha


def folded(keys: jax.Array, place: jax.Array | int) -> jax.Array:
    """Keys of a step or of one of its parts."""

    def fold(key: jax.Array) -> jax.Array:
        return jax.random.fold_in(key, place)

    return jax.vmap(fold)(keys)


def expanded(values: jax.Array, images: jax.Array) -> jax.Array:
    """(N,) values with the axes of images."""
    return values.reshape(-1, *[1] * (images.ndim - 1))


def check_share(value: float, name: str) -> None:
    """A probability, or a share of a whole."""
    if not 0 <= number(value, name) <= 1:
        raise ValueError(f"{name} must be 0 to 1, got {value!r}")


def check_range(value: Range, name: str, *, least: float | None = None) -> None:
    """(least, greatest), both above 0, or from `least` on."""
    limit = {"above": 0.0} if least is None else {"least": least}
    low, high = (number(end, name, **limit) for end in two(value, name, "(least, greatest)"))
    if low > high:
        raise ValueError(f"{name} must be (least, greatest), got {value!r}")


def two(value: Any, name: str, meaning: str) -> tuple[Any, Any]:
    """`value` if it is a pair."""
    if not isinstance(value, tuple) or len(pair := cast(tuple[Any, ...], value)) != 2:
        raise ValueError(f"{name} must be {meaning}, got {value!r}")
    return pair[0], pair[1]


def check_reading(method: str, fill: float, border: str = "constant") -> None:
    """Options of warps."""
    one_of(method, tuple(METHODS), "method")
    number(fill, "fill")
    checked_border(border)

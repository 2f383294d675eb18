"""Losses of classes by their margins, with torch's slope on the margin itself: none.

torch's decompositions clamp there, whose gradient includes the bound.
"""

import jax
import jax.numpy as jnp

from jaxsr.interop._core.dtypes import widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop.lowerings.losses import reduced


def _above_zero(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, 0)


@lowers(aten.multi_margin_loss.default)
def multi_margin_loss(
    x: jax.Array,
    target: jax.Array,
    p: float = 1,
    margin: float = 1,
    weight: jax.Array | None = None,
    reduction: int = 1,
) -> jax.Array:
    scores, labels = jnp.atleast_2d(widened(x)), jnp.atleast_1d(target)[:, None]
    beyond = _above_zero(margin - jnp.take_along_axis(scores, labels, 1) + scores)
    losses = beyond if p == 1 else beyond * beyond
    if weight is not None:
        losses = losses * weight[labels]
    others = jnp.arange(scores.shape[1]) != labels
    losses = reduced(jnp.where(others, losses, 0).mean(1), reduction)
    return losses if reduction or target.ndim else losses[0]


@lowers(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss(
    x: jax.Array, target: jax.Array, reduction: int
) -> tuple[jax.Array, jax.Array]:
    scores, labels = jnp.atleast_2d(widened(x)), jnp.atleast_2d(target)
    classes = scores.shape[1]
    # Labels end at the first -1.
    valid = jnp.cumsum(labels == -1, 1) == 0
    chosen = jnp.take_along_axis(scores, jnp.where(valid, labels, 0), 1)
    is_target = ((jnp.arange(classes) == labels[..., None]) & valid[..., None]).any(1)
    beyond = _above_zero(1 - chosen[..., None] + scores[:, None, :]) / classes
    counts = valid[..., None] & ~is_target[:, None, :]
    losses = reduced(jnp.where(counts, beyond, 0).sum((1, 2)), reduction)
    losses = losses if reduction or target.ndim > 1 else losses[0]
    return losses, is_target.astype(x.dtype).reshape(target.shape)

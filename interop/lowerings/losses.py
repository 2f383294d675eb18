"""Losses of one element at a time, with slopes of any order where torch's formula has kinks.

`smooth_l1_loss` is the square of a difference near zero, where torch squares its magnitude.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxsr.interop._core.accumulation import mean, total
from jaxsr.interop._core.dtypes import widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.lowerings.elementwise import absolute, with_partials


def reduced(losses: jax.Array, reduction: int) -> jax.Array:
    """As torch numbers reductions: none, mean, sum."""
    return (lambda x: x, mean, total)[reduction](losses)


_bce = with_partials(
    lambda p, y: -(y * jnp.maximum(jnp.log(p), -100) + (1 - y) * jnp.maximum(jnp.log1p(-p), -100)),
    # torch's backward, with its own guard against 0 and 1.
    lambda p, y, _: (p - y) / jnp.maximum(p * (1 - p), 1e-12),
    lambda p, y, _: jnp.log1p(-p) - jnp.log(p),
)


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    p: jax.Array, target: jax.Array, weight: jax.Array | None = None, reduction: int = 1
) -> jax.Array:
    if weight is not None and jnp.promote_types(p.dtype, weight.dtype) != p.dtype:
        raise UnsupportedTorchError(
            f"binary_cross_entropy of {p.dtype} with weights of {weight.dtype}, whose result's "
            "dtype differs between torch's devices; cast the weights to the input's dtype"
        )
    losses = _bce(widened(p), target.astype(widened(p).dtype))
    losses = losses * jnp.where((p < 0) | (p > 1), jnp.nan, 1)  # torch raises; so for the slope
    return reduced(losses if weight is None else losses * weight, reduction).astype(p.dtype)


def _within(difference: jax.Array, bound: float) -> tuple[jax.Array, jax.Array]:
    """Where a difference is less than a bound, and half its square there.

    At the bound itself, where parabola and line meet, torch's second derivative is the line's.
    """
    within = absolute(difference) < bound
    return within, 0.5 * jnp.square(jnp.where(within, difference, 0))


@lowers(aten.smooth_l1_loss.default)
def smooth_l1_loss(
    x: jax.Array, target: jax.Array, reduction: int = 1, beta: float = 1.0
) -> jax.Array:
    difference = widened(x) - widened(target)
    within, parabola = _within(difference, beta)
    losses = jnp.where(within, parabola / (beta or 1), absolute(difference) - 0.5 * beta)
    return reduced(losses, reduction).astype(jnp.result_type(x, target))


@lowers(aten.huber_loss.default)
def huber_loss(
    x: jax.Array, target: jax.Array, reduction: int = 1, delta: float = 1.0
) -> jax.Array:
    difference = widened(x) - widened(target)
    within, parabola = _within(difference, delta)
    losses = jnp.where(within, parabola, delta * (absolute(difference) - 0.5 * delta))
    return reduced(losses, reduction).astype(jnp.result_type(x, target))


_soft_margin = with_partials(lambda z: jnp.log1p(jnp.exp(-z)), lambda z, _: -jax.nn.sigmoid(-z))


@lowers(aten.soft_margin_loss.default)
def soft_margin_loss(x: jax.Array, target: jax.Array, reduction: int = 1) -> jax.Array:
    """The slopes of torch's formula overflow, or cancel."""
    losses = _soft_margin(widened(x) * lax.stop_gradient(target))
    return reduced(losses, reduction).astype(x.dtype)

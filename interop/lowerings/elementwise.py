"""Elementwise functions and reductions with torch's gradient at kinks, ties and zeros.

`jnp.clip` gives half a gradient at its bounds, a norm gives NaN at zero, a largest element shares
its gradient among equals. torch gives one, zero, and the element whose index it returns; images
are full of exact 0 and 1, so this is not a corner case.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core.dispatch import lowers
from jaxsr.interop._core.dtypes import is_nan
from jaxsr.interop._core.tensor import straight_through
from jaxsr.interop.lowerings.extremes import extreme

aten = torch.ops.aten


# ---- limits


@lowers(aten.clamp.default)
def clamp(x: jax.Array, low: Any = None, high: Any = None) -> jax.Array:
    dtype = jnp.result_type(x, *(v for v in (low, high) if v is not None))
    out = x.astype(dtype)
    if low is not None:
        out = jnp.where(out < low, jnp.asarray(low, dtype), out)
    if high is not None:
        # torch: where both bounds cross, the upper one wins; NaN stays.
        out = jnp.where(out > high, jnp.asarray(high, dtype), out)
    return out


@lowers(aten.clamp.Tensor)
def clamp_tensor(x: jax.Array, low: Any = None, high: Any = None) -> jax.Array:
    if low is None:
        return clamp_max_tensor(x, high)
    if high is None:
        return clamp_min_tensor(x, low)
    inside = (x >= low) & (x <= high) | is_nan(x)
    # torch gives a bound its gradient only where it is the one that acts.
    below = jnp.where(low < high, low, lax.stop_gradient(low))
    out = jnp.where(inside, x, jnp.where((x > high) | (high < low), high, below))
    if not _real(out):
        return out
    return jnp.where(is_nan(low) | is_nan(high), jnp.nan, out)


def _real(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


@lowers(aten.clamp_min.default)
def clamp_min(x: jax.Array, low: Any) -> jax.Array:
    return clamp(x, low, None)


@lowers(aten.clamp_max.default)
def clamp_max(x: jax.Array, high: Any) -> jax.Array:
    return clamp(x, None, high)


@lowers(aten.clamp_min.Tensor)
def clamp_min_tensor(x: jax.Array, low: jax.Array) -> jax.Array:
    return jnp.where((x >= low) | is_nan(x), x, low)


@lowers(aten.clamp_max.Tensor)
def clamp_max_tensor(x: jax.Array, high: jax.Array) -> jax.Array:
    return jnp.where((x <= high) | is_nan(x), x, high)


@lowers(aten.hardtanh.default)
def hardtanh(x: jax.Array, low: Any = -1.0, high: Any = 1.0) -> jax.Array:
    # Its own backward excludes both bounds, unlike clamp's.
    inside = (x > low) & (x < high)
    return jnp.where(inside | is_nan(x), x, lax.stop_gradient(clamp(x, low, high)))


@lowers(aten.hardswish.default)
def hardswish(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    outside = jnp.where(wide >= 3, wide, jnp.zeros((), wide.dtype))
    inside = (wide > -3) & (wide < 3) | is_nan(wide)
    return jnp.where(inside, wide * (wide + 3) / 6, outside).astype(x.dtype)


@lowers(aten.relu6.default)
def relu6(x: jax.Array) -> jax.Array:
    return hardtanh(x, 0, 6)


# ---- rectifiers: slope at exactly zero


@lowers(aten.relu.default)
def relu(x: jax.Array) -> jax.Array:
    return jnp.where((x > 0) | is_nan(x), x, jnp.zeros((), x.dtype))


@lowers(aten.leaky_relu.default)
def leaky_relu(x: jax.Array, slope: Any = 0.01) -> jax.Array:
    return jnp.where(x > 0, x, x * slope)


@lowers(aten._prelu_kernel.default)
def prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, weight * x)


@lowers(aten.abs.default)
def absolute(x: jax.Array) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.abs(x)
    if jnp.iscomplexobj(x):
        zero = x == 0
        return jnp.where(zero, 0, jnp.abs(jnp.where(zero, 1, x)))
    # JAX's derivative of abs at 0 is 1; torch's is 0 (and so an exact L1 match rests).
    return straight_through(x * lax.stop_gradient(jnp.sign(x)), jnp.abs(x))


# ---- norms


@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    x: jax.Array, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> jax.Array:
    """A p-norm with torch's subgradients: zero at zero, shared among equal maxima."""
    if dtype is not None:
        from jaxsr.interop._core.dtypes import to_jax_dtype

        x = x.astype(to_jax_dtype(dtype))
    axes = tuple(range(x.ndim)) if not x.ndim or dim is None or dim == [] else tuple(dim)
    size = absolute(x)
    wide = size.astype(jnp.promote_types(size.dtype, jnp.float32))
    order = float(order)
    if order == float("inf"):
        out = extreme(size, jnp.max, axes, keepdim)
    elif order == float("-inf"):
        out = extreme(size, jnp.min, axes, keepdim)
    elif order == 0:
        out = jnp.sum((wide != 0).astype(wide.dtype), axes, keepdims=keepdim)
    elif order == 1:
        out = jnp.sum(wide, axes, keepdims=keepdim)
    elif order == 2 and not jnp.iscomplexobj(x):
        total = jnp.sum(jnp.square(x.astype(wide.dtype)), axes, keepdims=keepdim)
        zero = total == 0
        out = jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, total)))
    else:
        empty = wide == 0
        powers = jnp.where(
            empty, 0.0**order if order > 0 else jnp.inf, jnp.where(empty, 1, wide) ** order
        )
        total = jnp.sum(powers, axes, keepdims=keepdim)
        bad = (total == 0) | jnp.isinf(total)
        out = jnp.where(bad, total ** (1 / order), jnp.where(bad, 1, total) ** (1 / order))
        out = jnp.where(total == 0, lax.stop_gradient(out), out)
    return out.astype(size.dtype)


# ---- softmax whose rows may be masked altogether


@lowers(aten._safe_softmax.default)
def safe_softmax(x: jax.Array, dim: int, dtype: Any = None) -> jax.Array:
    if dtype is not None:
        from jaxsr.interop._core.dtypes import to_jax_dtype

        x = x.astype(to_jax_dtype(dtype))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    hidden = jnp.all(wide == -jnp.inf, dim, keepdims=True)
    out = jax.nn.softmax(jnp.where(hidden, 0, wide), axis=dim)
    return jnp.where(hidden, 0, out).astype(x.dtype)


# ---- extremes along an axis: the gradient goes to the element whose index is returned


def _extreme(x: jax.Array, dim: int, keepdim: bool, largest: bool) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    index = (jnp.argmax if largest else jnp.argmin)(x, dim, keepdims=True)
    values = jnp.take_along_axis(x, index, dim)
    if keepdim:
        return values, index
    return values.squeeze(dim), index.squeeze(dim)


@lowers(aten.max.dim)
def max_dim(x: jax.Array, dim: int, keepdim: bool = False) -> Any:
    return _extreme(x, dim, keepdim, True)


@lowers(aten.min.dim)
def min_dim(x: jax.Array, dim: int, keepdim: bool = False) -> Any:
    return _extreme(x, dim, keepdim, False)


@lowers(aten.angle.default)
def angle(x: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(x):
        return jnp.angle(x)
    out = jnp.where(x < 0, jnp.pi, 0.0)
    return jnp.where(is_nan(x), jnp.nan, out)


# ---- embedding


@lowers(aten.embedding.default)
def embedding(
    weight: jax.Array, index: jax.Array, padding: int = -1, by_frequency: bool = False, *_: Any
) -> jax.Array:
    rows = weight[index]
    if by_frequency:
        counts = jnp.zeros(weight.shape[0], weight.dtype).at[index.reshape(-1)].add(1)
        share = (1 / counts[index])[..., None]
        rows = rows * share + lax.stop_gradient(rows * (1 - share))
    if padding >= 0:
        # The padding row is read but never learns.
        rows = jnp.where((index == padding)[..., None], lax.stop_gradient(rows), rows)
    return rows


@lowers(aten.sgn.default)
def sgn(x: jax.Array) -> jax.Array:
    if not jnp.iscomplexobj(x):
        return jnp.sign(x)
    size = jnp.abs(x)
    return jnp.where(size == 0, 0, x / jnp.where(size == 0, 1, size))


@lowers(aten.logcumsumexp.default)
def logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    if x.ndim == 0:
        return x
    if jnp.iscomplexobj(x):
        raise NotImplementedError("logcumsumexp of complex numbers")
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return lax.cumlogsumexp(wide, axis=dim % x.ndim).astype(x.dtype)

"""Scaled dot-product attention, as one function: torch splits it into many operators."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from jaxsr.interop._core.dispatch import Trace
from jaxsr.interop._core.dtypes import wide_dtype
from jaxsr.interop._core.registry import handles, overrides
from jaxsr.interop._core.trace_scope import plain_torch

aten = torch.ops.aten

# B batch (any number of axes), H heads, L queries, S keys, D features


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_mask: jax.Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    drop: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """softmax(q kᵀ · scale + mask) v with the softmax in float32.

    Rows in which every key is masked give zeros, as in torch, not NaN.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    heads = query.shape[-3] if query.ndim > 2 else 1
    if enable_gqa and key.shape[-3] != value.shape[-3]:
        key, value = (jnp.repeat(t, heads // t.shape[-3], axis=-3) for t in (key, value))
    grouped = enable_gqa and key.shape[-3] != heads
    if grouped:
        # Queries of a group are rows of one product: no key or value is repeated in memory.
        query, attn_mask = _in_groups(query, attn_mask, key.shape[-3])
    wide = wide_dtype(query.dtype)
    if query.dtype == wide:
        scores = _product("...ld,...sd->...ls", query * scale, key, grouped)
    else:  # summed in float32 anyway: the scores are not rounded in between
        scores = _product("...ld,...sd->...ls", query, key, grouped, wide) * scale
    allowed = None
    if is_causal:
        allowed = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if attn_mask is not None and attn_mask.dtype == jnp.bool_:
        allowed = attn_mask if allowed is None else allowed & attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask
    if allowed is not None:
        scores = jnp.where(allowed, scores, -jnp.inf)
    # Subtracting a peak above -inf keeps a row of -inf from becoming NaN, forward and backward.
    peak = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    weights = jnp.exp(scores - jnp.maximum(peak, jnp.finfo(scores.dtype).min))
    total = weights.sum(-1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1, total)
    if drop is not None:
        weights = drop(weights)
    out = _product("...ls,...sd->...ld", weights.astype(value.dtype), value, grouped)
    return out.reshape(*out.shape[:-4], heads, *out.shape[-2:]) if grouped else out


def _in_groups(
    query: jax.Array, mask: jax.Array | None, groups: int
) -> tuple[jax.Array, jax.Array | None]:
    """Queries (…, H, L, D) and their mask with the heads as (groups, heads of each)."""
    heads = query.shape[-3]
    query = query.reshape(*query.shape[:-3], groups, heads // groups, *query.shape[-2:])
    if mask is None or mask.ndim < 3:
        return query, mask
    if mask.shape[-3] == heads:
        return query, mask.reshape(*mask.shape[:-3], groups, heads // groups, *mask.shape[-2:])
    return query, jnp.expand_dims(mask, -3)


def _product(spec: str, a: jax.Array, b: jax.Array, grouped: bool, dtype: Any = None) -> jax.Array:
    if not grouped:
        return jnp.einsum(spec, a, b, preferred_element_type=dtype)
    *front, each, rows, inner = a.shape
    rows_of_all = a.reshape(*front, each * rows, inner)
    product = jnp.einsum(spec, rows_of_all, b, preferred_element_type=dtype)
    return product.reshape(*product.shape[:-2], each, rows, product.shape[-1])


def _drop(rng: jax.Array, p: float, weights: jax.Array) -> jax.Array:
    keep = jax.random.bernoulli(rng, 1 - p, weights.shape)
    return jnp.where(keep, weights / (1 - p), 0)


@overrides(F.scaled_dot_product_attention)
def _sdpa(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    if torch.is_autocast_enabled("cpu"):
        return func(*args, **kwargs)
    return _run_attention(trace, func, *args, **kwargs)


def _run_attention(
    trace: Trace,
    func: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    tensors = [
        None if t is None else trace.as_jax_tensor(t) for t in (query, key, value, attn_mask)
    ]
    if attn_mask is not None and is_causal:
        raise ValueError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    with plain_torch():
        metas = [None if t is None else t.meta for t in tensors]
        meta = func(*metas, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    drop = functools.partial(_drop, trace.next_key(), dropout_p) if dropout_p > 0 else None
    arrays = [None if t is None else t.array() for t in tensors]
    q, k, v, mask = arrays
    assert q is not None and k is not None and v is not None
    out = attention(q, k, v, mask, is_causal, scale, enable_gqa, drop)
    needs = any(t is not None and t.needs_grad for t in tensors)
    return trace.wrap_result(func, out, meta, needs)


@handles(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """What torch's own attention chooses on a CPU when reached from inside torch."""
    names = ("query", "key", "value", "dropout_p", "is_causal")
    call = {**dict(zip(names, args, strict=False)), **kwargs}
    out = _run_attention(trace, F.scaled_dot_product_attention, **call)
    return out, trace.wrap(jnp.zeros(out.shape[:3], jnp.float32))

"""Scaled dot-product attention as a JAX function, which torch computes on CPUs.

Torch's kernel there (`interop/cpu_kernels`) goes through the keys block by block. It is faster than
XLA's products and sums, and its gradient needs no matrix of scores from memory.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad
from jax.typing import DTypeLike

from jaxsr.interop._core.dtypes import wide_dtype
from jaxsr.interop.cpu_kernels.attention import (
    attention_by_llvm,
    attention_by_torch,
    gradients_by_torch,
)
from jaxsr.interop.cpu_kernels.choice import attends_by_llvm, attends_by_torch
from jaxsr.interop.cpu_kernels.operands import alike, varying_alike
from jaxsr.interop.lowerings.precision import matmul_precision
from jaxsr.xla_calls.primitives import cpu_primitive, map_by_rows

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
    mask_needs_grad: bool = False,
) -> jax.Array:
    """softmax(q kᵀ · scale + mask) v with the softmax in float32.

    Rows in which every key is masked give zeros, as in torch, not NaN.

    Args:
      query: (B, H, L, D).
      key: (B, H, S, D); with `enable_gqa` of fewer heads, each for several of the query's.
      value: as the key, with as many features as the result.
      attn_mask: boolean, where a query sees a key; or numbers that are added to the scores.
      is_causal: whether query i sees keys up to i alone.
      scale: of the scores. Default: 1 / sqrt(D).
      enable_gqa: whether there may be fewer heads of keys and values.
      drop: dropout of the weights.
      mask_needs_grad: whether the mask is likely to be differentiated.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    heads = query.shape[-3] if query.ndim > 2 else 1
    if enable_gqa and key.shape[-3] != value.shape[-3]:
        key, value = (jnp.repeat(t, heads // t.shape[-3], axis=-3) for t in (key, value))
    grouped = enable_gqa and key.shape[-3] != heads
    if drop is None and not mask_needs_grad and _has_primitive(query, key, value, attn_mask):
        return _attention_of_heads(query, key, value, attn_mask, is_causal, scale)
    if grouped:
        # Queries of a group are rows of one product: no key or value is repeated in memory.
        query, attn_mask = _in_groups(query, attn_mask, key.shape[-3])
    precision = matmul_precision()
    out, _ = _attended(query, key, value, attn_mask, is_causal, scale, precision, grouped, drop)
    return out.reshape(*out.shape[:-4], heads, *out.shape[-2:]) if grouped else out


def _attended(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_mask: jax.Array | None,
    is_causal: bool,
    scale: float,
    precision: lax.Precision | None,
    grouped: bool,
    drop: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The result, and the logarithms of the sums of exponentials; 0 where all keys are masked."""
    wide = wide_dtype(query.dtype)
    product = functools.partial(_product, grouped=grouped, precision=precision)
    if query.dtype == wide:
        scores = product("...ld,...sd->...ls", query * scale, key)
    else:  # summed in float32 anyway: the scores are not rounded in between
        scores = product("...ld,...sd->...ls", query, key, dtype=wide) * scale
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
    peak = jnp.maximum(peak, jnp.finfo(scores.dtype).min)
    weights = jnp.exp(scores - peak)
    total = weights.sum(-1, keepdims=True)
    is_masked = total == 0
    total = jnp.where(is_masked, 1, total)
    weights = weights / total
    if drop is not None:
        weights = drop(weights)
    out = product("...ls,...sd->...ld", weights.astype(value.dtype), value)
    return out, jnp.where(is_masked, 0, peak + jnp.log(total))[..., 0]


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


def _product(
    spec: str,
    a: jax.Array,
    b: jax.Array,
    *,
    grouped: bool,
    precision: lax.Precision | None,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    einsum = functools.partial(jnp.einsum, precision=precision, preferred_element_type=dtype)
    if not grouped:
        return einsum(spec, a, b)
    *front, each, rows, inner = a.shape
    rows_of_all = a.reshape(*front, each * rows, inner)
    product = einsum(spec, rows_of_all, b)
    return product.reshape(*product.shape[:-2], each, rows, product.shape[-1])


# ---- as a primitive: B batch, T queries, S keys, K heads of keys, G heads of queries for each


def _has_primitive(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None
) -> bool:
    """Whether `attention_p` computes it: (B, heads, rows, D), one dtype, a mask that broadcasts."""
    if not query.ndim == key.ndim == value.ndim == 4 or 0 in (*query.shape, *key.shape):
        return False
    of_mask = (1,) if mask is None else mask.shape
    scores = (*query.shape[:3], key.shape[2])[4 - len(of_mask) :]
    return (
        key.shape == value.shape
        and (query.shape[0], query.shape[3]) == (key.shape[0], key.shape[3])
        and query.shape[1] % key.shape[1] == 0
        and len({query.dtype, key.dtype, value.dtype}) == 1
        and len(of_mask) <= 4
        and all(extent in (1, score) for extent, score in zip(of_mask, scores, strict=True))
    )


def _attention_of_heads(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    is_causal: bool,
    scale: float,
) -> jax.Array:
    batch, heads, queries, features = query.shape
    groups = key.shape[1]
    q = query.swapaxes(1, 2).reshape(batch, queries, groups, heads // groups, features)
    masks: list[jax.Array] = []
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        of_heads = (groups, heads // groups) if mask.shape[1] == heads else (1, 1)
        masks.append(mask.reshape(mask.shape[0], *of_heads, *mask.shape[2:]))
    q, k, v = alike(q, key.swapaxes(1, 2), value.swapaxes(1, 2))
    operands = varying_alike(q, k, v, *masks)
    options = {"is_causal": bool(is_causal), "scale": scale, "precision": matmul_precision()}
    out, _ = attention_p.bind(*operands, **options)
    return out.reshape(batch, queries, heads, features).swapaxes(1, 2)


def _plain(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *mask: jax.Array,
    is_causal: bool,
    scale: float,
    precision: lax.Precision | None,
) -> list[jax.Array]:
    """(B, T, K, G, D) and (B, T, K, G), of (B, T, K, G, D), (B, S, K, D) and a mask
    (B | 1, K | 1, G | 1, T | 1, S | 1)."""
    query, key, value = q.transpose(0, 2, 3, 1, 4), k.swapaxes(1, 2), v.swapaxes(1, 2)
    attn_mask = mask[0] if mask else None
    grouped = q.shape[3] > 1
    if not grouped:
        query = query.squeeze(2)
        attn_mask = None if attn_mask is None else attn_mask.squeeze(2)
    out, logsumexp = _attended(query, key, value, attn_mask, is_causal, scale, precision, grouped)
    if not grouped:
        out, logsumexp = out[:, :, None], logsumexp[:, :, None]
    return [out.transpose(0, 3, 1, 2, 4), logsumexp.transpose(0, 3, 1, 2)]


def _plain_change(
    dq: jax.Array, dk: jax.Array, dv: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array,
    out: jax.Array, logsumexp: jax.Array, *mask: jax.Array, **options: Any,
) -> jax.Array:  # fmt: skip
    def result(*operands: jax.Array) -> jax.Array:
        return _plain(*operands, *mask, **options)[0]

    return jax.jvp(result, (q, k, v), (dq, dk, dv))[1]


def _plain_gradients(
    g: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, out: jax.Array, logsumexp: jax.Array,
    *mask: jax.Array, **options: Any,
) -> list[jax.Array]:  # fmt: skip
    def result(*operands: jax.Array) -> jax.Array:
        return _plain(*operands, *mask, **options)[0]

    return list(jax.vjp(result, q, k, v)[1](g))


def _on_cpu(
    q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array, **options: Any
) -> list[jax.Array]:
    function = attention_by_torch if attends_by_torch(q, k) else _plain
    if attends_by_llvm(q, k, mask):
        function = attention_by_llvm
    return function(q, k, v, *mask, **options)


def _gradients_on_cpu(
    g: jax.Array, q: jax.Array, k: jax.Array, *others: jax.Array, **options: Any
) -> list[jax.Array]:
    function = gradients_by_torch if attends_by_torch(q, k) else _plain_gradients
    return function(g, q, k, *others, **options)


attention_p = cpu_primitive("jaxsr_attention", _plain, _on_cpu, several=True)
change_p = cpu_primitive("jaxsr_attention_change", _plain_change)
gradients_p = cpu_primitive(
    "jaxsr_attention_gradients", _plain_gradients, _gradients_on_cpu, several=True
)


map_by_rows(attention_p, shared=3)
map_by_rows(gradients_p, shared=6)


# ---- derivatives


def _jvp(
    function: Callable, primals: Sequence[jax.Array], tangents: Sequence[jax.Array | ad.Zero]
) -> tuple:
    """Tangents of the operands that have one."""
    places = [i for i, each in enumerate(tangents) if not isinstance(each, ad.Zero)]

    def of_places(*arrays: jax.Array) -> jax.Array | list[jax.Array]:
        operands = list(primals)
        for place, array in zip(places, arrays, strict=True):
            operands[place] = array
        return function(*operands)

    chosen, of_chosen = (tuple(each[i] for i in places) for each in (primals, tangents))
    return jax.jvp(of_places, chosen, of_chosen)


def _attention_jvp(
    primals: Sequence[jax.Array], tangents: Sequence[jax.Array | ad.Zero], **options: Any
) -> tuple:
    if not all(isinstance(each, ad.Zero) for each in tangents[3:]):
        return _jvp(functools.partial(_plain, **options), primals, tangents)
    out, logsumexp = attention_p.bind(*primals, **options)
    q, k, v, *mask = primals
    operands = varying_alike(
        *map(ad.instantiate_zeros, tangents[:3]), q, k, v, out, logsumexp, *mask
    )
    change = change_p.bind(*operands, **options)
    return [out, logsumexp], [change, ad.Zero(jax.typeof(logsumexp).to_tangent_aval())]


def _change_jvp(
    primals: Sequence[jax.Array], tangents: Sequence[jax.Array | ad.Zero], **options: Any
) -> tuple:
    _, tangent = _jvp(functools.partial(_plain_change, **options), primals, tangents)
    return change_p.bind(*primals, **options), tangent


def _gradients_jvp(
    primals: Sequence[jax.Array], tangents: Sequence[jax.Array | ad.Zero], **options: Any
) -> tuple:
    # Both depend on the result through queries, keys and values alone.
    _, tangent = _jvp(functools.partial(_plain_gradients, **options), primals, tangents)
    return gradients_p.bind(*primals, **options), tangent


def _change_transposed(ct: jax.Array, *operands: Any, **options: Any) -> list[jax.Array | None]:
    linear, arrays = operands[:3], operands[3:]
    gradients = gradients_p.bind(*varying_alike(ct, *arrays), **options)
    return [
        gradient if ad.is_undefined_primal(each) else None
        for gradient, each in zip(gradients, linear, strict=True)
    ] + [None] * len(arrays)


ad.primitive_jvps[attention_p] = _attention_jvp
ad.primitive_jvps[change_p] = _change_jvp
ad.primitive_jvps[gradients_p] = _gradients_jvp
ad.primitive_transposes[change_p] = _change_transposed

PLAIN = {attention_p: _plain, change_p: _plain_change, gradients_p: _plain_gradients}
"""These primitives by JAX's own operations."""

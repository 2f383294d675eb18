"""Scaled dot-product attention, as one function: torch splits it into many operators."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from jaxsr.interop._core.dtypes import as_autocast
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import handles, overrides
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop.lowerings.dot_product_attention import attention


def _drop(rng: jax.Array, p: float, weights: jax.Array) -> jax.Array:
    keep = jax.random.bernoulli(rng, 1 - p, weights.shape)
    return jnp.where(keep, weights / (1 - p), 0)


@overrides(F.scaled_dot_product_attention)
def _sdpa(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    args, kwargs = as_autocast((args, kwargs))
    return _run_attention(trace, func, *args, **kwargs)


def _run_attention(
    trace: Trace,
    func: Callable,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> JaxTensor:
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
    mask_needs_grad = tensors[3] is not None and tensors[3].needs_grad
    out = attention(q, k, v, mask, is_causal, scale, enable_gqa, drop, mask_needs_grad)
    needs = any(t is not None and t.needs_grad for t in tensors)
    return trace.wrap_result(func, out, meta, needs)


@handles(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> tuple[JaxTensor, JaxTensor]:
    """The attention that torch chooses on a CPU when reached from inside torch."""
    names = ("query", "key", "value", "dropout_p", "is_causal")
    call = {**dict(zip(names, args, strict=False)), **kwargs}
    out = _run_attention(trace, F.scaled_dot_product_attention, **call)
    return out, trace.wrap(jnp.zeros(out.shape[:3], jnp.float32))

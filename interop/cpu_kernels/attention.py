"""Attention without a matrix of scores in JAX programs for CPUs: torch's, with gradients, and one
that LLVM compiles.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core.dtypes import wide_dtype
from jaxsr.interop._core.operators import aten
from jaxsr.interop.cpu_kernels import panel_product
from jaxsr.interop.cpu_kernels.torch_calls import float_bits, float_of, torch_call, torch_kernel
from jaxsr.xla_calls.calls import Attributes

Tensors = Sequence[torch.Tensor]

# B batch, T queries, S keys, K heads of keys, G heads of queries for each of them, D features


@torch_kernel("jaxsr_attention")
def _attention(inputs: Tensors, outputs: Tensors, options: Attributes) -> None:
    (q, k, v, *masks), (out, logsumexp) = inputs, outputs
    for group in range(q.shape[3]):
        results = aten._scaled_dot_product_flash_attention_for_cpu(
            *_heads(q[:, :, :, group], k, v), 0.0, **_options(masks, group, options)
        )
        for result, of_group in zip((out, logsumexp), results, strict=True):
            result[:, :, :, group] = of_group.transpose(1, 2)


@torch_kernel("jaxsr_attention_gradients")
def _gradients(inputs: Tensors, outputs: Tensors, options: Attributes) -> None:
    (g, q, k, v, out, logsumexp, *masks), (of_query, *of_keys) = inputs, outputs
    for group in range(q.shape[3]):
        g_group, q_group, out_group, logsumexp_group = (
            each[:, :, :, group] for each in (g, q, out, logsumexp)
        )
        operands = _heads(g_group, q_group, k, v, out_group, logsumexp_group)
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *operands, 0.0, **_options(masks, group, options)
        )
        of_group, *of_keys_of_group = (each.transpose(1, 2) for each in gradients)
        of_query[:, :, :, group] = of_group
        for total, part in zip(of_keys, of_keys_of_group, strict=True):
            total.copy_(part) if group == 0 else total.add_(part)


def _heads(*arrays: torch.Tensor) -> list[torch.Tensor]:
    """(B, heads, ...), as torch numbers the axes."""
    return [each.transpose(1, 2) for each in arrays]


def _options(masks: Tensors, group: int, options: Attributes) -> dict[str, Any]:
    (is_causal,), scale = options["is_causal"], float_of(options["scale"])
    mask = masks[0][:, :, group if masks[0].shape[2] > 1 else 0] if masks else None
    return {"is_causal": bool(is_causal), "attn_mask": mask, "scale": scale}


def attention_by_torch(
    q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array, **options: Any
) -> list[jax.Array]:
    """`attention_p` by torch's kernel."""
    logsumexp = jax.ShapeDtypeStruct(q.shape[:-1], wide_dtype(q.dtype))
    return _call(_attention, [q, k, v], mask, [q, logsumexp], **options)


def gradients_by_torch(
    g: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    *mask: jax.Array,
    **options: Any,
) -> list[jax.Array]:
    """`attention_gradients_p` by torch's kernel."""
    return _call(_gradients, [g, q, k, v, out, logsumexp], mask, [q, k, v], **options)


def _call(
    kernel: str,
    operands: Sequence[jax.Array],
    mask: Sequence[jax.Array],
    results: Sequence[Any],
    *,
    is_causal: bool,
    scale: float,
    precision: lax.Precision | None,
) -> list[jax.Array]:
    del precision  # an accelerator's matter
    dtype = operands[0].dtype
    rows, _, heads = operands[-1].shape[:3]
    added = [
        jnp.where(each, 0, -jnp.inf).astype(dtype) if each.dtype == bool else each.astype(dtype)
        for each in mask
    ]
    of_masks = [
        ("n" if each.shape[0] == rows else ".") + ("h" if each.shape[1] == heads else "")
        for each in added
    ]
    first, *more = (jax.ShapeDtypeStruct(each.shape, each.dtype) for each in results)
    return torch_call(
        kernel,
        *operands,
        *added,
        shape=first.shape,
        more=tuple(more),
        axes=(*("n.h" for _ in operands), *of_masks, *("n.h" for _ in results)),
        channels_last=(False,) * (len(operands) + len(added) + len(results)),
        options=(("is_causal", (is_causal,)), ("scale", float_bits(scale))),
    )  # fmt: skip


def attention_by_llvm(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *mask: jax.Array,
    is_causal: bool,
    scale: float,
    precision: lax.Precision | None,
) -> list[jax.Array]:
    """`attention_p` by `panel_product.attention`."""
    del precision
    batch, queries, groups, each, features = q.shape
    sees = jnp.ones((1, k.shape[1], queries), bool)
    if is_causal:
        sees = jnp.triu(sees)
    for of_mask in mask:
        sees = sees & of_mask[:, 0, 0].swapaxes(1, 2)
    heads = (q * scale).reshape(batch, queries, groups * each, features)
    out, largest, total = panel_product.attention(heads, k.swapaxes(1, 2), v.swapaxes(1, 2), sees)
    logsumexp = jnp.where(total == 0, 0, largest + jnp.log(jnp.where(total == 0, 1, total)))
    logsumexp = logsumexp.reshape(batch, groups, each, queries).transpose(0, 3, 1, 2)
    return [out.reshape(q.shape), logsumexp]

"""Fourier transforms in torch's three normalisations."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax._src.interpreters import mlir
from jax._src.lax import fft as jax_fft

from jaxsr.interop._core.registry import lowers

aten = torch.ops.aten


def _on_cpu(context: Any, x: Any, **options: Any) -> list[Any]:
    """JAX's lowering, between arrays whose axes lie in their order.

    XLA's transform of CPUs takes no other, and its layout assignment does not see to that: a
    convolution nearby that keeps channels last made the program fail when it ran (jaxlib 0.10.2,
    `fft_thunk.cc`: IsMonotonicWithDim0Major). JAX has no public name for its rule.
    """
    (out,) = jax_fft._fft_lowering(context, _in_order(x), **options)
    return [_in_order(out)]


def _in_order(x: Any) -> Any:
    order = [list(range(x.type.rank))[::-1]]
    constrained = mlir.custom_call(
        "LayoutConstraint", result_types=[x.type], operands=[x],
        api_version=1, operand_layouts=order, result_layouts=order,
    )  # fmt: skip
    return constrained.result


mlir.register_lowering(jax.lax.fft_p, _on_cpu, platform="cpu")


def _norm(x: jax.Array, dims: Any, normalization: int, count: int | None = None) -> jax.Array:
    """torch's fft_norm_mode: 0 none, 1 by √n, 2 by n."""
    n = math.prod(x.shape[d] for d in dims) if count is None else count
    if normalization == 1:
        return x / math.sqrt(n)
    return x / n if normalization == 2 else x


@lowers(aten._fft_c2c.default)
def fft_c2c(x: jax.Array, dims: Any, normalization: int, forward: bool) -> jax.Array:
    if not dims:
        return x
    transform, norm = (jnp.fft.fftn, "backward") if forward else (jnp.fft.ifftn, "forward")
    return _norm(transform(x, axes=tuple(dims), norm=norm), dims, normalization)


@lowers(aten._fft_r2c.default)
def fft_r2c(x: jax.Array, dims: Any, normalization: int, onesided: bool) -> jax.Array:
    n = math.prod(x.shape[d] for d in dims)
    transform = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return _norm(transform(x, axes=tuple(dims)), dims, normalization, n)


@lowers(aten._fft_c2r.default)
def fft_c2r(x: jax.Array, dims: Any, normalization: int, last: int) -> jax.Array:
    shape = [x.shape[d] for d in dims[:-1]] + [last]
    out = jnp.fft.irfftn(x, s=shape, axes=tuple(dims), norm="forward")
    return _norm(out, dims, normalization, math.prod(shape))

"""Fourier transforms in torch's three normalisations."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.registry import lowers

aten = torch.ops.aten


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

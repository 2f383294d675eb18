"""Fourier transforms, factorisations and the integer helpers that torchax lacks or gets wrong."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core.dispatch import lowers
from jaxsr.interop._core.tensor import straight_through

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
    out = (jnp.fft.fftn if forward else jnp.fft.ifftn)(
        x, axes=tuple(dims), norm="backward" if forward else "forward"
    )
    return _norm(out, dims, normalization)


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


@lowers(aten._linalg_slogdet.default)
def slogdet(a: jax.Array) -> Any:
    sign, logdet = jnp.linalg.slogdet(a)
    lu, pivots, _ = lax.linalg.lu(a)
    return sign, logdet, lu, pivots + 1


@lowers(aten._linalg_det.default)
def det(a: jax.Array) -> Any:
    lu, pivots, _ = lax.linalg.lu(a)
    return jnp.linalg.det(a), lu, pivots + 1


@lowers(aten._linalg_solve_ex.default)
def solve_ex(a: jax.Array, b: jax.Array, *, left: bool = True, check_errors: bool = False) -> Any:
    del check_errors  # a singular matrix gives inf or NaN, as on an accelerator
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    rhs = b[..., None] if vector else b
    out = jnp.linalg.solve(a, rhs) if left else jnp.linalg.solve(a.mT, rhs.mT).mT
    lu, pivots, _ = lax.linalg.lu(a)
    info = _info(lu)
    return (out[..., 0] if vector else out), lu, pivots + 1, info


def _info(lu: jax.Array) -> jax.Array:
    """LAPACK's: 0, or the place (from 1) of the first pivot that is exactly zero."""
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    return jnp.where(zero.any(-1), jnp.argmax(zero, -1) + 1, 0)


@lowers(aten.linalg_inv_ex.default)
def inv_ex(a: jax.Array, check_errors: bool = False) -> Any:
    del check_errors
    return jnp.linalg.inv(a), _info(lax.linalg.lu(a)[0])


@lowers(aten._linalg_eigh.default)
def eigh(a: jax.Array, uplo: str = "L", compute_v: bool = True) -> Any:
    # Only one triangle is read, whatever the other holds.
    if uplo.upper() == "U":
        read = jnp.triu(a) + jnp.conj(jnp.triu(a, 1)).mT
    else:
        read = jnp.tril(a) + jnp.conj(jnp.tril(a, -1)).mT
    # torch's gradient is that of a Hermitian argument, spread over both triangles.
    a = straight_through(a, read)
    values, vectors = jnp.linalg.eigh(a, symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros((0,), a.dtype)


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: jax.Array, output_size: int | None = None) -> jax.Array:
    return jnp.repeat(jnp.arange(repeats.shape[0]), repeats, total_repeat_length=output_size)


@lowers(aten.searchsorted.Tensor)
def searchsorted(
    sequence: jax.Array,
    values: jax.Array,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    which = "right" if right or side == "right" else "left"
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, -1)
    if sequence.ndim == 1:
        return jnp.searchsorted(sequence, values, side=which)
    rows = sequence.reshape(-1, sequence.shape[-1])
    queries = values.reshape(rows.shape[0], -1)
    found = jax.vmap(lambda s, v: jnp.searchsorted(s, v, side=which))(rows, queries)
    return found.reshape(values.shape)

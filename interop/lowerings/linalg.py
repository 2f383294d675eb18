"""Matrix products and factorisations.

Products are lowered at the torch function: torch splits them into reshapes, which hinder sharding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import lax
from torch.utils import _pytree as pytree

from jaxsr.interop._core.accumulation import broadcast, copies
from jaxsr.interop._core.dtypes import (
    as_autocast,
    nan_where,
    to_jax_dtype,
    wide_dtype,
    widened,
    x64,
)
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers, overrides
from jaxsr.interop._core.tensor import JaxTensor, straight_through
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop._core.wide_integers import wide_call
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.lowerings.channel_moments import spread

# ---- products


def lowers_function(func: Callable, lowering: Callable, *, is_product: bool = False) -> None:
    """Registers a JAX lowering for a torch function, its shape and dtype checked against torch.

    Args:
      func: the function.
      lowering: the same for JAX arrays.
      is_product: autocast casts its arguments. Of other functions torch's own parts are taken then.
    """

    def handler(trace: Trace, called: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if all(not isinstance(t, JaxTensor) or t.const is not None for t in tensors):
            return called(*args, **kwargs)
        is_in_parts = torch.is_autocast_enabled("cpu") and not is_product
        if kwargs.get("out") is not None or is_in_parts:
            return called(*args, **kwargs)
        args, kwargs = as_autocast((args, kwargs))
        args, kwargs = pytree.tree_map_only(torch.Tensor, trace.as_jax_tensor, (args, kwargs))
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, JaxTensor)]
        with plain_torch():
            meta = trace.meta_result(called, args, kwargs)
        jargs, jkwargs = pytree.tree_map_only(JaxTensor, lambda t: t.array(), (args, kwargs))
        if isinstance(meta, torch.Tensor) and meta.dtype == torch.int64 and not x64():
            # A sum of products of numbers that 32 bits hold may not fit them.
            value = wide_call(called, lowering, jargs, jkwargs, widens=True)
        else:
            value = lowering(*jargs, **jkwargs)
        return trace.wrap_result(called, value, meta, any(t.needs_grad for t in tensors))

    overrides(func)(handler)


def added(x: jax.Array, out: jax.Array, *, beta: complex = 1, alpha: complex = 1) -> jax.Array:
    """A product added to `x`, with torch's factors."""
    out = out if alpha == 1 else out * jnp.asarray(alpha).astype(out.dtype)
    if beta == 0:  # torch then does not read `x`, which may hold NaN
        return jnp.broadcast_to(out, jnp.broadcast_shapes(x.shape, out.shape))
    scaled = x if beta == 1 else x * jnp.asarray(beta).astype(out.dtype)
    return out + broadcast(scaled, out.shape)


def _lowers_added(func: torch._ops.OpOverload, product: Callable[..., jax.Array]) -> None:
    """`func`, a product that is added to its first argument."""
    lowers(func)(lambda x, a, b, **factors: added(x, product(a, b), **factors))


lowers(aten.mm.default, aten.bmm.default, aten.dot.default)(jnp.matmul)


@lowers(aten.mm.dtype, aten.bmm.dtype)
def product_in(a: jax.Array, b: jax.Array, out_dtype: torch.dtype) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=to_jax_dtype(out_dtype))


_lowers_added(aten.addmm.default, jnp.matmul)
_lowers_added(aten.addmv.default, jnp.matmul)
_lowers_added(aten.baddbmm.default, jnp.matmul)
_lowers_added(aten.addbmm.default, lambda a, b: jnp.einsum("bij,bjk->ik", a, b))
_lowers_added(aten.addr.default, jnp.outer)


@lowers(aten.addmm.dtype)
def added_product_in(
    x: jax.Array, a: jax.Array, b: jax.Array, out_dtype: torch.dtype, **factors: complex
) -> jax.Array:
    wide = to_jax_dtype(out_dtype)
    return added(x.astype(wide), product_in(a, b, out_dtype), **factors)


@lowers(aten._trilinear.default)
def trilinear(
    a: jax.Array, b: jax.Array, c: jax.Array, of_a: Sequence[int], of_b: Sequence[int],
    of_c: Sequence[int], summed: Sequence[int], unroll_dim: int = 1,
) -> jax.Array:  # fmt: skip
    """The sum over axes of a product of three, each with the axes that it lacks put in."""
    a, b, c = map(jnp.expand_dims, (a, b, c), (of_a, of_b, of_c))
    return (a * b * c).sum(tuple(summed))


_LEAST_SPREAD = 1 << 18
"""Elements of a result from which on torch sums its bias's gradient in programs for CPUs. XLA adds
in order: 392 gradients, most of them equal, of zero-padded windows err by 35 steps of float32, and
torch by 2. Below, a call would cost more than the sum."""


def linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    out = jnp.matmul(input, weight.T)
    if bias is None:
        return out
    if bias.ndim == 1 and out.ndim > 1 and out.size >= _LEAST_SPREAD:
        bias = spread(bias, out.shape, axis=-1)
    elif bias.ndim == 1 and out.ndim > 2 and bias.dtype == wide_dtype(bias.dtype):
        bias = copies(bias, out.shape)
    return out + broadcast(bias, out.shape)


def einsum(equation: str, *operands: Any) -> jax.Array:
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    return jnp.einsum(equation.replace(" ", ""), *operands)


lowers_function(F.linear, linear, is_product=True)
lowers_function(torch.einsum, einsum)


def _matmul(input: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.matmul(input, other)


def _mm(input: jax.Array, mat2: jax.Array) -> jax.Array:
    return jnp.matmul(input, mat2)


for _function in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
    lowers_function(_function, _matmul, is_product=True)
for _function in (torch.bmm, torch.mm):
    lowers_function(_function, _mm, is_product=True)


# ---- factorisations


def packed_lu(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`lax.linalg.lu`, also of empty matrices."""
    if a.size:
        return lax.linalg.lu(a)
    pivots = jnp.zeros((*a.shape[:-2], min(a.shape[-2:])), jnp.int32)
    rows = jnp.arange(a.shape[-2], dtype=jnp.int32)
    return a, pivots, jnp.broadcast_to(rows, a.shape[:-1])


@lowers(aten._linalg_slogdet.default)
def slogdet(a: jax.Array) -> tuple[jax.Array, ...]:
    lu, pivots, _ = packed_lu(a)
    if not a.size:
        one = jnp.ones(a.shape[:-2], a.dtype)
        return one, jnp.zeros_like(one.real), lu, pivots
    sign, logdet = jnp.linalg.slogdet(a)
    return sign, logdet, lu, pivots + 1


@lowers(aten._linalg_det.default)
def det(a: jax.Array) -> tuple[jax.Array, ...]:
    lu, pivots, _ = packed_lu(a)
    if not a.size:
        return jnp.ones(a.shape[:-2], a.dtype), lu, pivots
    return jnp.linalg.det(a), lu, pivots + 1


@lowers(aten.linalg_lu_factor_ex.default)
def lu_factor_ex(
    a: jax.Array, *, pivot: bool = True, check_errors: bool = False
) -> tuple[jax.Array, ...]:
    del check_errors
    if not pivot:
        raise UnsupportedTorchError("LU without pivots; JAX has them always: leave pivot=False out")
    lu, pivots, _ = packed_lu(a)
    return lu, pivots + 1, _info(lu)


@lowers(aten.linalg_lu.default)
def lu_parts(a: jax.Array, *, pivot: bool = True) -> tuple[jax.Array, ...]:
    if not pivot:
        raise UnsupportedTorchError("LU without pivots; JAX has them always: leave pivot=False out")
    lu, _, order = packed_lu(a)
    rows, columns = a.shape[-2:]
    rank = min(rows, columns)
    lower = jnp.tril(lu[..., :rank], -1) + jnp.eye(rows, rank, dtype=a.dtype)
    p = jax.nn.one_hot(order, rows, dtype=a.dtype).mT
    return p, lower, jnp.triu(lu[..., :rank, :])


@lowers(aten.linalg_qr.default)
def qr(a: jax.Array, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    if mode == "r":
        return jnp.zeros(0, a.dtype), jnp.linalg.qr(a, mode)
    return tuple(jnp.linalg.qr(a, mode))


@lowers(aten._linalg_svd.default)
def svd(
    a: jax.Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[jax.Array, ...]:
    del driver
    if compute_uv:
        return tuple(jnp.linalg.svd(a, full_matrices))
    nothing = jnp.zeros(0, a.dtype)
    return nothing, jnp.linalg.svd(a, compute_uv=False), nothing


@lowers(aten.linalg_solve_triangular.default)
def solve_triangular(
    a: jax.Array, b: jax.Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (a, b))
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular
    )


@lowers(aten.triangular_solve.default)
def triangular_solve(
    b: jax.Array, a: jax.Array, upper: bool = True, transpose: bool = False, unit: bool = False
) -> tuple[jax.Array, jax.Array]:
    read, upper = (a.mT, not upper) if transpose else (a, upper)
    out = solve_triangular(read, b, upper=upper, unitriangular=unit)
    return out, jnp.broadcast_to(a, (*out.shape[:-2], *a.shape[-2:]))


@jax.custom_jvp
def eig(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues, and eigenvectors of length one."""
    values, vectors = jnp.linalg.eig(a)
    return values, vectors


@eig.defjvp
def _eig_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple:
    """torch's: eigenvectors keep their length; their phase is free, so no loss may depend on it."""
    values, vectors = eig(*primals)
    change = jnp.linalg.solve(vectors, tangents[0].astype(vectors.dtype) @ vectors)
    d_values = jnp.diagonal(change, axis1=-2, axis2=-1)
    gaps = values[..., None, :] - values[..., :, None]
    same = jnp.eye(values.shape[-1], dtype=bool)
    mixed = vectors @ jnp.where(same, 0, change / jnp.where(same, 1, gaps))
    along = jnp.sum(jnp.conj(vectors) * mixed, -2, keepdims=True).real
    return (values, vectors), (d_values, mixed - vectors * along)


lowers(aten.linalg_eig.default)(eig)


@lowers(aten.linalg_eigvals.default, aten._linalg_eigvals.default)
def eigvals(a: jax.Array) -> jax.Array:
    return jnp.linalg.eigvals(a)


@lowers(aten.linalg_matrix_exp.default)
def matrix_exp(a: jax.Array) -> jax.Array:
    return jax.scipy.linalg.expm(widened(a)).astype(a.dtype) if a.size else a


@lowers(aten._linalg_solve_ex.default)
def solve_ex(
    a: jax.Array, b: jax.Array, *, left: bool = True, check_errors: bool = False
) -> tuple[jax.Array, ...]:
    del check_errors
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    rhs = b[..., None] if vector else b
    if a.size and rhs.size:
        out = jnp.linalg.solve(a, rhs) if left else jnp.linalg.solve(a.mT, rhs.mT).mT
    else:
        shape = jnp.broadcast_shapes(a.shape[:-2], rhs.shape[:-2])
        out = jnp.zeros((*shape, *rhs.shape[-2:]), rhs.dtype)
    lu, pivots, _ = packed_lu(a)
    info = _info(lu)
    # For a singular matrix some numbers would be finite.
    out = nan_where((info > 0)[..., None, None], out) if a.size else out
    return (out[..., 0] if vector else out), lu, pivots + 1, info


def _info(lu: jax.Array) -> jax.Array:
    """LAPACK's: 0, or the place (from 1) of the first pivot that is exactly zero."""
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    if not zero.size:
        return jnp.zeros(lu.shape[:-2], jnp.int32)
    return jnp.where(zero.any(-1), jnp.argmax(zero, -1) + 1, 0)


@lowers(aten.linalg_inv_ex.default)
def inv_ex(a: jax.Array, check_errors: bool = False) -> tuple[jax.Array, ...]:
    del check_errors
    info = _info(packed_lu(a)[0])
    return nan_where((info > 0)[..., None, None], jnp.linalg.inv(a)) if a.size else a, info


def _of_triangle(a: jax.Array, uplo: str) -> jax.Array:
    """A Hermitian matrix of one triangle, whatever the other holds.

    torch's gradient is that of a Hermitian argument, spread over both triangles.
    """
    if uplo.upper() == "U":
        read = jnp.triu(a) + jnp.conj(jnp.triu(a, 1)).mT
    else:
        read = jnp.tril(a) + jnp.conj(jnp.tril(a, -1)).mT
    return straight_through(a, read)


@lowers(aten.linalg_pinv.atol_rtol_tensor)
def pinv(
    a: jax.Array,
    *,
    atol: jax.Array | None = None,
    rtol: jax.Array | None = None,
    hermitian: bool = False,
) -> jax.Array:
    a = _of_triangle(a, "L") if hermitian else a
    if not a.size:
        return jnp.zeros(a.mT.shape, a.dtype)
    absolute = jnp.zeros(()) if atol is None else atol
    relative = max(a.shape[-2:]) * jnp.finfo(a.dtype).eps
    if rtol is not None:
        relative = rtol
    elif atol is not None:  # torch's own bound counts where no other does
        relative = jnp.where(absolute > 0, 0, relative)
    if atol is not None:
        largest = lax.stop_gradient(jnp.linalg.norm(a, 2, axis=(-2, -1)))
        relative = jnp.maximum(relative, absolute / jnp.where(largest == 0, 1, largest))
    return _pinv(a, jnp.asarray(relative))


@jax.custom_jvp
def _pinv(a: jax.Array, rtol: jax.Array) -> jax.Array:
    return jnp.linalg.pinv(a, rtol=rtol)


@_pinv.defjvp
def _pinv_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    """JAX's own takes no bound that is traced. Golub and Pereyra (1973), of constant rank."""
    (a, rtol), (da, _) = primals, tangents
    p = _pinv(a, rtol)
    p_h, da_h = jnp.conj(p).mT, jnp.conj(da).mT
    of_rows = p @ p_h @ (da_h - da_h @ a @ p)
    of_columns = (da_h - p @ a @ da_h) @ p_h @ p
    return p, of_rows + of_columns - p @ da @ p


@lowers(aten._linalg_eigh.default)
def eigh(a: jax.Array, uplo: str = "L", compute_v: bool = True) -> tuple[jax.Array, ...]:
    values, vectors = jnp.linalg.eigh(_of_triangle(a, uplo), symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros((0,), a.dtype)

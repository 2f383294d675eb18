"""New tensors: filled with one number, counted, copied, cast. Strides are those of dispatch."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.typing import ArrayLike

from jaxsr.interop._core.dtypes import cast, to_jax_dtype
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers


@lowers(aten.full.default)
def full(size: Sequence[int], value: ArrayLike, *, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.full(size, value, None if dtype is None else to_jax_dtype(dtype))


def _filled_with(number: int) -> Callable[..., jax.Array]:
    def lowering(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None) -> jax.Array:
        return full(size, number, dtype=dtype or torch.get_default_dtype())

    return lowering


_zeros = _filled_with(0)
lowers(aten.ones.default)(_filled_with(1))
lowers(
    aten.zeros.default, aten.empty.memory_format, aten.empty_strided.default,
    aten.empty_permuted.default,
)(_zeros)  # fmt: skip


@lowers(aten.full_like.default, aten.fill.Scalar, aten.fill.Tensor)
def full_like(x: jax.Array, value: ArrayLike, *, dtype: torch.dtype | None = None) -> jax.Array:
    return new(x, x.shape, value, dtype=dtype)


@lowers(aten.empty_like.default)
def empty_like(x: jax.Array, *, dtype: torch.dtype | None = None) -> jax.Array:
    return new(x, x.shape, 0, dtype=dtype)


@lowers(aten.new_empty.default, aten.new_empty_strided.default)
def new_empty(
    x: jax.Array, size: Sequence[int], *_: Any, dtype: torch.dtype | None = None
) -> jax.Array:
    return new(x, size, 0, dtype=dtype)


def new(
    x: jax.Array, size: Sequence[int], value: ArrayLike, *, dtype: torch.dtype | None
) -> jax.Array:
    """An array of one number; its dtype defaults to that of `x`."""
    return jnp.full(size, value, x.dtype if dtype is None else to_jax_dtype(dtype))


@lowers(aten.scalar_tensor.default)
def scalar_tensor(value: complex, *, dtype: torch.dtype | None = None) -> jax.Array:
    return full((), value, dtype=dtype or torch.get_default_dtype())


# ---- copies

lowers(aten.clone.default, aten.lift_fresh_copy.default)(lambda x: x)
lowers(aten._unsafe_view.default)(jnp.reshape)


@lowers(aten._to_copy.default)
def to_copy(x: jax.Array, *, dtype: torch.dtype | None = None) -> jax.Array:
    return x if dtype is None else cast(x, to_jax_dtype(dtype))


@lowers(aten.copy.default)
def copy(x: jax.Array, source: jax.Array) -> jax.Array:
    return jnp.broadcast_to(cast(source, x.dtype), x.shape)

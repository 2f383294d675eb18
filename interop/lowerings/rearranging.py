"""Elements moved as they are: joined, repeated, turned, shifted, padded and cut out."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers


@lowers(aten.cat.default)
def cat(tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    # torch leaves out tensors of shape (0,) among others.
    parts = [x for x in tensors if x.shape != (0,)]
    return jnp.concatenate(parts or tensors, dim if parts else 0)


lowers(aten.stack.default)(jnp.stack)
lowers(aten.repeat.default)(jnp.tile)
lowers(aten.triu.default)(jnp.triu)


@lowers(aten.flip.default)
def flip(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return lax.rev(x, [dim % x.ndim for dim in dims]) if x.ndim else x


@lowers(aten.roll.default)
def roll(x: jax.Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> jax.Array:
    if not x.ndim:
        return x
    return jnp.roll(x, tuple(shifts), tuple(dims)) if dims else jnp.roll(x, shifts[0])


@lowers(aten.constant_pad_nd.default)
def constant_pad(x: jax.Array, padding: Sequence[int], value: complex = 0) -> jax.Array:
    """By numbers that may be negative, from the last axis on."""
    sides = [(low, high, 0) for low, high in zip(padding[::2], padding[1::2], strict=True)]
    sides += [(0, 0, 0)] * (x.ndim - len(sides))
    return lax.pad(x, np.asarray(value).astype(x.dtype), sides[::-1])


@lowers(aten.reflection_pad1d.default)
def reflection_pad(x: jax.Array, padding: Sequence[int]) -> jax.Array:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [tuple(padding)], mode="reflect")

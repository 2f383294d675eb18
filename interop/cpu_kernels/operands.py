"""Operands of JAX primitives with several of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def alike(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays in one dtype, varying over the same mesh axes inside `shard_map`."""
    dtype = jnp.result_type(*arrays)
    return varying_alike(*(each.astype(dtype) for each in arrays))


def varying_alike(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays varying over the same mesh axes inside `shard_map`."""
    axes = frozenset[str]().union(*map(varying_axes, arrays))
    return [lax.pcast(each, tuple(axes - varying_axes(each)), to="varying") for each in arrays]


def varying_axes(array: jax.Array) -> frozenset[str]:
    """Mesh axes over which an array varies inside `shard_map`."""
    aval: Any = jax.typeof(array)
    return aval.vma if hasattr(aval, "vma") else aval.mat.varying

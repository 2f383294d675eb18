# pyright: reportUnknownMemberType=false
"""Functions of JAX with the types that kernels use; JAX's own stubs leave their results open."""

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def jit(*static_argnames: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: `jax.jit`, under which a function keeps its signature."""
    return cast(Any, partial(jax.jit, static_argnames=static_argnames))


ArrayFunction = Callable[..., jax.Array]
arange = cast(ArrayFunction, jnp.arange)
cond = cast(ArrayFunction, jax.lax.cond)
custom_jvp = cast(Callable[[Callable[..., jax.Array]], Any], jax.custom_jvp)
dot_general = cast(ArrayFunction, jax.lax.dot_general)
eye = cast(ArrayFunction, jnp.eye)
fori_loop = cast(Callable[..., Any], jax.lax.fori_loop)
gather = cast(ArrayFunction, jax.lax.gather)
jvp = cast(Callable[..., Any], jax.jvp)
eval_shape = cast(Callable[..., jax.ShapeDtypeStruct], jax.eval_shape)
map_in_batches = cast(ArrayFunction, jax.lax.map)
pad = cast(ArrayFunction, jnp.pad)
ones_like = cast(ArrayFunction, jnp.ones_like)
scan = cast(Callable[..., Any], jax.lax.scan)
zeros = cast(ArrayFunction, jnp.zeros)
zeros_like = cast(ArrayFunction, jnp.zeros_like)


def asarray(x: Any, dtype: Any = None) -> jax.Array:
    """`jnp.asarray`, also of NumPy arrays in the other order of bytes, as in FITS files."""
    if isinstance(x, np.ndarray):
        array = cast(np.ndarray[Any, np.dtype[Any]], x)
        if not array.dtype.isnative:
            return jnp.asarray(array.astype(array.dtype.newbyteorder("=")), dtype)
    return jnp.asarray(x, dtype)


optimization_barrier = cast(Callable[[Any], Any], jax.lax.optimization_barrier)
platform_dependent = cast(ArrayFunction, jax.lax.platform_dependent)

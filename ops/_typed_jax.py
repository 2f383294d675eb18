# pyright: reportUnknownMemberType=false
"""Functions of JAX with the types that kernels use; JAX's own stubs leave their results open."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._explicit_axes import explicit_mesh, with_automatic_axes

P = ParamSpec("P")
R = TypeVar("R")


def jit(*static_argnames: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: `jax.jit`, under which a function keeps its signature.

    Operands on explicit axes of a mesh are computed on automatic ones.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        compiled: Any = jax.jit(function, static_argnames=static_argnames)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if (mesh := explicit_mesh((args, kwargs))) is None:
                return compiled(*args, **kwargs)

            def run(_: tuple[()], inputs: Any) -> R:
                return compiled(*inputs[0], **inputs[1])

            return with_automatic_axes(run, mesh, (), (args, kwargs))

        return call

    return decorate


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

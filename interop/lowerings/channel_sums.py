"""Sums over the pixels of each channel, values of channels spread over the pixels, stored arrays.

Each is the transpose of the other, so that gradients of what is spread are sums. On CPUs torch sums
(`interop/cpu_kernels`): XLA's sums walk through windows there, which costs seven times as much.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxsr.interop.cpu_kernels.choice import sums_by_torch
from jaxsr.interop.cpu_kernels.sums import channel_sums_by_torch, stored_by_torch


def channel_sums(x: jax.Array, *, axis: int, by_row: bool = False) -> jax.Array:
    """Sums of floating-point numbers.

    Args:
      x: rows along axis 0, channels along `axis`.
      axis: of the channels, at least 1.
      by_row: for each row by itself.

    Returns:
      (C,), or (N, C).
    """
    return channel_sums_p.bind(x, axis=axis % x.ndim, by_row=by_row)


def spread(values: jax.Array, shape: Sequence[int], *, axis: int) -> jax.Array:
    """A value for each channel, or for each row's channel, at every pixel.

    Args:
      values: (C,), or (N, C).
      shape: of the result: rows along axis 0, channels along `axis`.
      axis: of the channels, at least 1.
    """
    return spread_p.bind(values, shape=tuple(shape), axis=axis % len(shape))


def scaled(x: jax.Array, values: jax.Array, *, axis: int) -> jax.Array:
    """`x * spread(values, x.shape, axis=axis)`; its gradient keeps `values` as they are."""
    return scaled_p.bind(x, values, axis=axis % x.ndim)


def stored(x: jax.Array) -> jax.Array:
    """The array itself; all that read it read the same numbers.

    XLA makes an array anew in each fusion that reads it. On CPUs one fusion rounds a product and a
    sum, another one makes a multiply-add of them: a maximum is then equal to none of the elements
    that it was found among, and its gradient is lost. What a custom call writes is made once. Its
    cotangent is stored, too.
    """
    return stored_p.bind(x)


channel_sums_p = Primitive("jaxsr_channel_sums")
spread_p = Primitive("jaxsr_spread")
scaled_p = Primitive("jaxsr_scaled")
stored_p = Primitive("jaxsr_stored")


def _plain_sums(x: jax.Array, *, axis: int, by_row: bool) -> jax.Array:
    return jnp.sum(x, [i for i in range(x.ndim) if i != axis and (i or not by_row)])


def _sums_on_cpu(x: jax.Array, **options: Any) -> jax.Array:
    return (channel_sums_by_torch if sums_by_torch(x) else _plain_sums)(x, **options)


def _plain_spread(values: jax.Array, *, shape: tuple[int, ...], axis: int) -> jax.Array:
    return lax.broadcast_in_dim(values, shape, (axis,) if values.ndim == 1 else (0, axis))


def _sums_transposed(ct: Any, x: Any, *, axis: int, by_row: bool) -> Any:
    return [spread(ct, x.aval.shape, axis=axis)]


def _spread_transposed(ct: Any, values: Any, *, shape: Any, axis: int) -> Any:
    return [channel_sums(ct, axis=axis, by_row=values.aval.ndim == 2)]


def _plain_scaled(x: jax.Array, values: jax.Array, *, axis: int) -> jax.Array:
    return x * _plain_spread(values, shape=x.shape, axis=axis)


def _define(primitive: Primitive, plain: Any, on_cpu: Any = None) -> None:
    """All rules of a primitive but those of differentiation."""

    @primitive.def_abstract_eval
    def _(x: Any, *others: Any, **options: Any) -> Any:
        structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in (x, *others)]
        return x.update(shape=jax.eval_shape(functools.partial(plain, **options), *structs).shape)

    @primitive.def_impl
    def _(*operands: jax.Array, **options: Any) -> jax.Array:
        return jax.jit(primitive.bind, static_argnames=tuple(options))(*operands, **options)

    def batched(operands: Any, axes: Any, **options: Any) -> Any:
        return jax.vmap(functools.partial(plain, **options), axes)(*operands), 0

    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(plain, multiple_results=False))
    if on_cpu is not None:
        lowering = mlir.lower_fun(on_cpu, multiple_results=False)
        mlir.register_lowering(primitive, lowering, platform="cpu")
        prim_requires_devices_during_lowering.add(primitive)


_define(channel_sums_p, _plain_sums, _sums_on_cpu)
_define(spread_p, _plain_spread)
_define(scaled_p, _plain_scaled)
_define(stored_p, lambda x: x, lambda x: stored_by_torch(x) if x.size and x.ndim else x)
ad.deflinear2(stored_p, lambda ct, _: [stored(ct)])
ad.deflinear2(channel_sums_p, _sums_transposed)
ad.deflinear2(spread_p, _spread_transposed)
ad.defbilinear(
    scaled_p,
    lambda ct, x, values, axis: scaled(ct, values, axis=axis),
    lambda ct, x, values, axis: channel_sums(ct * x, axis=axis, by_row=values.aval.ndim == 2),
)

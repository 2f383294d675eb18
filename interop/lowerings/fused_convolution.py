"""A convolution with what is done to each of its pixels afterwards, as one operation.

`fused` finds them in a function: a convolution, its bias, and an activation or a sum with another
array, where nothing else reads what lies between. On CPUs torch then writes the result in one pass,
instead of two or three over arrays larger than a cache. Elsewhere, and in derivatives, it is the
operations that it was made of. For inference: a gradient needs what lies between.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import lax
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import ClosedJaxpr, Literal, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from jaxsr.interop.cpu_kernels.choice import convolves_by_torch
from jaxsr.interop.cpu_kernels.convolution import fused_convolution_by_torch
from jaxsr.interop.lowerings.channel_sums import spread, spread_p
from jaxsr.interop.lowerings.convolution import convolution_p
from jaxsr.interop.lowerings.elementwise import hardswish, leaky_relu, relu

ResultT = TypeVar("ResultT")

FOLLOWERS: dict[str, Callable[..., jax.Array]] = {
    "relu": relu,
    "leaky_relu": leaky_relu,
    "hardswish": hardswish,
    "silu": jax.nn.silu,
    "logistic": lax.logistic,
    "add": lax.add,
}
"""What may follow, by the name of its equation."""

fused_convolution_p = Primitive("jaxsr_fused_convolution")
"""Of images and a weight, then the bias and the array that is added, where there are."""


def fused(function: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """The same function, its convolutions fused with what follows them."""

    @functools.wraps(function)
    def run(*args: Any) -> ResultT:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        results = jaxpr_as_fun(_rewritten(closed))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def _rewritten(closed: ClosedJaxpr) -> ClosedJaxpr:
    jaxpr = closed.jaxpr
    readers = collections.defaultdict(list)
    for i, eqn in enumerate(jaxpr.eqns):
        for var in eqn.invars:
            if not isinstance(var, Literal):
                readers[var].append(i)
    for var in jaxpr.outvars:
        if not isinstance(var, Literal):
            readers[var].append(None)
    spreads = {eqn.outvars[0]: eqn for eqn in jaxpr.eqns if eqn.primitive is spread_p}

    eqns: list[Any] = list(jaxpr.eqns)
    for i, convolution in enumerate(jaxpr.eqns):
        if convolution.primitive is not convolution_p or convolution.params["wrt"] != "out":
            continue
        out, last = convolution.outvars[0], i
        bias: list[Any] = []
        added: list[Any] = []
        follower, slope = "", 0.0
        channels = -1 if convolution.params["channels_last"] else 1
        while not follower and len(readers[out]) == 1:
            (j,) = readers[out]
            if j is None or eqns[j] is not jaxpr.eqns[j]:
                break  # a result, or part of another fusion
            eqn = jaxpr.eqns[j]
            others = [var for var in eqn.invars if var is not out]
            other: Any = others[0] if others else None
            spread_eqn: Any = None if isinstance(other, Literal) else spreads.get(other)
            if eqn.primitive is lax.mul_p and isinstance(other, Literal) and other.val == 1:
                pass  # the factor of torch's sums
            elif eqn.primitive is lax.add_p and not bias and _is_bias(spread_eqn, out, channels):
                bias = spread_eqn.invars
            elif _name(eqn) in FOLLOWERS and _fits(eqn, out, other):
                follower = _name(eqn)
                added = [other] if follower == "add" else []
                slope = float(other.val) if follower == "leaky_relu" else 0.0
            else:
                break
            eqns[last] = None
            out, last = eqn.outvars[0], j
        if last != i:
            eqns[last] = convolution.replace(
                primitive=fused_convolution_p,
                invars=[*convolution.invars, *bias, *added],
                outvars=[out],
                params=convolution.params
                | {"has_bias": bool(bias), "follower": follower, "slope": slope},
            )
    return ClosedJaxpr(jaxpr.replace(eqns=[eqn for eqn in eqns if eqn]), closed.consts)


def _name(eqn: Any) -> str:
    return eqn.params["name"] if eqn.primitive.name == "jit" else eqn.primitive.name


def _is_bias(spread_eqn: Any, out: Any, channels: int) -> bool:
    """Whether it is a value for each channel, of the convolution's dtype."""
    return (
        spread_eqn is not None
        and spread_eqn.invars[0].aval.ndim == 1
        and spread_eqn.params["axis"] == channels % out.aval.ndim
        and spread_eqn.outvars[0].aval.dtype == out.aval.dtype
    )


def _fits(eqn: Any, out: Any, other: Any) -> bool:
    if eqn.outvars[0].aval.shape != out.aval.shape or eqn.outvars[0].aval.dtype != out.aval.dtype:
        return False
    if _name(eqn) == "add":
        return not isinstance(other, Literal | None) and other.aval.shape == out.aval.shape
    return isinstance(other, Literal) if _name(eqn) == "leaky_relu" else other is None


@fused_convolution_p.def_abstract_eval
def _abstract(x: Any, *_: Any, shape: tuple[int, ...], **__: Any) -> Any:
    return x.update(shape=shape)


def _by_parts(
    x: jax.Array,
    w: jax.Array,
    *rest: jax.Array,
    has_bias: bool,
    follower: str,
    slope: float,
    **convolution: Any,
) -> jax.Array:
    out = convolution_p.bind(x, w, **convolution)
    if has_bias:
        axis = -1 if convolution["channels_last"] else 1
        out = out + spread(rest[0], out.shape, axis=axis)
    if not follower:
        return out
    operands = [slope] if follower == "leaky_relu" else rest[has_bias:]
    return FOLLOWERS[follower](out, *operands)


def _on_cpu(x: jax.Array, w: jax.Array, *rest: jax.Array, **options: Any) -> jax.Array:
    if not convolves_by_torch(x, w, options["shape"]):
        return _by_parts(x, w, *rest, **options)
    del options["precision"], options["wrt"]  # a TPU's matter; always the result
    return fused_convolution_by_torch(x, w, *rest, **options)


def _derivative(primals: Any, tangents: Any, **options: Any) -> Any:
    tangents = tuple(ad.instantiate_zeros(tangent) for tangent in tangents)
    return jax.jvp(functools.partial(_by_parts, **options), primals, tangents)


def _batched(operands: Any, axes: Any, **options: Any) -> Any:
    return jax.vmap(functools.partial(_by_parts, **options), in_axes=axes)(*operands), 0


ad.primitive_jvps[fused_convolution_p] = _derivative
batching.primitive_batchers[fused_convolution_p] = _batched
mlir.register_lowering(fused_convolution_p, mlir.lower_fun(_by_parts, multiple_results=False))
mlir.register_lowering(
    fused_convolution_p, mlir.lower_fun(_on_cpu, multiple_results=False), platform="cpu"
)
# As for `convolution_p`.
prim_requires_devices_during_lowering.add(fused_convolution_p)


@fused_convolution_p.def_impl
def _computed_at_once(*operands: jax.Array, **options: Any) -> jax.Array:
    return jax.jit(fused_convolution_p.bind, static_argnames=tuple(options))(*operands, **options)

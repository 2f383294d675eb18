"""A convolution with later operations on each of its pixels, as one operation.

`with_followers` finds them in a program: a convolution, its bias, and an activation or a sum with
another array, if no other operation reads the intermediate results. On CPUs torch then writes the
result in one pass, instead of two or three over arrays larger than a cache. Elsewhere, and in
derivatives, it is the operations that it was made of. For inference: a gradient needs the
intermediate results.
"""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.interpreters import ad

from jaxsr.interop.cpu_kernels.choice import convolves_by_torch
from jaxsr.interop.cpu_kernels.convolution import convolution_by_torch
from jaxsr.interop.lowerings.activations import hardswish, leaky_relu, relu
from jaxsr.interop.lowerings.channel_moments import shape_option
from jaxsr.interop.lowerings.convolution import biased_p, convolution_p
from jaxsr.xla_calls.primitives import cpu_primitive

FOLLOWERS: dict[str, Callable[..., jax.Array]] = {
    "relu": relu,
    "leaky_relu": leaky_relu,
    "hardswish": hardswish,
    "silu": jax.nn.silu,
    "logistic": lax.logistic,
    "add": lax.add,
}
"""Operations that may follow, by the name of their equation."""


def with_followers(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, with convolutions and their followers fused."""
    jaxpr, readers = closed.jaxpr, readers_of(closed)
    eqns: list[JaxprEqn | None] = list(jaxpr.eqns)
    for i, convolution in enumerate(jaxpr.eqns):
        has_bias = convolution.primitive is biased_p
        if not has_bias and not _is_plain(convolution):
            continue
        out, fused_indices = convolution.outvars[0], [i]
        added: list[Any] = []
        follower, slope = "", 0.0
        while not follower and len(readers[out]) == 1:
            (j,) = readers[out]
            if j is None or eqns[j] is not jaxpr.eqns[j]:
                break  # a result, or part of another fusion
            eqn = jaxpr.eqns[j]
            others = [var for var in eqn.invars if var is not out]
            other: Any = others[0] if others else None
            if eqn.primitive is lax.mul_p and isinstance(other, Literal) and other.val == 1:
                pass  # the factor of torch's sums
            elif _name(eqn) in FOLLOWERS and _fits(eqn, out, other):
                follower = _name(eqn)
                added = [other] if follower == "add" else []
                slope = float(other.val) if follower == "leaky_relu" else 0.0
            else:
                break
            out = eqn.outvars[0]
            fused_indices.append(j)
        if follower:
            options = {"has_bias": has_bias, "follower": follower, "slope": slope}
            *before, last = fused_indices
            for index in before:
                eqns[index] = None
            eqns[last] = convolution.replace(
                primitive=fused_convolution_p,
                invars=[*convolution.invars, *added],
                outvars=[out],
                params={k: v for k, v in convolution.params.items() if k != "wrt"} | options,
            )
    return ClosedJaxpr(jaxpr.replace(eqns=[eqn for eqn in eqns if eqn]), closed.consts)


def readers_of(closed: ClosedJaxpr) -> Mapping[Var, list[int | None]]:
    """For each variable the equations that read it, by number; None where it is a result."""
    readers: dict[Var, list[int | None]] = collections.defaultdict(list)
    for i, eqn in enumerate(closed.jaxpr.eqns):
        for var in eqn.invars:
            if not isinstance(var, Literal):
                readers[var].append(i)
    for var in closed.jaxpr.outvars:
        if not isinstance(var, Literal):
            readers[var].append(None)
    return readers


def _is_plain(eqn: JaxprEqn) -> bool:
    return eqn.primitive is convolution_p and eqn.params["wrt"] == "out"


def _name(eqn: JaxprEqn) -> str:
    return eqn.params["name"] if eqn.primitive.name == "jit" else eqn.primitive.name


def _fits(eqn: JaxprEqn, out: Var, other: Var | Literal | None) -> bool:
    """Whether an equation of a follower's name is that follower, of all of `out`."""
    if eqn.outvars[0].aval.shape != out.aval.shape or eqn.outvars[0].aval.dtype != out.aval.dtype:
        return False
    if eqn.primitive.name == "jit" and not _same_program(eqn):
        return False
    if _name(eqn) == "add":
        return not isinstance(other, Literal | None) and other.aval.shape == out.aval.shape
    return isinstance(other, Literal) if _name(eqn) == "leaky_relu" else other is None


def _same_program(eqn: JaxprEqn) -> bool:
    """Other functions may have the same name."""
    operands = [
        v.val if isinstance(v, Literal) else jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)
        for v in eqn.invars
    ]
    reference = jax.make_jaxpr(FOLLOWERS[_name(eqn)])(*operands).eqns[0]
    return str(reference.params["jaxpr"]) == str(eqn.params["jaxpr"])


def _by_parts(
    x: jax.Array,
    w: jax.Array,
    *rest: jax.Array,
    has_bias: bool,
    follower: str,
    slope: float,
    **convolution: Any,
) -> jax.Array:
    if has_bias:
        out = biased_p.bind(x, w, rest[0], **convolution)
    else:
        out = convolution_p.bind(x, w, wrt="out", **convolution)
    if not follower:
        return out
    operands = [slope] if follower == "leaky_relu" else rest[has_bias:]
    return FOLLOWERS[follower](out, *operands)


def _on_cpu(x: jax.Array, w: jax.Array, *rest: jax.Array, **options: Any) -> jax.Array:
    if not convolves_by_torch(x, w, options["shape"]):
        return _by_parts(x, w, *rest, **options)
    del options["precision"]  # a TPU's matter
    return convolution_by_torch(x, w, *rest, wrt="out", **options)


def _derivative(
    primals: Sequence[jax.Array], tangents: Sequence[jax.Array | ad.Zero], **options: Any
) -> tuple[jax.Array, jax.Array]:
    tangents = tuple(ad.instantiate_zeros(tangent) for tangent in tangents)
    return jax.jvp(functools.partial(_by_parts, **options), primals, tangents)


fused_convolution_p = cpu_primitive(
    "jaxsr_fused_convolution", _by_parts, _on_cpu, shape_of=shape_option
)
"""Takes images and a weight, then the bias and the array that is added, where they exist. The
follower may be empty."""
ad.primitive_jvps[fused_convolution_p] = _derivative

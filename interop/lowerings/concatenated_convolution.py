"""A convolution of concatenated channels, as in dense blocks and U-Nets, as one operation.

On CPUs it is the sum of the convolutions of the parts, because a large concatenation is written to
memory and read again. Elsewhere, and in derivatives, it is the operations that it was made of.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.interpreters import ad

from jaxsr.interop.cpu_kernels.choice import convolves_by_torch, convolves_parts
from jaxsr.interop.lowerings.channel_moments import shape_option
from jaxsr.interop.lowerings.convolution import biased_p, convolution_p
from jaxsr.interop.lowerings.fused_convolution import (
    FOLLOWERS,
    fused_convolution_p,
    readers_of,
)
from jaxsr.xla_calls.primitives import cpu_primitive


def without_concatenations(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program: a convolution takes the parts of a concatenation that no other reads."""
    jaxpr, readers = closed.jaxpr, readers_of(closed)
    eqns: list[JaxprEqn | None] = list(jaxpr.eqns)
    for i, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive is not lax.concatenate_p:
            continue
        indices = readers[eqn.outvars[0]]
        convolutions = [j for j in indices if j is not None and _convolves(jaxpr.eqns[j], eqn)]
        if indices and convolutions == indices:
            eqns[i] = None
            for j in convolutions:
                eqns[j] = _of_parts(jaxpr.eqns[j], eqn.invars)
    return ClosedJaxpr(jaxpr.replace(eqns=[eqn for eqn in eqns if eqn]), closed.consts)


def _convolves(eqn: JaxprEqn, concatenation: JaxprEqn) -> bool:
    """Whether an equation is a convolution of the channels that another one concatenates."""
    images, *others = eqn.invars
    if eqn.primitive not in (convolution_p, biased_p, fused_convolution_p):
        return False
    (out,) = concatenation.outvars
    return (
        images is out
        and all(var is not out for var in others)
        and eqn.params.get("wrt", "out") == "out"
        and eqn.params["groups"] == 1
        and concatenation.params["dimension"] == _channel_axis(out.aval.ndim, **eqn.params)
    )


def _of_parts(eqn: JaxprEqn, parts: Sequence[Var | Literal]) -> JaxprEqn:
    options = {"has_bias": eqn.primitive is biased_p, "follower": "", "slope": 0.0} | eqn.params
    options.pop("wrt", None)
    return eqn.replace(
        primitive=concatenated_convolution_p,
        invars=[*parts, *eqn.invars[1:]],
        params=options | {"parts": len(parts)},
    )


def _channel_axis(rank: int, *, channels_last: bool, **_: Any) -> int:
    return rank - 1 if channels_last else 1


def _concatenated(*operands: jax.Array, parts: int, **options: Any) -> jax.Array:
    axis = _channel_axis(operands[0].ndim, **options)
    images = lax.concatenate(operands[:parts], axis)
    return fused_convolution_p.bind(images, *operands[parts:], **options)


def _on_cpu(*operands: jax.Array, parts: int, **options: Any) -> jax.Array:
    images, (w, *rest) = operands[:parts], operands[parts:]
    elements = sum(x.size for x in images)
    if not (convolves_by_torch(images[0], w, options["shape"]) and convolves_parts(elements)):
        return _concatenated(*operands, parts=parts, **options)
    has_bias, follower, slope = (options.pop(k) for k in ("has_bias", "follower", "slope"))
    sizes = [x.shape[_channel_axis(w.ndim, **options)] for x in images]
    weights = lax.split(w, sizes, axis=1)
    alone, bias = {"slope": 0.0, **options}, rest[:has_bias]
    total = fused_convolution_p.bind(
        images[0], weights[0], *bias, has_bias=has_bias, follower="", **alone
    )
    for x, weight in zip(images[1:], weights[1:], strict=True):
        total = fused_convolution_p.bind(x, weight, total, has_bias=False, follower="add", **alone)
    if not follower:
        return total
    others = [slope] if follower == "leaky_relu" else rest[has_bias:]
    return FOLLOWERS[follower](total, *others)


def _derivative(
    primals: Sequence[jax.Array], tangents: Sequence[jax.Array | ad.Zero], **options: Any
) -> tuple[jax.Array, jax.Array]:
    tangents = tuple(ad.instantiate_zeros(tangent) for tangent in tangents)
    return jax.jvp(functools.partial(_concatenated, **options), primals, tangents)


concatenated_convolution_p = cpu_primitive(
    "jaxsr_concatenated_convolution", _concatenated, _on_cpu, shape_of=shape_option
)
"""Takes the parts and a weight, then the bias and the array that is added, where they exist."""
ad.primitive_jvps[concatenated_convolution_p] = _derivative

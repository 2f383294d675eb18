"""A convolution of concatenated channels, as in dense blocks and U-Nets, as one operation.

On CPUs it is the sum of the convolutions of the parts: a large concatenation is written to memory
and read again, which takes longer than the convolution of it. Elsewhere, and in derivatives, it is
the operations that it was made of.
"""

import collections
import functools
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal
from jax.interpreters import ad

from jaxsr.interop.cpu_kernels.choice import convolves_by_torch, convolves_parts
from jaxsr.interop.lowerings.channel_moments import shape_option
from jaxsr.interop.lowerings.convolution import biased_p, convolution_p
from jaxsr.interop.lowerings.fused_convolution import FOLLOWERS, fused_convolution_p
from jaxsr.ops._cpu_primitives import cpu_primitive


def without_concatenations(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program: a convolution takes the parts of a concatenation that no other reads."""
    jaxpr = closed.jaxpr
    readers = collections.defaultdict(list)
    for i, eqn in enumerate(jaxpr.eqns):
        for var in eqn.invars:
            if not isinstance(var, Literal):
                readers[var].append(i)
    results = {var for var in jaxpr.outvars if not isinstance(var, Literal)}

    eqns: list[Any] = list(jaxpr.eqns)
    for i, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive is not lax.concatenate_p or eqn.outvars[0] in results:
            continue
        indices = readers[eqn.outvars[0]]
        if indices and all(_convolves(jaxpr.eqns[j], eqn) for j in indices):
            eqns[i] = None
            for j in indices:
                eqns[j] = _of_parts(eqns[j], eqn.invars)
    return ClosedJaxpr(jaxpr.replace(eqns=[eqn for eqn in eqns if eqn]), closed.consts)


def _convolves(eqn: Any, concatenation: Any) -> bool:
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


def _of_parts(eqn: Any, parts: Any) -> Any:
    options = {"has_bias": eqn.primitive is biased_p, "follower": "", "slope": 0.0} | eqn.params
    options.pop("wrt", None)
    return eqn.replace(
        primitive=concatenated_convolution_p,
        invars=[*parts, *eqn.invars[1:]],
        params=options | {"parts": len(parts)},
    )


def _channel_axis(rank: int, *, channels_last: bool, **_: Any) -> int:
    return rank - 1 if channels_last else 1


def _of_whole(*operands: jax.Array, parts: int, **options: Any) -> jax.Array:
    axis = _channel_axis(operands[0].ndim, **options)
    return _bound(lax.concatenate(operands[:parts], axis), *operands[parts:], **options)


def _bound(
    x: jax.Array, w: jax.Array, *rest: jax.Array,
    has_bias: bool, follower: str, slope: float, **convolution: Any,
) -> jax.Array:  # fmt: skip
    """A convolution, its bias and what follows, as far as there are."""
    if follower:
        fusion = {"has_bias": has_bias, "follower": follower, "slope": slope}
        return fused_convolution_p.bind(x, w, *rest, **fusion, **convolution)
    if has_bias:
        return biased_p.bind(x, w, *rest, **convolution)
    return convolution_p.bind(x, w, wrt="out", **convolution)


def _on_cpu(*operands: jax.Array, parts: int, **options: Any) -> jax.Array:
    images, (w, *rest) = operands[:parts], operands[parts:]
    axis = _channel_axis(w.ndim, **options)
    elements = sum(x.size for x in images)
    if not (convolves_by_torch(images[0], w, options["shape"]) and convolves_parts(elements)):
        return _of_whole(*operands, parts=parts, **options)
    has_bias, follower, slope = (options.pop(k) for k in ("has_bias", "follower", "slope"))
    alone = {"has_bias": False, "slope": 0.0, **options}
    total, first_channel = None, 0
    for x in images:
        channels = x.shape[axis]
        weight = lax.slice_in_dim(w, first_channel, first_channel + channels, axis=1)
        first_channel += channels
        if total is None:
            bias = rest[:has_bias]
            total = _bound(x, weight, *bias, **{**alone, "has_bias": has_bias, "follower": ""})
        else:
            total = fused_convolution_p.bind(x, weight, total, **alone, follower="add")
    assert total is not None
    if not follower:
        return total
    others = [slope] if follower == "leaky_relu" else rest[has_bias:]
    return FOLLOWERS[follower](total, *others)


def _derivative(primals: Any, tangents: Any, **options: Any) -> Any:
    tangents = tuple(ad.instantiate_zeros(tangent) for tangent in tangents)
    return jax.jvp(functools.partial(_of_whole, **options), primals, tangents)


concatenated_convolution_p = cpu_primitive(
    "jaxsr_concatenated_convolution", _of_whole, _on_cpu, shape_of=shape_option
)
"""Of the parts and a weight, then the bias and the array that is added, where there are."""
ad.primitive_jvps[concatenated_convolution_p] = _derivative

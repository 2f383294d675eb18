"""Normalisation, random numbers and writes: the operations whose lowering is more than a function.

Imported once, before the first trace; each registers itself with the dispatcher.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxsr.interop._core.dispatch import Trace, cast, handles
from jaxsr.interop._core.dtypes import to_jax_dtype
from jaxsr.interop._core.schema import name_of
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.folding.layout import spread_channels, sum_columns
from jaxsr.interop.lowerings.batch_statistics import check_rows

aten = torch.ops.aten


# ---- batch normalisation


def batch_norm(
    trace: Trace,
    x: JaxTensor,
    weight: JaxTensor | None,
    bias: JaxTensor | None,
    mean: JaxTensor | None,
    var: JaxTensor | None,
    training: bool,
    momentum: Any,
    eps: float,
    axis: str | tuple[str, ...] | None = None,
) -> tuple[JaxTensor, JaxTensor, JaxTensor]:
    """Batch normalisation with its running statistics, summed in float32 at least.

    `momentum` may be a traced tensor (`momentum=None` averages cumulatively). `axis` names the mesh
    axis over whose shards the statistics are taken inside `shard_map`.
    """
    folded = x.folded
    value = x.array() if folded is None else folded.array
    wide = jnp.promote_types(value.dtype, jnp.float32)
    count = x.numel() // x.shape[1]

    def average(pixels: jax.Array) -> jax.Array:
        if folded is None:
            mean = jnp.mean(pixels, (0, *range(2, pixels.ndim)))
        else:
            total = jnp.sum(folded.holding(pixels).cleaned(), (0, 1, 2))
            mean = sum_columns(total, folded) / count
        return mean if axis is None else lax.pmean(mean, axis)

    def spread(channels: jax.Array) -> jax.Array:
        if folded is None:
            return channels.reshape((1, -1) + (1,) * (value.ndim - 2))
        return spread_channels(channels, folded)

    if training or mean is None or var is None:
        check_rows(x.shape[0], axis)
        xw = value.astype(wide)
        mu = average(xw)
        # Centred before squaring: E[x²] − E[x]² loses everything when the mean dwarfs the spread.
        centred = xw - spread(mu)
        sigma2 = average(jnp.square(centred))
        if training and mean is not None and var is not None:
            n = count * (1 if axis is None else lax.axis_size(axis))
            m = momentum.array() if isinstance(momentum, JaxTensor) else momentum
            with torch.no_grad():
                _track(trace, mean, lax.stop_gradient(mu), m)
                _track(trace, var, lax.stop_gradient(sigma2) * (n / max(n - 1, 1)), m)
    else:
        mu, sigma2 = mean.array().astype(wide), var.array().astype(wide)
        centred = value.astype(wide) - spread(mu)
    inverse = lax.rsqrt(sigma2 + eps)
    scale = inverse if weight is None else inverse * weight.array().astype(wide)
    shift = [] if bias is None else [bias.array().astype(wide)]

    def normalised(centred: jax.Array, scale: jax.Array, *shift: jax.Array) -> jax.Array:
        out = centred * spread(scale)
        for moved in shift:
            out = out + spread(moved)
        return out.astype(value.dtype)

    def again(value: jax.Array, mu: jax.Array, *rest: jax.Array) -> jax.Array:
        return normalised(value.astype(wide) - spread(mu), *rest)

    out: Any = normalised(centred, scale, *shift)
    if folded is not None:
        out = folded.made_into(out, again, mu, scale, *shift)
    with torch._C._DisableTorchDispatch():
        meta = torch.empty_like(x.meta)
        stats = torch.empty(mu.shape, dtype=x.meta.dtype, device="meta")
    needs = any(t is not None and t.needs_grad for t in (x, weight, bias))
    results = trace.wrap_like(out, meta, needs)
    saved = trace.wrap_like(cast(mu, value.dtype), stats, needs)
    saved_inverse = trace.wrap_like(cast(inverse, value.dtype), stats, needs)
    return results, saved, saved_inverse


def _track(trace: Trace, running: JaxTensor, new: jax.Array, momentum: Any) -> None:
    old = running.array()
    trace.write(running, (1 - momentum) * old + momentum * new, False)


@handles(
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
)
def _native_batch_norm(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    return batch_norm(trace, *args, **kwargs)


@handles(aten._native_batch_norm_legit.no_stats)
def _batch_norm_no_stats(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    x, weight, bias, training, momentum, eps = args
    return batch_norm(trace, x, weight, bias, None, None, training, momentum, eps)


@handles(aten._batch_norm_with_update.default)
def _batch_norm_with_update(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    x, weight, bias, mean, var, momentum, eps = args
    out = batch_norm(trace, x, weight, bias, mean, var, True, momentum, eps)
    return (*out, trace.wrap(jnp.zeros((0,), jnp.uint8)))


# ---- random numbers


def _uniform(key: jax.Array, shape: tuple, dtype: Any, low: float, high: float) -> jax.Array:
    # bfloat16's own bits give only 128 distinct values; torch draws in float32 as well.
    wide = jnp.promote_types(dtype, jnp.float32)
    return jax.random.uniform(key, shape, wide, low, high).astype(dtype)


def _draw(func: Any, key: jax.Array, shape: tuple, dtype: Any, args: tuple, kw: dict) -> jax.Array:
    name = func.overloadpacket.__name__.rstrip("_").removesuffix("_like")

    def arg(i: int, key_: str, default: Any = None) -> Any:
        return args[i] if len(args) > i else kw.get(key_, default)

    if name == "rand":
        return _uniform(key, shape, dtype, 0.0, 1.0)
    if name == "randn":
        return _normal(key, shape, dtype)
    if name == "uniform":
        return _uniform(key, shape, dtype, arg(1, "from", 0.0), arg(2, "to", 1.0))
    if name == "normal" and not isinstance(args[0], JaxTensor):
        return arg(0, "mean", 0.0) + arg(1, "std", 1.0) * _normal(key, shape, dtype)
    if name == "normal":
        return arg(1, "mean", 0.0) + arg(2, "std", 1.0) * _normal(key, shape, dtype)
    if name == "exponential":
        return jax.random.exponential(key, shape, _wide(dtype)) / arg(1, "lambd", 1.0)
    if name == "bernoulli":
        # The dispatcher leaves out arguments that equal the schema's default.
        p = arg(1, "p", 0.5 if func is aten.bernoulli_.float else None)
        p = args[0].array() if p is None else p
        p = p.array() if isinstance(p, JaxTensor) else p
        return jax.random.bernoulli(key, p, shape)
    raise UnsupportedTorchError(f"{name_of(func)} has no JAX counterpart; draw it with torch.rand")


def _wide(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)


def _normal(key: jax.Array, shape: tuple, dtype: Any) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.random.normal(key, shape, dtype)
    return jax.random.normal(key, shape, _wide(dtype)).astype(dtype)


_FRESH = [
    aten.rand.default, aten.rand_like.default, aten.randn.default, aten.randn_like.default,
    aten.bernoulli.default, aten.bernoulli.p, aten.normal.float_float,
]  # fmt: skip
_IN_PLACE = [
    aten.uniform_.default, aten.normal_.default, aten.bernoulli_.float, aten.bernoulli_.Tensor,
    aten.exponential_.default,
]  # fmt: skip


@handles(*_FRESH)
def _random_fresh(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    meta = trace._shadow(func, args, kwargs)
    name = func.overloadpacket.__name__
    rest = args[1:] if name.startswith("rand") else args
    if func is aten.normal.float_float:
        rest = args
    dtype = to_jax_dtype(meta.dtype)
    value = _draw(func, trace.next_key(), tuple(meta.shape), dtype, rest, kwargs)
    return trace.wrap_like(cast(value, dtype), meta, False)


@handles(*_IN_PLACE)
def _random_in_place(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    target = args[0]
    dtype = to_jax_dtype(target.dtype)
    value = _draw(func, trace.next_key(), tuple(target.shape), dtype, args, kwargs)
    # A draw has no gradient to what it overwrites.
    trace.write(target, value, False)
    return target


def _integers(trace: Trace, meta: torch.Tensor, low: int, high: int) -> JaxTensor:
    dtype = to_jax_dtype(meta.dtype)
    draw = jnp.int32 if jnp.issubdtype(dtype, jnp.inexact) else dtype
    value = jax.random.randint(trace.next_key(), tuple(meta.shape), low, high, draw)
    return trace.wrap_like(cast(value, dtype), meta, False)


@handles(aten.randint.default, aten.randint_like.default)
def _randint(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    high = args[1] if func is aten.randint_like.default else args[0]
    return _integers(trace, trace._shadow(func, args, kwargs), 0, high)


@handles(aten.randint.low, aten.randint_like.low_dtype)
def _randint_low(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    low, high = args[1:3] if func is aten.randint_like.low_dtype else args[:2]
    return _integers(trace, trace._shadow(func, args, kwargs), low, high)


@handles(aten.randperm.default)
def _randperm(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    meta = trace._shadow(func, args, kwargs)
    value = jax.random.permutation(trace.next_key(), args[0])
    return trace.wrap_like(cast(value, to_jax_dtype(meta.dtype)), meta, False)


@handles(aten.native_dropout.default)
def _native_dropout(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    x, p, train = args
    keep = jnp.ones(x.shape, bool)
    value = x.array()
    if train is not False and p > 0:
        keep = jax.random.bernoulli(trace.next_key(), 1 - p, tuple(x.shape))
        value = jnp.where(keep, value / (1 - p) if p < 1 else 0, 0).astype(value.dtype)
    with torch._C._DisableTorchDispatch():
        mask = torch.empty_like(x.meta, dtype=torch.bool)
        meta = torch.empty_like(x.meta)
    return trace.wrap_like(value, meta, x.needs_grad), trace.wrap_like(keep, mask, False)


# ---- writes


@handles(aten.copy_.default)
def _copy_(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    target, source = args[0], args[1]
    if target.const is not None and source.const is not None:
        target.cell.before_write()
        target.const.copy_(source.const)
        target.cell.version += 1
        return target
    trace._shadow(func, args, kwargs)
    trace.write(target, source.array(), source.needs_grad)
    return target


@handles(aten._local_scalar_dense.default)
def _item(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    const = args[0].const
    if const is None:
        raise UnsupportedTorchError(
            "the value of a traced tensor is needed in Python (.item(), float(), bool(), a branch "
            "or a size that depends on it); use torch.where, or make it an argument of apply"
        )
    return const.item()


@handles(aten.set_.source_Tensor, aten.resize_.default, aten.set_.default)
def _resize_(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    raise UnsupportedTorchError(
        f"{name_of(func)} changes a tensor's memory; make a new tensor instead"
    )


@handles(
    aten.squeeze_.default,
    aten.squeeze_.dim,
    aten.squeeze_.dims,
    aten.unsqueeze_.default,
    aten.transpose_.default,
    aten.t_.default,
)
def _reshape_in_place(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """A new shape for the same tensor object: it becomes a view of what it was."""
    target = args[0]
    if target.viewed:
        raise UnsupportedTorchError(
            f"{name_of(func)} on a tensor that has views; use the form without underscore"
        )
    before = target.twin()
    packet = getattr(aten, func.overloadpacket.__name__.rstrip("_"))
    viewed = trace.dispatch(getattr(packet, _OVERLOADS[func]), (before, *args[1:]), kwargs)
    with torch._C._DisableTorchDispatch():
        func(target, *args[1:], **kwargs)
    target.become(viewed)
    return target


_OVERLOADS = {
    aten.squeeze_.default: "default",
    aten.squeeze_.dim: "dim",
    aten.squeeze_.dims: "dims",
    aten.unsqueeze_.default: "default",
    aten.transpose_.default: "int",
    aten.t_.default: "default",
}

"""Random numbers: each draw takes a new key, made of the one that `apply` gets."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaxsr.interop._core.dtypes import cast, nan_where, to_jax_dtype, wide_dtype
from jaxsr.interop._core.index_bounds import check_values, place_in_code
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import handles
from jaxsr.interop._core.schema import name_of
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop.errors import UnsupportedTorchError


def _uniform(key: jax.Array, shape: tuple, dtype: np.dtype, low: float, high: float) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = dtype.type(0).real.dtype
        real, imaginary = _uniform(key, (2, *shape), part, low, high)
        return jax.lax.complex(real, imaginary)
    # bfloat16's own bits give only 128 distinct values.
    wide = wide_dtype(dtype)
    draws = jax.random.uniform(key, shape, wide, low, high).astype(dtype)
    if wide == dtype or not low < high:
        return draws
    return jnp.minimum(draws, np.nextafter(dtype.type(high), dtype.type(low)))  # never the bound


def _normal(key: jax.Array, shape: tuple, dtype: np.dtype) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.random.normal(key, shape, dtype)
    return jax.random.normal(key, shape, wide_dtype(dtype)).astype(dtype)


def _draw(
    func: torch._ops.OpOverload,
    key: jax.Array,
    shape: tuple,
    dtype: np.dtype,
    args: tuple,
    kw: dict,
) -> jax.Array:
    name = func.overloadpacket.__name__.rstrip("_").removesuffix("_like")

    def arg(i: int, key_: str, default: Any = None) -> Any:
        return args[i] if len(args) > i else kw.get(key_, default)

    if name == "rand":
        return _uniform(key, shape, dtype, 0.0, 1.0)
    if name == "randn":
        return _normal(key, shape, dtype)
    if name == "uniform":
        return _uniform(key, shape, dtype, arg(1, "from", 0.0), arg(2, "to", 1.0))
    if name == "normal":
        first = int(isinstance(args[0], JaxTensor))
        mean, std = arg(first, "mean", 0.0), arg(first + 1, "std", 1.0)
        return mean + nan_where(jnp.asarray(std) < 0, std * _normal(key, shape, dtype))
    if name == "exponential":
        wide = wide_dtype(dtype)
        # Never 0, as in torch: logarithms of draws stay finite.
        draws = jnp.maximum(jax.random.exponential(key, shape, wide), jnp.finfo(wide).eps / 2)
        return draws / arg(1, "lambd", 1.0)
    if name == "cauchy":
        turn = _uniform(key, shape, wide_dtype(dtype), -0.5, 0.5)
        return arg(1, "median", 0.0) + arg(2, "sigma", 1.0) * jnp.tan(jnp.pi * turn)
    if name == "log_normal":
        return jnp.exp(arg(1, "mean", 1.0) + arg(2, "std", 2.0) * _normal(key, shape, dtype))
    if name == "geometric":
        passed = jax.random.exponential(key, shape, wide_dtype(dtype)) / -jnp.log1p(-arg(1, "p"))
        return jnp.floor(passed) + 1
    if name == "bernoulli":
        # The dispatcher leaves out arguments that equal the schema's default.
        p = arg(1, "p", 0.5 if func is aten.bernoulli_.float else None)
        p = args[0].array() if p is None else p
        p = jnp.asarray(p.array() if isinstance(p, JaxTensor) else p)
        refused = ~((p >= 0) & (p <= 1))  # of NaN as well
        draws = jax.random.bernoulli(key, p.astype(wide_dtype(p.dtype)), shape)
        if jnp.issubdtype(dtype, jnp.inexact):
            return nan_where(refused, draws.astype(dtype))
        check_values(f"bernoulli{place_in_code()} draws with probabilities outside [0, 1]", refused)
        return draws
    raise UnsupportedTorchError(f"{name_of(func)} has no JAX counterpart; draw it with torch.rand")


_FRESH = [
    aten.rand.default, aten.rand_like.default, aten.randn.default, aten.randn_like.default,
    aten.bernoulli.default, aten.bernoulli.p, aten.normal.float_float, aten.rand.generator,
    aten.randn.generator,
]  # fmt: skip


_IN_PLACE = [
    aten.uniform_.default, aten.normal_.default, aten.bernoulli_.float, aten.bernoulli_.Tensor,
    aten.exponential_.default, aten.cauchy_.default, aten.log_normal_.default,
    aten.geometric_.default,
]  # fmt: skip


@handles(*_FRESH)
def _random_fresh(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> JaxTensor:
    meta = trace.meta_result(func, args, kwargs)
    name = func.overloadpacket.__name__
    parameters = args[1:] if name.startswith("rand") else args
    if func is aten.normal.float_float:
        parameters = args
    dtype = to_jax_dtype(meta.dtype)
    value = _draw(func, trace.next_key(), tuple(meta.shape), dtype, parameters, kwargs)
    return trace.wrap_like(cast(value, dtype), meta, False)


@handles(*_IN_PLACE)
def _random_in_place(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> JaxTensor:
    target = args[0]
    if not any(isinstance(a, torch.Tensor) for a in (*args[1:], *kwargs.values())):
        with plain_torch():
            func(torch.empty(0, dtype=target.dtype), *args[1:], **kwargs)  # or torch's own error
    dtype = to_jax_dtype(target.dtype)
    value = _draw(func, trace.next_key(), tuple(target.shape), dtype, args, kwargs)
    # A draw has no gradient to the values that it overwrites.
    trace.write(target, value, False)
    return target


_NORMAL = [aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor]


@handles(*_NORMAL)
def _normal_of_tensors(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> JaxTensor:
    """Torch gives no gradient to the mean or the standard deviation."""
    meta = trace.meta_result(func, args, kwargs)
    parameters = (args[0], args[1] if len(args) > 1 else kwargs.get("std", 1.0))
    mean, std = (p.array() if isinstance(p, JaxTensor) else p for p in parameters)
    dtype = to_jax_dtype(meta.dtype)
    noise = _normal(trace.next_key(), tuple(meta.shape), dtype)
    value = mean + nan_where(jnp.asarray(std) < 0, std * noise)
    return trace.wrap_like(jax.lax.stop_gradient(cast(value, dtype)), meta, False)


_RANDINT = [
    aten.randint.default, aten.randint.low, aten.randint_like.default,
    aten.randint_like.low_dtype,
]  # fmt: skip


@handles(*_RANDINT)
def _randint(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> JaxTensor:
    meta = trace.meta_result(func, args, kwargs)
    bounds = args[1:] if func.overloadpacket is aten.randint_like else args
    low, high = bounds[:2] if "low" in func._overloadname else (0, bounds[0])
    dtype = to_jax_dtype(meta.dtype)
    draw = dtype if jnp.issubdtype(dtype, jnp.integer) else jnp.dtype(jnp.int32)
    limits = jnp.iinfo(draw)
    # The bound is excluded; JAX takes one beyond 8 and 16 bits, which int32 holds.
    if low < limits.min or high > limits.max + (draw.itemsize < 4):
        raise UnsupportedTorchError(
            f"randint from {low} to {high}: JAX draws {draw} from {limits.min} to {limits.max} "
            "here; draw fewer numbers, or enable JAX's x64"
        )
    value = jax.random.randint(trace.next_key(), tuple(meta.shape), low, high, draw)
    return trace.wrap_like(cast(value, dtype), meta, False)


@handles(aten.randperm.default)
def _randperm(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> JaxTensor:
    meta = trace.meta_result(func, args, kwargs)
    value = jax.random.permutation(trace.next_key(), args[0])
    return trace.wrap_like(cast(value, to_jax_dtype(meta.dtype)), meta, False)


@handles(aten.poisson.default)
def _poisson(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> JaxTensor:
    """Torch gives no gradient to the rates."""
    meta = trace.meta_result(func, args, kwargs)
    rates = args[0].array()
    refused = ~((rates >= 0) & (rates <= _MOST_COUNTED))  # of NaN as well
    check_values(
        f"poisson{place_in_code()} draws with rates that are negative, NaN or beyond 2^30", refused
    )
    counts = jax.random.poisson(trace.next_key(), rates.astype(wide_dtype(rates.dtype)))
    return trace.wrap_like(cast(counts, to_jax_dtype(meta.dtype)), meta, False)


_MOST_COUNTED = 2**30
"""JAX counts in int32."""


@handles(aten.multinomial.default)
def _multinomial(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> JaxTensor:
    names = ("self", "num_samples", "replacement")
    call = {**dict(zip(names, args, strict=False)), **kwargs}
    weights, count = call["self"], call["num_samples"]
    array, replacement = weights.array(), call.get("replacement", False)
    logits = jnp.log(array.astype(wide_dtype(array.dtype)))  # JAX draws noise in their dtype
    key = trace.next_key()
    refused = ~((array >= 0) & jnp.isfinite(array)).all(-1) | ~(array > 0).any(-1)
    check_values(
        f"multinomial{place_in_code()} draws by weights that are negative, infinite, NaN or all 0",
        refused,
    )
    if replacement:
        draws = jax.random.categorical(key, logits, axis=-1, shape=(count, *logits.shape[:-1]))
        value = jnp.moveaxis(draws, 0, -1)
    elif count > logits.shape[-1]:
        raise RuntimeError(
            f"torch.multinomial draws {count} of {logits.shape[-1]} categories; more "
            "than there are need replacement=True"
        )
    else:
        # The largest of the logits with Gumbel noise are draws without replacement.
        value = jax.lax.top_k(logits + jax.random.gumbel(key, logits.shape), count)[1]
    return trace.wrap(cast(value, to_jax_dtype(torch.int64)), torch.int64)


@handles(aten.native_dropout.default)
def _native_dropout(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> tuple[JaxTensor, JaxTensor]:
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


DRAWS: dict[torch._ops.OpOverload, Callable] = {
    **dict.fromkeys(_FRESH, _random_fresh),
    **dict.fromkeys(_IN_PLACE, _random_in_place),
    **dict.fromkeys(_NORMAL, _normal_of_tensors),
    **dict.fromkeys(_RANDINT, _randint),
    aten.randperm.default: _randperm,
    aten.poisson.default: _poisson,
    aten.multinomial.default: _multinomial,
    aten.native_dropout.default: _native_dropout,
}
"""Every operator that draws, and its handler."""

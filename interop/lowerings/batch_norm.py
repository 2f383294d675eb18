"""Batch normalisation: its running statistics, and over which rows they are taken."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import nn

from jaxsr.interop._core.deferred import ChannelArray
from jaxsr.interop._core.dtypes import cast, wide_dtype
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import handles
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import running_trace
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.lowerings.channel_moments import affine, moments

# ---- statistics of a part of the batch


_WHOLE_BATCH = ContextVar("whole_batch", default=False)


@contextlib.contextmanager
def whole_batch_statistics() -> Generator[None]:
    """While a step is traced for one device's rows, but promises statistics of all rows."""
    token = _WHOLE_BATCH.set(True)
    try:
        yield
    finally:
        _WHOLE_BATCH.reset(token)


def check_rows(rows: int, axis: object) -> None:
    """Called where a normalisation takes statistics over `rows` samples.

    Args:
      rows: samples that share statistics; 1 where each has its own, as in InstanceNorm.
      axis: mesh axes that the statistics are exchanged over, or None.

    Raises:
      UnsupportedTorchError: the statistics would be those of one device's rows.
    """
    if _WHOLE_BATCH.get() and axis is None and rows > 1:
        raise UnsupportedTorchError(
            "batch normalisation outside of nn.BatchNorm1d, 2d and 3d cannot take its statistics "
            "over all devices in bfloat16; use one of these modules, --batch-norm local, or "
            "--dtype float32"
        )


# ---- aten operators


def batch_norm(
    trace: Trace,
    x: JaxTensor,
    weight: JaxTensor | None,
    bias: JaxTensor | None,
    mean: JaxTensor | None,
    var: JaxTensor | None,
    training: bool,
    momentum: JaxTensor | float,
    eps: float,
    axis: str | tuple[str, ...] | None = None,
) -> tuple[JaxTensor, JaxTensor, JaxTensor]:
    """Batch normalisation with its running statistics, summed in float32 at least.

    `momentum` may be a traced tensor (`momentum=None` averages cumulatively). `axis` names the mesh
    axis over whose shards the statistics are taken inside `shard_map`.
    """
    images: ChannelArray = x.settled() or _DenseImages(x.array())
    value = images.array
    wide = wide_dtype(value.dtype)

    if training or mean is None or var is None:
        check_rows(x.shape[0], axis)
        mu, sigma2 = images.moments(value.astype(wide))
        if axis is not None:
            mean_here, mu = mu, lax.pmean(mu, axis)
            sigma2 = lax.pmean(sigma2 + jnp.square(mean_here - mu), axis)
        if training and mean is not None and var is not None:
            n = x.numel() // x.shape[1] * (1 if axis is None else lax.axis_size(axis))
            m = momentum.array() if isinstance(momentum, JaxTensor) else momentum
            with torch.no_grad():
                _update_running(trace, mean, lax.stop_gradient(mu), m)
                _update_running(trace, var, lax.stop_gradient(sigma2) * (n / max(n - 1, 1)), m)
    else:
        mu, sigma2 = mean.array().astype(wide), var.array().astype(wide)
    inverse = lax.rsqrt(sigma2 + eps)
    scale = inverse if weight is None else inverse * weight.array().astype(wide)
    shift = jnp.zeros_like(scale) if bias is None else bias.array().astype(wide)

    def normalised(value: jax.Array, *of_channels: jax.Array) -> jax.Array:
        return images.affine(value.astype(wide), *of_channels).astype(value.dtype)

    of_channels = (mu, scale, shift)
    out = images.made_into(normalised(value, *of_channels), normalised, *of_channels)
    with torch._C._DisableTorchDispatch():
        meta = torch.empty_like(x.meta)
        stats = torch.empty(mu.shape, dtype=x.meta.dtype, device="meta")
    needs = any(t is not None and t.needs_grad for t in (x, weight, bias))
    results = trace.wrap_like(out, meta, needs)
    saved = trace.wrap_like(cast(mu, value.dtype), stats, needs)
    saved_inverse = trace.wrap_like(cast(inverse, value.dtype), stats, needs)
    return results, saved, saved_inverse


@dataclasses.dataclass(frozen=True)
class _DenseImages:
    """A `ChannelArray` in torch's own layout, (N, C, ...)."""

    array: jax.Array

    def moments(self, array: jax.Array) -> tuple[jax.Array, jax.Array]:
        return moments(array, axis=1)

    def affine(
        self, array: jax.Array, mean: jax.Array, scale: jax.Array, shift: jax.Array
    ) -> jax.Array:
        return affine(array, mean, scale, shift, axis=1)

    def made_into(
        self, array: jax.Array, make: Callable[..., jax.Array], *values: jax.Array
    ) -> jax.Array:
        return array


def _update_running(
    trace: Trace, running: JaxTensor, new: jax.Array, momentum: jax.Array | float
) -> None:
    old = running.array()
    trace.write(running, (1 - momentum) * old + momentum * new, False)


@handles(
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
)
def _native_batch_norm(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> tuple[JaxTensor, ...]:
    if func is aten._native_batch_norm_legit.no_stats:
        args = (*args[:3], None, None, *args[3:])
    out, *saved = batch_norm(trace, *args, **kwargs)
    if not args[5]:  # in evaluation torch saves no statistics
        saved = [trace.wrap(s.array()[:0], s.dtype) for s in saved]
    return out, *saved


@handles(aten._batch_norm_with_update.default)
def _batch_norm_with_update(
    trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
) -> tuple[JaxTensor, ...]:
    args = (*args[:5], True, *args[5:])
    return (*batch_norm(trace, *args, **kwargs), trace.wrap(jnp.zeros((0,), jnp.uint8)))


# ---- modules whose factor or mesh axis the aten operators cannot express


def replace_forwards(module: nn.Module, sync_axis: str | tuple[str, ...] | None) -> None:
    """Replaces `forward` of BatchNorm layers with momentum=None, or statistics over a mesh axis.

    Args:
      module: changed in place.
      sync_axis: mesh axes of `nn.SyncBatchNorm` layers, or None.
    """
    for layer in module.modules():
        if type(layer).forward not in _FORWARDS:
            continue
        assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
        axis = sync_axis if isinstance(layer, nn.SyncBatchNorm) else None
        if axis is not None or (layer.momentum is None and layer.track_running_stats):
            layer.forward = functools.partial(_forward, layer, axis)


_FORWARDS = (nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward)


def _forward(layer: Any, axis: str | tuple[str, ...] | None, x: torch.Tensor) -> torch.Tensor:
    layer._check_input_dim(x)
    trace: Trace = running_trace()
    tracked = layer.running_mean is not None
    batch = layer.training or not tracked
    factor: Any = layer.momentum
    if layer.training and tracked:
        layer.num_batches_tracked.add_(1)
        if factor is None:
            factor = 1.0 / layer.num_batches_tracked.to(torch.float32)
    weight, bias, mean, var = (
        None if t is None else trace.as_jax_tensor(t)
        for t in (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    )
    x = trace.as_jax_tensor(x)
    return batch_norm(trace, x, weight, bias, mean, var, batch, factor, layer.eps, axis)[0]

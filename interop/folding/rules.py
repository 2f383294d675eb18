"""How torch's operators compute on folded images; an operator without a rule gets them unfolded.

A rule is called with the policy, the operator, its arguments and its results on the meta device. It
returns the result, folded or not, or None where it does not apply.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.nn import functional as F

from jaxsr.interop._core.dtypes import cast, to_jax_dtype, wide_dtype, widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import Kind, folding_rule, folds, overrides, resolve
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import plain_torch
from jaxsr.interop.folding.convolution import convolve_folded
from jaxsr.interop.folding.elementwise import is_pointwise, leaves, pointwise
from jaxsr.interop.folding.layout import (
    Folded,
    aligned,
    fold,
    largest_channel,
    largest_pixel,
    refold,
    sum_channels,
    unfold,
)
from jaxsr.interop.folding.pixel_shuffle import Shuffled, convolve_shuffled
from jaxsr.interop.folding.policy import LaneFolding
from jaxsr.interop.folding.resize import enlarge, pool, shuffle
from jaxsr.interop.lowerings.convolution import per_axis
from jaxsr.interop.lowerings.resample import resize_images

Rule = Callable[..., Any]

WIDE_LANES = 256
_ALWAYS = {aten.convolution.default}
_ENTER = {
    aten.upsample_bilinear2d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_bicubic2d.default,
}


@dataclasses.dataclass(frozen=True)
class FoldingRewriter:
    """A trace asks it first about every operator: the core's only way into this package."""

    policy: LaneFolding

    def rewrite(
        self, trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict
    ) -> tuple[bool, Any]:
        """Runs `func` on folded images, if an argument is one or a convolution calls for it.

        Returns:
          Whether it did, and the resulting tensors.
        """
        tensors = [t for t in leaves(args, kwargs) if isinstance(t, JaxTensor)]
        if not any(t.deferred is not None for t in tensors) and func not in (_ALWAYS | _ENTER):
            return False, None
        rule = rule_of(func)
        if rule is None or all(t.const is not None for t in tensors):
            return False, None
        metas = trace.meta_result(func, args, kwargs)
        with jax.named_scope(f"folded_{func.overloadpacket.__name__}"):
            result: Any = rule(self.policy, func, args, kwargs, metas)
        if result is None:
            return False, None
        needs = any(t.needs_grad for t in tensors)

        def wrapped(value: Any, meta: torch.Tensor) -> JaxTensor:
            return trace.wrap_like(_fitted(value, meta, self.policy), meta, needs)

        if isinstance(metas, torch.Tensor):
            return True, wrapped(result, metas)
        return True, tuple(wrapped(*each) for each in zip(result, metas, strict=True))


def rule_of(func: torch._ops.OpOverload) -> Rule | None:
    """The rule for an operator, or None; a lowering of the user's goes before all but one."""
    entry = folding_rule(func)
    if entry is not None and resolve(func).kind is not Kind.USER:
        return entry.function
    return pointwise if is_pointwise(func) else None


def _fitted(value: Any, meta: torch.Tensor, folding: LaneFolding) -> Any:
    if not isinstance(value, (Folded, Shuffled)):
        if callable(value):
            return value
        value = cast(value, to_jax_dtype(meta.dtype))
        assert value.shape == tuple(meta.shape), (value.shape, tuple(meta.shape))
        return value
    assert value.shape == tuple(meta.shape), (value.shape, tuple(meta.shape))
    dtype = to_jax_dtype(meta.dtype)
    if value.dtype != dtype:
        value = value.holding(value.array.astype(dtype))
    if folding.channels_last or isinstance(value, Shuffled):
        return value
    narrow = value.array.shape[3] < folding.fewest_lanes
    return unfold(value) if value.fold == 1 or narrow else value


# ---- convolution


@folds(aten.convolution.default)
def _convolution(
    folding: LaneFolding, func: torch._ops.OpOverload, args: tuple, kwargs: dict, meta: torch.Tensor
) -> Folded | Shuffled | None:
    x, weight, bias, stride, padding, dilation, transposed, _, groups = args
    if transposed or groups != 1 or weight.dim() != 4 or x.dim() != 4 or min(meta.shape) < 1:
        return None
    stride, padding, dilation = ((*v, *v)[:2] for v in (stride, padding, dilation))
    values = weight.array(), None if bias is None else bias.array()
    if isinstance(x.deferred, Shuffled) and (*stride, *dilation) == (1, 1, 1, 1):
        result = convolve_shuffled(x.deferred, *values, padding)
        if result is not None:
            return result
    image = x.content()
    current = image.fold if isinstance(image, Folded) else None
    outputs, inputs = weight.shape[:2]
    size = folding.choose(
        inputs=inputs, outputs=outputs, width=x.shape[3], stride=stride[1], current=current
    )
    if size == 1 and not folding.channels_last:
        return None
    if not isinstance(image, Folded):
        image = fold(image, size)
    elif image.fold != size:
        image = refold(image, size)
    offsets = image.dtype.itemsize <= folding.offset_bytes
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    return convolve_folded(image, *values, **geometry, offsets=offsets)


# ---- reductions


@folds(aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default)
def _reduce(
    folding: LaneFolding, func: torch._ops.OpOverload, args: tuple, kwargs: dict, meta: torch.Tensor
) -> Folded | jax.Array | None:
    x, dims = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
    keep = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    image = x.content()
    axes = {d % 4 for d in dims} if dims else {0, 1, 2, 3}
    name = func.overloadpacket.__name__
    if name == "amin":
        image, name, sign = image.holding(-image.array), "amax", -1
    else:
        sign = 1
    if not jnp.issubdtype(image.dtype, jnp.floating):
        return None
    if axes == {1}:
        if not keep:
            return None
        if name == "amax":
            result = largest_channel(image)
        else:
            result = sum_channels(image.array, image) / (image.channels if name == "mean" else 1)
        return Folded(sign * result, (1,), image.width, image.fold, image.offset)
    if not {2, 3} <= axes or (1 in axes and name == "amax"):
        return None
    if name == "amax":
        result = sign * largest_pixel(image, batch=0 in axes)
    else:
        wide = image.holding(image.array.astype(wide_dtype(image.dtype)))
        sums = wide.channel_sums(by_row=0 not in axes)
        result = sums.reshape(-1, 1, 1, image.channels)
        if 1 in axes:
            result = jnp.sum(result, 3, keepdims=True)
        if name == "mean":
            result = result / math.prod(x.shape[a] for a in axes)
    return result.transpose(0, 3, 1, 2).reshape(tuple(meta.shape))


@folds(aten.mean.default, aten.sum.default)
def _reduce_all(
    folding: LaneFolding, func: torch._ops.OpOverload, args: tuple, kwargs: dict, meta: torch.Tensor
) -> Folded | jax.Array | None:
    return _reduce(folding, func, (args[0], [0, 1, 2, 3]), {}, meta)


# ---- neighbours


@folds(aten.max_pool2d_with_indices.default)
def _max_pool(
    folding: LaneFolding, func: torch._ops.OpOverload, args: tuple, kwargs: dict, meta: torch.Tensor
) -> tuple[Folded, Callable] | None:
    if not _halves(*args[1:], **kwargs):
        return None
    image = args[0].content()
    pooled = pool(image, first_largest)
    if pooled is None:
        return None
    lowering = resolve(func).function
    assert lowering is not None
    return pooled, lambda: lowering(args[0].array(), *args[1:], **kwargs)[1]


@jax.custom_jvp
def first_largest(*pixels: jax.Array) -> jax.Array:
    """Ties go to the first, and NaN wins, as in torch."""
    return _first_largest(pixels)[0]


def _first_largest(pixels: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The largest, and which it is."""
    best, index = pixels[0], jnp.zeros(pixels[0].shape, jnp.uint8)
    for k, value in enumerate(pixels[1:], 1):
        larger = (value > best) | jnp.isnan(value) & ~jnp.isnan(best)
        best = jnp.where(larger, value, best)
        index = jnp.where(larger, jnp.uint8(k), index)
    return best, index


@first_largest.defjvp
def _first_largest_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    best, index = _first_largest(primals)
    # XLA would keep the results of the comparisons, a byte for each, instead of one.
    index = jax.lax.optimization_barrier(index)
    total = tangents[0]
    for k, tangent in enumerate(tangents[1:], 1):
        total = jnp.where(index == k, tangent, total)
    return best, total


@folds(aten.avg_pool2d.default)
def _mean_pool(
    folding: LaneFolding, func: torch._ops.OpOverload, args: tuple, kwargs: dict, meta: torch.Tensor
) -> Folded | None:
    image, *options = args
    if len(options) > 3 or kwargs or not _halves(*options):
        return None

    def mean(first: jax.Array, *others: jax.Array) -> jax.Array:
        total = widened(first)
        for pixel in others:
            total = total + pixel
        return (total / 4).astype(first.dtype)

    return pool(image.content(), mean)


def _halves(
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> bool:
    """Whether a pooling has windows of 2 × 2 that neither overlap nor leave the image."""

    options = (kernel, 2), (stride or 2, 2), (padding, 0), (dilation, 1)
    regular = all({*per_axis(value, 2)} == {number} for value, number in options)
    return regular and not ceil_mode


@folds(aten.cat.default)
def _cat(
    folding: LaneFolding, func: torch._ops.OpOverload, args: tuple, kwargs: dict, meta: torch.Tensor
) -> Folded | None:
    tensors = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if meta.dim() != 4 or dim % 4 != 1 or any(t.dim() != 4 for t in tensors):
        return None
    contents = [t.content() for t in tensors]
    dtype = to_jax_dtype(meta.dtype)
    # The fold of the most lanes: the least has to move.
    size = max((c for c in contents if isinstance(c, Folded)), key=lambda c: c.array.size).fold
    offsets = {c.offset if isinstance(c, Folded) and c.fold == size else 0 for c in contents}
    offset = offsets.pop() if len(offsets) == 1 else 0

    def alike(content: Folded | jax.Array) -> Folded:
        if not isinstance(content, Folded):
            return fold(content, size)
        if content.fold != size:
            return refold(content, size)
        return content if offset else aligned(content)

    images = [alike(c) for c in contents]
    array = jnp.concatenate([i.array.astype(dtype) for i in images], axis=3)
    return Folded(array, sum((i.parts for i in images), ()), meta.shape[3], size, offset)


def _enlarging(method: str, aligns: bool) -> Rule:
    def run(
        folding: LaneFolding,
        func: torch._ops.OpOverload,
        args: tuple,
        kwargs: dict,
        meta: torch.Tensor,
    ) -> Folded | Shuffled | jax.Array | None:
        x, size, *options = args
        align = bool(options.pop(0)) if aligns else False
        scales = (*options, None, None)[:2]
        image = x.content()
        if folding.channels_last:
            if not isinstance(image, Folded):
                return None
            array = resize_images(image.array, size, scales, method, align, axes=(1, 2))
            return Folded(array, image.parts, size[1], 1)
        if not isinstance(image, Folded):
            # Wide images enter here if the result is narrow enough to gain from folding.
            ratio = size[1] // image.shape[3]
            is_wide = folding.fold_of(image.shape[1]) == 1
            if ratio < 2 or not is_wide or ratio * image.shape[1] > WIDE_LANES:
                return None
            image = fold(image, 1)
        elif (size[1] // image.width) * image.array.shape[3] > 2 * WIDE_LANES:
            return None
        return enlarge(image, size, method=method, align=align, scales=scales)

    return run


folds(aten.upsample_bilinear2d.default)(_enlarging("bilinear", True))
folds(aten.upsample_bicubic2d.default)(_enlarging("bicubic", True))
folds(aten.upsample_nearest2d.default)(_enlarging("nearest", False))


@folds(aten.pixel_shuffle.default)
def _pixel_shuffle(
    folding: LaneFolding, func: torch._ops.OpOverload, args: tuple, kwargs: dict, meta: torch.Tensor
) -> Folded | Shuffled | jax.Array | None:
    return shuffle(args[0].content(), args[1], fewest_lanes=folding.fewest_lanes)


# ---- normalisation of each sample; that of the batch is in `lowerings/batch_norm.py`


_INSTANCE_NORM = inspect.signature(F.instance_norm)


@overrides(F.instance_norm)
def _instance_norm(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    call = _INSTANCE_NORM.bind(*args, **kwargs)
    call.apply_defaults()
    x, weight, bias, eps = (call.arguments[n] for n in ("input", "weight", "bias", "eps"))
    image: Any = x.settled() if isinstance(x, JaxTensor) else None
    running = any(call.arguments[n] is not None for n in ("running_mean", "running_var"))
    if image is None or running or not call.arguments["use_input_stats"]:
        return func(*args, **kwargs)
    if math.prod(image.shape[2:]) < 2:
        return func(*args, **kwargs)  # torch refuses a single pixel
    weight, bias = (None if t is None else trace.as_jax_tensor(t) for t in (weight, bias))
    wide = image.array.astype(wide_dtype(image.dtype))
    mean, variance = image.moments(wide, by_row=True)
    scale = jax.lax.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight.array().astype(wide.dtype)
    shift = jnp.zeros_like(scale) if bias is None else bias.array().astype(wide.dtype)
    out = image.affine(wide, mean, scale, jnp.broadcast_to(shift, scale.shape))
    with plain_torch():
        meta = torch.empty_like(x.meta)
    needs = any(t is not None and t.needs_grad for t in (x, weight, bias))
    return trace.wrap_like(image.holding(out.astype(image.dtype)), meta, needs)

"""Torch functions that are overridden before torch runs them.

Their Python code reads values, or names a device. A new one goes here: `@overrides(function)`.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.recipes import known_value
from jaxsr.interop._core.registry import handles, overrides
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.trace import Trace
from jaxsr.interop.errors import UnsupportedTorchError

# ---- functions whose Python body looks at values


def _gaussian_nll(
    input: torch.Tensor,
    target: torch.Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """torch's formula; a negative variance, which it refuses, gives NaN."""
    if isinstance(var, float):
        var = var * torch.ones_like(input)
    elif var.size() != input.size() and input.size()[:-1] == var.size():
        var = var.unsqueeze(-1)
    var = torch.where(var < 0, torch.nan, var)
    floor = var.detach().clamp(min=eps)
    var = floor + var - var.detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.9189385332046727  # 0.5·log 2π
    return {"mean": torch.mean, "sum": torch.sum}.get(reduction, lambda x: x)(loss)


overrides(F.gaussian_nll_loss)(lambda trace, func, args, kwargs: _gaussian_nll(*args, **kwargs))


@overrides(F.one_hot)
def _one_hot(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    tensor = trace.as_jax_tensor(args[0])
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if tensor.const is not None:
        return func(*args, **kwargs)
    if classes == -1:
        raise UnsupportedTorchError("one_hot needs num_classes=: the largest value is not known")
    steps = torch.arange(classes)
    return (tensor.unsqueeze(-1) == steps).to(torch.int64)


@overrides(F.multi_margin_loss)
def _multi_margin_loss(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """On the meta device torch gives the loss of a single sample another shape."""

    def as_batch(
        input: torch.Tensor, target: torch.Tensor, *options: Any, **named: Any
    ) -> torch.Tensor:
        if target.ndim:
            return func(input, target, *options, **named)
        loss = func(input.reshape(1, -1), target.reshape(1), *options, **named)
        return loss.reshape(())

    return as_batch(*args, **kwargs)


@overrides(torch.fake_quantize_per_tensor_affine, torch.fake_quantize_per_channel_affine)
def _fake_quantize(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """Torch's operator lacks a form on the meta device; gradients are 0 outside the range."""
    per_channel = func is torch.fake_quantize_per_channel_affine
    return (_fake_quantized_channels if per_channel else _fake_quantized)(*args, **kwargs)


def _fake_quantized(
    input: torch.Tensor,
    scale: torch.Tensor | float,
    zero_point: torch.Tensor | int,
    quant_min: int,
    quant_max: int,
) -> torch.Tensor:
    scale = torch.as_tensor(scale, dtype=torch.float32)
    level = torch.round(input * (1 / scale)) + zero_point
    in_range = (level >= quant_min) & (level <= quant_max)
    value = ((level.clamp(quant_min, quant_max) - zero_point) * scale).detach()
    return torch.where(in_range, value + (input - input.detach()), value)


def _fake_quantized_channels(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> torch.Tensor:
    shape = [-1 if i == axis % input.ndim else 1 for i in range(input.ndim)]
    refused = (zero_point < quant_min) | (zero_point > quant_max)  # torch raises
    scale = torch.where(refused.any(), torch.nan, scale)
    scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    return _fake_quantized(input, scale, zero_point, quant_min, quant_max)


@overrides(torch.combinations)
def _combinations(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """Torch selects rows by a mask; which ones follows from the length."""
    return _combinations_of(*args, **kwargs)


def _combinations_of(
    input: torch.Tensor, r: int = 2, with_replacement: bool = False
) -> torch.Tensor:
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(input.shape[0]), r))
    return input[torch.tensor(rows, dtype=torch.int64).reshape(len(rows), r)]


def _cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: Any = None,
    aweights: Any = None,
) -> torch.Tensor:
    """torch's formula; negative weights, which it refuses, give NaN."""
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    weights = fweights
    if aweights is not None:
        weights = aweights if fweights is None else aweights * fweights
    columns = rows.shape[1]
    if columns == 0:
        return torch.cov(input)
    if weights is not None:
        refused = [(w < 0).any() for w in (fweights, aweights) if w is not None]
        rows = torch.where(torch.stack(refused).any(), torch.nan, rows)
    if weights is None:
        mean, total = rows.mean(1, keepdim=True), columns
    else:
        total = weights.sum()
        mean = (rows * weights).sum(1, keepdim=True) / total
    if aweights is not None and correction != 0:
        norm = total - correction * (weights * aweights).sum() / total
    else:
        norm = total - correction
    norm = norm.clamp(min=0) if isinstance(norm, torch.Tensor) else max(norm, 0)
    centred = rows - mean
    weighted = centred if weights is None else centred * weights
    return ((weighted @ centred.mH) / norm).squeeze()


@overrides(torch.cov, torch.Tensor.cov)
def _weighted_cov(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    has_weights = kwargs.get("fweights") is not None or kwargs.get("aweights") is not None
    return _cov(*args, **kwargs) if has_weights else func(*args, **kwargs)


@overrides(F.rrelu)
def _rrelu(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    return _rrelu_of(*args, **kwargs)


def _rrelu_of(
    input: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> torch.Tensor:
    slope: torch.Tensor | float = (lower + upper) / 2
    if training:
        slope = torch.empty_like(input).uniform_(lower, upper)
    out = torch.where(input > 0, input, input * slope)
    return input.copy_(out) if inplace else out


def _linear_cross_entropy(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """Without `options`: with chunks, torch computes required gradients in forward."""
    if kwargs.get("options") is None:
        return func(*args, **kwargs)
    dtype = (args[0] if args else kwargs["input"]).dtype
    wide = torch.promote_types(dtype, torch.float32)  # in which chunks are summed

    def widened(value: Any) -> Any:
        is_narrow = isinstance(value, torch.Tensor) and value.dtype == dtype
        return value.to(wide) if is_narrow else value

    args = tuple(widened(a) for a in args)
    kwargs = {name: widened(a) for name, a in kwargs.items()}
    return func(*args, **{**kwargs, "options": None}).to(dtype)


if hasattr(F, "linear_cross_entropy"):  # torch 2.13 and newer
    overrides(F.linear_cross_entropy)(_linear_cross_entropy)


@overrides(torch.pinverse, torch.Tensor.pinverse)
def _pinverse(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """Torch makes a float64 tensor of `rcond`."""
    return _pinverse_of(*args, **kwargs)


def _pinverse_of(input: torch.Tensor, rcond: float = 1e-15) -> torch.Tensor:
    return torch.linalg.pinv(input, rtol=torch.tensor(rcond, dtype=torch.float32))


@overrides(torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)
def _to_python(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> Any:
    tensor = args[0]
    const = known_value(tensor) if isinstance(tensor, JaxTensor) else tensor
    if const is None:
        raise UnsupportedTorchError(
            f"Tensor.{func.__name__}() needs the values of a traced tensor; stay in torch, or do "
            "this outside apply"
        )
    with torch._C._DisableTorchDispatch():
        return func(const, *args[1:], **kwargs)


@overrides(torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)
def _tensor(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """Stacks a list of traced tensors, without their gradients: torch reads the values."""
    is_method = func is torch.Tensor.new_tensor
    positional = args[1:] if is_method else args
    data = positional[0] if positional else kwargs["data"]
    if not isinstance(data, (list, tuple)) or not any(map(_is_traced, pytree.tree_leaves(data))):
        return func(*args, **kwargs)
    values = _stacked(data).detach()
    dtype = kwargs.get("dtype", positional[1] if len(positional) > 1 else None)
    values = values.to(dtype or (args[0].dtype if is_method else values.dtype))
    return values.requires_grad_() if kwargs.get("requires_grad") else values


def _is_traced(value: object) -> bool:
    return isinstance(value, JaxTensor) and known_value(value) is None


def _stacked(data: Any) -> torch.Tensor:
    if isinstance(data, (list, tuple)):
        return torch.stack([_stacked(part) for part in data])
    value = torch.as_tensor(data)
    if value.numel() != 1:
        raise ValueError(
            f"only one element tensors can be converted to Python scalars, got shape "
            f"{tuple(value.shape)} in a list; use torch.stack"
        )
    return value.reshape(())


_NEEDED = "the value of a traced tensor is needed in Python"
_LEAVE_OUT = "leave it out: arithmetic, losses and logged figures take the tensor itself"
_INSTEAD = {
    "item": f".item(); {_LEAVE_OUT}",
    "__float__": f"float(); {_LEAVE_OUT}",
    "__int__": "int() or a size; take sizes from shapes, or make it an argument of apply",
    "__index__": "an index, a size or range(); use torch.gather, or make it an argument of apply",
    "__bool__": "a branch, a loop, assert, and, or; use torch.where or torch.cond, "
    "torch._higher_order_ops.while_loop, or make it an argument of apply",
}
"""Functions that ask for the value, and the way to write each without it."""


@overrides(*(getattr(torch.Tensor, name) for name in _INSTEAD if name != "__bool__"))
def value_in_python(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> Any:
    """A tensor's value for code that asks. Who asks for its truth: `value_checks.py`."""
    try:
        return func(*args, **kwargs)
    except UnsupportedTorchError as error:
        if str(error).startswith(_NEEDED):
            error.args = (f"{_NEEDED}: {_INSTEAD[func.__name__]}{_switches(trace, args[0])}",)
        raise


def _switches(trace: Trace, value: torch.Tensor) -> str:
    """A hint at the option for buffers, where only parameters and buffers decide the value."""
    if not (isinstance(value, JaxTensor) and value.cell.input_free):
        return ""
    names = [
        name
        for name, tensor in trace.registered.items()
        if tensor.numel() == 1 and not isinstance(tensor, torch.nn.Parameter)
    ]
    listed = ", ".join(f'"{name}"' for name in names[:3]) + (", …" if len(names) > 3 else "")
    hint = "; if it is a switch in a buffer, name that in to_jax(static_buffers=[{}])"
    return hint.format(listed or "…")


@handles(aten._local_scalar_dense.default)
def _item(trace: Trace, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> float | complex:
    const = known_value(args[0])
    if const is None:
        raise UnsupportedTorchError(
            f"{_NEEDED} (.item(), float(), bool(), a branch or a size that depends on it); use "
            "torch.where or torch.cond, or make it an argument of apply"
        )
    return const.item()


@overrides(torch.Tensor.__deepcopy__)
def _deepcopy(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    tensor, memo = args[0], args[1]
    if not isinstance(tensor, JaxTensor):
        return func(*args, **kwargs)
    if id(tensor) not in memo:
        twin = tensor.detach().clone()
        twin.needs_grad = tensor.needs_grad
        if getattr(tensor, "_is_param", False):
            twin._is_param = True
        memo[id(tensor)] = twin
    return memo[id(tensor)]


@overrides(torch.tensor_split, torch.Tensor.tensor_split)
def _tensor_split(
    trace: Trace, func: Callable, args: Sequence, kwargs: dict
) -> tuple[torch.Tensor, ...]:
    sections = args[1] if len(args) > 1 else next(iter(kwargs.values()), None)
    if isinstance(sections, JaxTensor):
        known = known_value(sections)
        if known is None:
            raise UnsupportedTorchError(
                "tensor_split at traced places has no fixed shapes; split at Python numbers"
            )
        places = tuple(known.tolist()) if sections.dim() else known.item()
        options = {k: v for k, v in kwargs.items() if k == "dim"}
        return func(args[0], places, *args[2:], **options)
    return func(*args, **kwargs)


# ---- devices: JAX places arrays, so a device that torch code names means nothing


@overrides(torch.Tensor.to)
def _to(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    tensor, *positional = args
    kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
    other = kwargs.pop("other", None)
    if positional and isinstance(positional[0], torch.Tensor):
        other = positional.pop(0)
    if other is not None:
        kwargs["dtype"] = other.dtype
    flags = [v for v in positional if isinstance(v, bool)]  # non_blocking, copy
    if flags[1:]:
        kwargs["copy"] = flags[1]
    positional = [
        v for v in positional if not isinstance(v, (str, int, torch.device)) and v is not None
    ]
    if not positional and kwargs.get("dtype") is None and "memory_format" not in kwargs:
        return tensor.clone() if kwargs.get("copy") else tensor
    return func(tensor, *positional, **kwargs)


@overrides(torch.Tensor.cuda, torch.Tensor.cpu)
def _stay(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    return args[0]


@overrides(torch.Tensor.__lshift__, torch.Tensor.__rshift__)
def _shift(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """For bools torch shifts whole numbers, and says otherwise on the meta device."""
    x, places = args
    if isinstance(places, torch.Tensor) and places.dtype == torch.bool != x.dtype:
        places = places.to(x.dtype)
    elif x.dtype == torch.bool and not isinstance(places, torch.Tensor):
        x = x.long()
    return func(x, places)

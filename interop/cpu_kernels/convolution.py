"""Torch's convolution kernels in JAX programs for CPUs: the result, and both gradients."""

import functools
import struct
from collections.abc import Sequence
from typing import Any

import jax
import torch

from jaxsr.interop.cpu_kernels.torch_calls import torch_call, torch_kernel
from jaxsr.ops._cpu_calls import Attributes

aten = torch.ops.aten
Tensors = Sequence[torch.Tensor]


def _backward(g: Any, x: Any, w: Any, options: Attributes, *, which: int) -> torch.Tensor:
    """A gradient; the tensor that it belongs to gives shape and memory format alone."""
    mask = [which == i for i in range(3)]
    results = aten.convolution_backward(g, x, w, None, *_options(options), mask)
    return results[which]


def _options(options: Attributes) -> tuple[Any, ...]:
    spatial = len(options["stride"])
    return (
        options["stride"], options["padding"], options["dilation"], False, [0] * spatial,
        options["groups"][0],
    )  # fmt: skip


@torch_kernel("jaxsr_convolution")
def _out(inputs: Tensors, outputs: Tensors, options: Attributes) -> None:
    (x, w), out = inputs, outputs[0]
    _images(out, options).copy_(aten.convolution(_images(x, options), w, None, *_options(options)))


@torch_kernel("jaxsr_convolution_input")
def _input(inputs: Tensors, outputs: Tensors, options: Attributes) -> None:
    (w, g), out = inputs, _images(outputs[0], options)
    out.copy_(_backward(_images(g, options), out, w, options, which=0))


@torch_kernel("jaxsr_convolution_weight")
def _weight(inputs: Tensors, outputs: Tensors, options: Attributes) -> None:
    (x, g), out = inputs, outputs[0]
    out.copy_(_backward(_images(g, options), _images(x, options), out, options, which=1))


def _images(tensor: torch.Tensor, options: Attributes) -> torch.Tensor:
    """As torch numbers the axes of images."""
    return tensor.movedim(-1, 1) if options["last"][0] else tensor


def _stored(out: torch.Tensor, y: torch.Tensor) -> None:
    out.copy_(y)


def _relu(out: torch.Tensor, y: torch.Tensor) -> None:
    torch.clamp_min(y, 0, out=out)


def _leaky_relu(out: torch.Tensor, y: torch.Tensor, slope: float) -> None:
    aten.leaky_relu(y, slope, out=out)


_FOLLOWERS: dict[str, Any] = {
    "": _stored,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "hardswish": lambda out, y: aten.hardswish(y, out=out),
    "silu": lambda out, y: aten.silu(y, out=out),
    "logistic": lambda out, y: torch.sigmoid(y, out=out),
    "add": lambda out, y, other: torch.add(y, other, out=out),
}
"""Write what follows a convolution into its place in XLA's memory, in one pass.

oneDNN does the same within its convolution, but makes zeros of the NaN that meet a ReLU.
"""


def _fused(inputs: Tensors, outputs: Tensors, options: Attributes, *, follower: str) -> None:
    x, w, *rest = inputs
    bias = rest.pop(0) if options["has_bias"][0] else None
    y = aten.convolution(_images(x, options), w, bias, *_options(options))
    operands: list[Any] = [_images(other, options) for other in rest]
    if follower == "leaky_relu":
        operands = [struct.unpack("d", struct.pack("q", *options["slope"]))[0]]
    _FOLLOWERS[follower](_images(outputs[0], options), y, *operands)


_FUSED = {
    name: torch_kernel(f"jaxsr_convolution_bias{name and '_' + name}")(
        functools.partial(_fused, follower=name)
    )
    for name in _FOLLOWERS
}

_KERNELS = {"out": (_out, "xwg"), "input": (_input, "wgx"), "weight": (_weight, "xgw")}
"""For each result: its kernel; operands and result, of images x and g and the weight w."""


def convolution_by_torch(
    a: jax.Array,
    b: jax.Array,
    *,
    wrt: str,
    shape: Sequence[int],
    groups: int,
    channels_last: bool,
    **options: Any,
) -> jax.Array:
    """`convolution_p` by torch's kernels.

    Args:
      a: the first operand.
      b: the second one.
      wrt: which of the three arrays of a convolution is the result.
      shape: of the result.
      groups: of channels.
      channels_last: whether the last axis of images holds the channels, not axis 1.
      **options: `stride`, `padding` and `dilation` for each spatial axis.
    """
    kernel, roles = _KERNELS[wrt]
    images = tuple(role != "w" for role in roles)
    return torch_call(
        kernel,
        a,
        b,
        shape=tuple(shape),
        has_rows=images,
        channels_last=tuple(image and not channels_last for image in images),
        options=(*options.items(), ("groups", (groups,)), ("last", (channels_last,))),
    )


def fused_convolution_by_torch(
    x: jax.Array,
    w: jax.Array,
    *rest: jax.Array,
    follower: str,
    slope: float,
    has_bias: bool,
    shape: Sequence[int],
    groups: int,
    channels_last: bool,
    **options: Any,
) -> jax.Array:
    """`fused_convolution_p` by torch's kernels.

    Args:
      x: images.
      w: the weight.
      *rest: the bias, the array that is added.
      follower: what follows, by its name in `_FOLLOWERS`.
      slope: of a leaky ReLU.
      has_bias: whether `rest` begins with one.
      shape: of the result.
      groups: of channels.
      channels_last: whether the last axis of images holds the channels, not axis 1.
      **options: `stride`, `padding` and `dilation` for each spatial axis.
    """
    added = len(rest) - has_bias
    has_rows = (True, False, *[False] * has_bias, *[True] * added, True)
    bits = struct.unpack("q", struct.pack("d", slope))
    return torch_call(
        _FUSED[follower],
        x,
        w,
        *rest,
        shape=tuple(shape),
        has_rows=has_rows,
        channels_last=tuple(rows and not channels_last for rows in has_rows),
        options=(
            *options.items(), ("groups", (groups,)), ("last", (channels_last,)),
            ("has_bias", (has_bias,)), ("slope", bits),
        ),
    )  # fmt: skip

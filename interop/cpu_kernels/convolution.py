"""oneDNN's convolutions in JAX programs for CPUs: the result, and both gradients.

By oneDNN's own interface where it is installed, otherwise by torch.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from jaxsr.interop._core.operators import aten
from jaxsr.interop.cpu_kernels import onednn, patches
from jaxsr.interop.cpu_kernels.choice import weight_by_patches
from jaxsr.interop.cpu_kernels.torch_calls import float_bits, float_of, torch_call, torch_kernel
from jaxsr.xla_calls.calls import Attributes

Tensors = Sequence[torch.Tensor]


def _leaky_relu(out: torch.Tensor, y: torch.Tensor, slope: float) -> None:
    aten.leaky_relu(y, slope, out=out)


_FOLLOWERS: dict[str, Callable[..., object]] = {
    "": lambda out, y: out.copy_(y),
    "relu": lambda out, y: torch.clamp_min(y, 0, out=out),
    "leaky_relu": _leaky_relu,
    "hardswish": lambda out, y: aten.hardswish(y, out=out),
    "silu": lambda out, y: aten.silu(y, out=out),
    "logistic": lambda out, y: torch.sigmoid(y, out=out),
    "add": lambda out, y, other: torch.add(y, other, out=out),
}
"""Write the operations after a convolution into their place in XLA's memory, in one pass. `y` may
lie there.

oneDNN does the same within its convolution, but makes zeros of the NaN that meet a ReLU.
"""


def _out(inputs: Tensors, outputs: Tensors, options: Attributes, *, follower: str) -> None:
    x, w, *rest = inputs
    bias = rest.pop(0) if options["has_bias"][0] else None
    x, out = _images(x, options), _images(outputs[0], options)
    in_place = onednn.convolve("out", x, w, out, _geometry(options), bias)
    y = out if in_place else aten.convolution(x, w, bias, *_options(options))
    operands: list[torch.Tensor | float] = [_images(other, options) for other in rest]
    if follower == "leaky_relu":
        operands = [float_of(options["slope"])]
    if follower or not in_place:
        _FOLLOWERS[follower](out, y, *operands)


_FOLLOWED = {
    name: torch_kernel(f"jaxsr_convolution{name and '_' + name}")(
        functools.partial(_out, follower=name)
    )
    for name in _FOLLOWERS
}


@torch_kernel("jaxsr_convolution_input")
def _input(inputs: Tensors, outputs: Tensors, options: Attributes) -> None:
    (w, g), out = inputs, _images(outputs[0], options)
    g = _images(g, options)
    if not onednn.convolve("input", g, w, out, _geometry(options)):
        out.copy_(_backward(g, out, w, options, which=0))


@torch_kernel("jaxsr_convolution_weight")
def _weight(inputs: Tensors, outputs: Tensors, options: Attributes) -> None:
    (x, g), out = inputs, outputs[0]
    x, g = _images(x, options), _images(g, options)
    geometry = _geometry(options)
    if weight_by_patches(x, g, out, geometry):
        patches.weight_gradient(x, g, out, geometry)
    elif not onednn.convolve("weight", x, g, out, geometry):
        out.copy_(_backward(g, x, out, options, which=1))


def _backward(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, options: Attributes, *, which: int
) -> torch.Tensor:
    """A gradient; the tensor that it belongs to gives shape and memory format alone."""
    mask = [which == i for i in range(3)]
    results = aten.convolution_backward(g, x, w, None, *_options(options), mask)
    return results[which]


def _geometry(options: Attributes) -> onednn.Geometry:
    stride, padding, dilation = (tuple(options[name]) for name in ("stride", "padding", "dilation"))
    return onednn.Geometry(stride, padding, dilation, options["groups"][0])


def _options(options: Attributes) -> tuple:
    spatial = len(options["stride"])
    return (
        options["stride"], options["padding"], options["dilation"], False, [0] * spatial,
        options["groups"][0],
    )  # fmt: skip


def _images(tensor: torch.Tensor, options: Attributes) -> torch.Tensor:
    """As torch numbers the axes of images."""
    return tensor.movedim(-1, 1) if options["last"][0] else tensor


_ROLES = {"out": "xwg", "input": "wgx", "weight": "xgw"}
"""For each result: operands and result, of images x and g and the weight w."""
_GRADIENTS = {"input": _input, "weight": _weight}


def convolution_by_torch(
    a: jax.Array,
    b: jax.Array,
    *rest: jax.Array,
    wrt: str,
    shape: Sequence[int],
    groups: int,
    channels_last: bool,
    has_bias: bool = False,
    follower: str = "",
    slope: float = 0.0,
    **options: Any,
) -> jax.Array:
    """`convolution_p`, `biased_p` and `fused_convolution_p` by torch's kernels.

    Args:
      a: the first operand.
      b: the second one.
      *rest: the bias, the array that is added.
      wrt: which of the three arrays of a convolution is the result.
      shape: of the result.
      groups: of channels.
      channels_last: whether the last axis of images holds the channels, not axis 1.
      has_bias: whether `rest` begins with one.
      follower: the operation that follows, by its name in `_FOLLOWERS`.
      slope: of a leaky ReLU.
      **options: `stride`, `padding` and `dilation` for each spatial axis.
    """
    *operands, result = (role != "w" for role in _ROLES[wrt])
    added = len(rest) - has_bias
    has_rows = (*operands, *[False] * has_bias, *[True] * added, result)
    return torch_call(
        _FOLLOWED[follower] if wrt == "out" else _GRADIENTS[wrt],
        a,
        b,
        *rest,
        shape=tuple(shape),
        axes=tuple("n" if rows else "" for rows in has_rows),
        channels_last=tuple(rows and not channels_last for rows in has_rows),
        options=(
            *options.items(), ("groups", (groups,)), ("last", (channels_last,)),
            ("has_bias", (has_bias,)), ("slope", float_bits(slope)),
        ),
    )  # fmt: skip

"""Torch's convolution kernels in JAX programs for CPUs: the result, and both gradients."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

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
    x, w = inputs
    outputs[0].copy_(aten.convolution(x, w, None, *_options(options)))


@torch_kernel("jaxsr_convolution_input")
def _input(inputs: Tensors, outputs: Tensors, options: Attributes) -> None:
    w, g = inputs
    outputs[0].copy_(_backward(g, outputs[0], w, options, which=0))


@torch_kernel("jaxsr_convolution_weight")
def _weight(inputs: Tensors, outputs: Tensors, options: Attributes) -> None:
    x, g = inputs
    outputs[0].copy_(_backward(g, x, outputs[0], options, which=1))


@dataclasses.dataclass(frozen=True)
class _Roles:
    """What the operands and the result of a kernel are: images, with rows, or the weight."""

    target: str
    operands: str
    result: str


_ROLES = {
    "out": _Roles(_out, "xw", "g"),
    "input": _Roles(_input, "wg", "x"),
    "weight": _Roles(_weight, "xg", "w"),
}


def convolution_by_torch(
    a: jax.Array, b: jax.Array, *, wrt: str, shape: Sequence[int], **options: Any
) -> jax.Array:
    """`convolution_p` by torch's kernels, each simulated device its own rows.

    Args:
      a: the first operand.
      b: the second one.
      wrt: which of the three arrays of a convolution is the result.
      shape: of the result.
      **options: `stride`, `padding`, `dilation` for each spatial axis, `groups`.
    """
    # The partitioner's callback stands in the program as an address, which differs from process to
    # process and is no part of a kept program's key. The options are, as an operand.
    key = np.array(
        [*options["stride"], *options["padding"], *options["dilation"], options["groups"]]
    )
    return _partitioned(wrt, tuple(shape), tuple(options.items()))(a, b, key)


@functools.cache
def _partitioned(wrt: str, shape: tuple[int, ...], items: tuple[Any, ...]) -> Callable[..., Any]:
    roles, options = _ROLES[wrt], dict(items)

    def run(a: jax.Array, b: jax.Array, shape: Sequence[int] = shape) -> jax.Array:
        last = [role != "w" for role in (*roles.operands, roles.result)]
        result = jax.ShapeDtypeStruct(tuple(shape), a.dtype)
        ints = {k: v if isinstance(v, tuple) else (v,) for k, v in options.items()}
        return torch_call(roles.target, result, a, b, channels_last=last, **ints)

    function = custom_partitioning(lambda a, b, _: run(a, b))

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        specs = [each.sharding.spec for each in (*operands[:2], result)]
        rows = _rows(mesh, roles, specs, [each.shape for each in (*operands[:2], result)])
        placed = {
            "w": NamedSharding(mesh, PartitionSpec()),
            "x": NamedSharding(mesh, PartitionSpec(rows)),
            "g": NamedSharding(mesh, PartitionSpec(rows)),
        }

        def shard(a: jax.Array, b: jax.Array, _: jax.Array) -> jax.Array:
            if roles.result != "w":
                images = a if roles.operands[0] != "w" else b
                return run(a, b, (images.shape[0], *shape[1:]))
            out = run(a, b)
            return out if rows is None else lax.psum(out, rows)

        arguments = (*(placed[role] for role in roles.operands), placed["w"])
        return mesh, shard, placed[roles.result], arguments

    n = len(shape) - 2
    axes = {
        "x": ["n", "c", *(f"x{i}" for i in range(n))],
        "w": ["o", "i", *(f"k{i}" for i in range(n))],
        "g": ["n", "o", *(f"g{i}" for i in range(n))],
    }
    terms = [" ".join(axes[role]) for role in (*roles.operands, roles.result)]
    function.def_partition(
        partition=partition,
        sharding_rule=f"{terms[0]}, {terms[1]}, options -> {terms[2]}",
    )
    return function


def _rows(mesh: Any, roles: _Roles, specs: Sequence[Any], shapes: Sequence[Any]) -> Any:
    """The mesh axes over which the images are split, None where they are not, or not evenly."""
    for role, spec, shape in zip((*roles.operands, roles.result), specs, shapes, strict=True):
        if role != "w" and len(spec) and spec[0] is not None:
            names = spec[0] if isinstance(spec[0], tuple) else (spec[0],)
            parts = math.prod(mesh.shape[name] for name in names)
            return spec[0] if shape[0] % parts == 0 else None
    return None

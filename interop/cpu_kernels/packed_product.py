"""Products with weights of four bits by torch's kernel, in JAX programs for CPUs.

torch multiplies bfloat16 activations by levels from 0 to 15, with a bfloat16 scale and zero for
each group of inputs. It adds up in float32, and rounds its result to bfloat16. Wider levels are two
matrices of four bits each. Two ways lead from float32 activations to float32 results:

- `fast`: activations, scales and results are rounded to bfloat16, 8 bits.
- `exact`: activations and scales are two bfloat16 numbers each, 16 bits, and what rounding took
  from a result is computed by the kernel, too: the rounded result is a negative zero-point of one
  more group of inputs. `tests/interop/cpu_kernels/test_packed_product.py` holds the errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.operators import aten
from jaxsr.interop.cpu_kernels.torch_calls import threads_per_call, torch_kernel
from jaxsr.ops import _cpu_calls as cpu_calls
from jaxsr.ops._cpu_calls import Attributes

Tensors = Sequence[torch.Tensor]

GROUP = 32
"""Inputs of a group of the kernel."""
MOST_ROWS = 8
"""Tokens up to which the kernel is called; more are multiplied by unpacked weights."""
NAME = "jaxsr_packed_product"

# M tokens, I inputs, O outputs, G groups, P matrices of four bits


def available() -> bool:
    """Whether this machine has the kernel in vector instructions."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and cpu_calls.enabled()


@dataclass(frozen=True, kw_only=True)
class PackedMatrix:
    """A matrix as the kernel takes it."""

    planes: torch.Tensor
    """Levels in the kernel's own order, uint8, (P, O, I / 2), for `exact` with a group more."""
    tables: torch.Tensor
    """Scales and zeros, bfloat16, (P, halves, parts, G, O, 2). With two halves, the first and the
    second 16 inputs of each group have their own; parts add up."""


def pack(
    levels: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, *, bits: int, exact: bool
) -> PackedMatrix:
    """A matrix `levels · scale + zero` as the kernel takes it.

    Args:
      levels: (O, I) whole numbers; from 0 to 15 for 4 bits, from -128 to 127 for 8.
      scale: of each run of inputs, float32, (O, runs), runs of 16, or of 32 and its multiples.
      zero: like `scale`.
      bits: 4 or 8.
      exact: keep 16 bits of scales and zeros instead of 8.
    """
    inputs = levels.shape[1]
    run = inputs // scale.shape[1]
    if run > GROUP:
        scale, zero = (t.repeat_interleave(run // GROUP, 1) for t in (scale, zero))
    halves = 2 if run == GROUP // 2 else 1
    # The kernel subtracts 8 from each level.
    weights, zeros = [scale], [zero + 8 * scale]
    if bits == 8:
        weights.append(16 * scale)
        zeros.append(torch.zeros_like(zero))
    tables = [
        _table(scale[:, half::halves], zero[:, half::halves], exact=exact)
        for scale, zero in zip(weights, zeros, strict=True)
        for half in range(halves)
    ]
    shape = (len(weights), halves, *tables[0].shape)
    # The kernel's order has blocks of rows; int32 of all rows at once would take eight times more.
    parts = [_planes(part, bits=bits, exact=exact) for part in levels.split(_PACKED_AT_ONCE)]
    return PackedMatrix(planes=torch.cat(parts, 1), tables=torch.stack(tables).view(shape))


_PACKED_AT_ONCE = 4096
"""Rows; a multiple of the blocks of every instruction set."""


def _planes(levels: torch.Tensor, *, bits: int, exact: bool) -> torch.Tensor:
    levels = levels.int()
    planes = [levels] if bits == 4 else [levels & 15, (levels >> 4) + 8]
    if exact:
        extra = torch.full((len(levels), GROUP), 8, dtype=torch.int32)
        planes = [torch.cat((plane, extra), 1) for plane in planes]
    return torch.stack([aten._convert_weight_to_int4pack_for_cpu(p, 1) for p in planes])


def _table(scale: torch.Tensor, zero: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """(parts, G, O, 2); for `exact` with a last group whose scale and zero are 0."""
    values = torch.stack((scale.t(), zero.t()), -1)
    if not exact:
        return values.bfloat16()[None]
    values = torch.cat((values, torch.zeros_like(values[:1])))
    high = values.bfloat16()
    return torch.stack((high, (values - high.float()).bfloat16()))


@torch_kernel(NAME)
def _product(inputs: Tensors, outputs: Tensors, options: Attributes) -> None:
    product(*inputs, out=outputs[0])


def product(
    x: torch.Tensor, planes: torch.Tensor, tables: torch.Tensor, *, out: torch.Tensor
) -> None:
    """Writes `x Wᵀ`.

    Args:
      x: (M, I), bfloat16, or float32 for `exact`.
      planes: see `PackedMatrix`.
      tables: see `PackedMatrix`.
      out: (M, O), of any dtype.
    """
    halves, exact = tables.shape[1], tables.shape[2] == 2
    if exact:
        x = torch.nn.functional.pad(x, (0, GROUP))
        high = x.bfloat16()
        parts = [high, (x - high.float()).bfloat16()]
    else:
        parts = [x]
    results: list[torch.Tensor] = []
    for half in range(halves):
        rows = [part if halves == 1 else _half(part, half) for part in parts]
        for plane, table in zip(planes, tables[:, half], strict=True):
            one = _exact(rows, plane, table) if exact else _multiply(rows[0], plane, table[0])
            results.append(one)
    if len(results) == 1:
        out.copy_(results[0])
    else:
        out.copy_(sum((r.float() for r in results[1:]), results[0].float()))


def _half(x: torch.Tensor, half: int) -> torch.Tensor:
    """The activations with one half of each group alone."""
    groups = x.view(len(x), -1, 2, GROUP // 2)
    halved = torch.zeros_like(groups)
    halved[:, :, half] = groups[:, :, half]
    return halved.view(x.shape)


def _exact(rows: Sequence[torch.Tensor], plane: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    count = len(rows[0])
    rounded, small = _multiply(torch.cat(tuple(rows)), plane, table[0]).split(count)
    rest = _multiply(rows[0], plane, table[1]).float() + small.float()
    scratch = table[0].clone()
    for row in range(count):
        scratch[-1, :, 1] = -rounded[row]
        x = rows[0][row : row + 1].clone()
        x[0, -GROUP] = 1
        rest[row] += _multiply(x, plane, scratch)[0].float()
    return rounded.float() + rest


def _multiply(x: torch.Tensor, plane: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return aten._weight_int4pack_mm_for_cpu(x, plane, GROUP, table)


def call(x: jax.Array, planes: jax.Array, tables: jax.Array) -> jax.Array:
    """`product` in a program for CPUs; x and the result are (M, I) and (M, O)."""
    result = jax.ShapeDtypeStruct((x.shape[0], planes.shape[1]), jnp.float32)
    activations = x.astype(jnp.float32 if tables.shape[2] == 2 else jnp.bfloat16)
    y = cpu_calls.call(NAME, result, activations, planes, tables, threads=(threads_per_call(),))
    return y.astype(x.dtype)

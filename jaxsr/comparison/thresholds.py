"""When a difference is more than rounding.

A sum of n products in floating point, taken in any order, errs by about √n units of roundoff of the
terms' scale if roundings are independent (Higham, *Accuracy and Stability of Numerical Algorithms*,
2nd ed., §2.8 and §3.1; n units in the worst case, which real sums do not come near). Two correct
implementations differ by two such errors, and libraries' exp, tanh, rsqrt or cos err by up to 4
units. Where the result is small because large terms cancel, that scale is not the result's: then
the operation itself tells, by how much its result moves when its inputs are rounded once.
"""

import math
from collections.abc import Sequence

from jaxsr.comparison.calls import Call

# Unit roundoff: half the distance from 1 to the next number.
ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}

LOCAL_FACTOR = 16.0
"""Units of float32 roundoff, times √n, that one operation may differ by: two sides, each 4 units
off in an elementary function or in the few roundings of a compound one, doubled."""

NARROW_FACTOR = 8.0
"""Units of a dtype narrower than float32. Engines sum and evaluate in float32 there, so nothing
grows with n: operands and result are rounded once on each side, 4 units, doubled."""

NOISE_FACTOR = 2.0
"""Times the effect of moving the inputs by one step (two units), times √n: two sides, and the tail
of one random draw."""

TOTAL_FACTOR = 16.0
"""Units per √depth of the total error: independent errors of all operations before add up like the
root of their number, and layers amplify them. No operation of 11,731 of SmolLM2-135M in float32
reaches 60 % of the limit set by this and the next factor."""

AMPLIFIED = 128.0
"""Units that layers may make of the first few errors, before the root has become large: instance
normalisation reaches 90 within the first 20 operations of Fast-SRGAN."""

NEVER_ROUNDING = 0.25
"""A relative difference that is called wrong whatever the dtype."""


def roundoff_of(dtypes: Sequence[str]) -> float:
    """Rounding error of the coarsest floating dtype named; 0 if there is none."""
    return max((ROUNDOFF.get(name, 0.0) for name in dtypes), default=0.0)


def call_roundoff(call: Call) -> float:
    """The unit roundoff that a call's result cannot be better than."""
    dtypes = [t.dtype for t in (*call.operands, *call.results)]
    return roundoff_of(dtypes)


def pair_roundoff(first: Call, second: Call, declared: float) -> float:
    """The unit roundoff of an operation on both sides.

    Args:
      first, second: the operation.
      declared: of the coarser dtype of the two sides. A narrower cast inside the second side is a
        fault to find, so it does not raise the threshold.
    """
    return max(call_roundoff(first), min(call_roundoff(second), declared))


def local_threshold(first: Call, second: Call, declared: float) -> float:
    """The difference of two correct implementations of one operation on equal inputs."""
    unit = pair_roundoff(first, second, declared)
    return _rounding(unit, LOCAL_FACTOR, NARROW_FACTOR, reduction_length(first))


def gradient_threshold(
    first: Call, second: Call, declared: float, operands: Sequence[int]
) -> float:
    """The same of the gradients of some operands: a weight's sums over all that it was used for."""
    outputs = sum(math.prod(result.shape) for result in first.results)
    least = min(math.prod(first.operands[k].shape) for k in operands)
    length = max(1, outputs * reduction_length(first) // max(least, 1))
    unit = pair_roundoff(first, second, declared)
    return _rounding(unit, LOCAL_FACTOR, NARROW_FACTOR, length)


def _rounding(unit: float, factor: float, narrow: float, length: int) -> float:
    single = ROUNDOFF["float32"]
    if unit <= single:
        return factor * unit * math.sqrt(length)
    return narrow * unit + factor * single * math.sqrt(length)


def total_threshold(first: Call, depth: int, *, unit: float) -> float:
    """The difference of two correct runs after `depth` operations that round.

    Args:
      first: the operation.
      depth: operations before it that compute, not only move, numbers.
      unit: coarsest roundoff met so far.
    """
    inherited = unit * (AMPLIFIED + TOTAL_FACTOR * math.sqrt(max(depth, 1)))
    rounding = _rounding(unit, LOCAL_FACTOR, NARROW_FACTOR, reduction_length(first))
    return min(inherited + rounding, NEVER_ROUNDING)


def logits_rounding(unit: float, depth: int) -> float:
    """The movement of logits by rounding after `depth` operations, relative to their size."""
    return TOTAL_FACTOR * unit * math.sqrt(max(depth, 1))


_ROW_SUMS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "cumsum", "logsumexp", "normalize")
_PRODUCTS = ("matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "tensordot")
_MOVES = (
    "view", "reshape", "transpose", "permute", "contiguous", "expand", "expand_as", "getitem",
    "chunk", "split", "unbind", "squeeze", "unsqueeze", "flatten", "unflatten", "cat", "stack",
    "pad", "clone", "detach", "repeat", "repeat_interleave", "flip", "roll", "rot90", "select",
    "narrow", "movedim", "swapaxes", "T", "mT", "data", "pixel_shuffle", "pixel_unshuffle", "to",
    "float", "setitem", "masked_fill", "where", "embedding", "gather", "index_select", "copy_",
    "amax", "amin", "max_pool2d", "relu", "neg", "abs", "zeros", "ones", "arange", "full", "eye",
    "zeros_like", "ones_like", "new_zeros", "tril", "triu", "clamp", "max", "min", "argmax",
)  # fmt: skip


def moves_only(operation: str) -> bool:
    """Whether an operation does not round (casts aside): it moves, selects or compares numbers."""
    return operation in _MOVES


def reduction_length(call: Call) -> int:
    """How many terms a result of the call sums up."""
    name, shapes = call.operation, [o.shape for o in call.operands]
    if not shapes or moves_only(name):
        return 1
    first, out = shapes[0], call.results[0].shape
    weight = shapes[1] if len(shapes) > 1 else ()
    if name in ("linear", "bilinear") and weight:
        return weight[-1]
    if name in ("conv1d", "conv2d", "conv3d") and weight:
        return math.prod(weight[1:])
    if name.startswith("conv_transpose") and weight:
        return math.prod(weight) // max(weight[1], 1)
    if name == "einsum" and weight:
        # Indices in an operand and not in the result are summed; at worst all that are.
        return max(1, math.isqrt(math.prod(first) * math.prod(weight) // max(math.prod(out), 1)))
    if name in _PRODUCTS and first:
        operand = first if name not in ("addmm", "baddbmm") else weight
        return operand[-1] if operand else 1
    if name == "scaled_dot_product_attention":
        return max(first[-1], weight[-2] if len(weight) > 1 else 1)
    if name in _ROW_SUMS and first:
        return max(first[-1], 1)
    if name in ("instance_norm", "group_norm") and len(first) > 1:
        return max(math.prod(first) // (first[0] * first[1]), 1)
    if name == "batch_norm" and len(first) > 1:
        training = len(shapes) < 3 or "True" in call.settings
        return max(math.prod(first) // first[1], 1) if training else 1
    if name == "interpolate":
        return 16  # the taps of a bicubic kernel
    return max(1, math.prod(first) // max(math.prod(out), 1))

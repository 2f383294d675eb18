"""Least and greatest number that an integer tensor of a trace may hold.

Constants, masks, narrow integers, `arange`, indices and shapes have bounds by their nature; a rule
for each operator derives the bounds of its result. Other values have the bounds of the int32 that
carries them, or no bounds if 64 bits do.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.schema import Call, call_by_name
from jaxsr.interop._core.tensor import JaxTensor

Bounds = tuple[int, int]
Rule = Callable[[Call, torch.Tensor], Bounds | None]
"""Bounds of a result from the arguments by name, and the result on the meta device."""

INT32 = -(1 << 31), (1 << 31) - 1
_NARROW = (torch.bool, torch.uint8, torch.int8, torch.int16)
_RULES: dict[Any, Rule] = {}
_PLACES: set[Any] = set()
"""Operators of several results, of which the first are elements and the others their places."""


def fits(bounds: Bounds | None) -> bool:
    """Whether int32 holds all numbers within these bounds."""
    return bounds is not None and INT32[0] <= bounds[0] and bounds[1] <= INT32[1]


def bounds_of(value: Any) -> Bounds | None:
    """The bounds of a Python integer or a tensor; None if they are unknown."""
    if isinstance(value, int):
        return int(value), int(value)
    if not isinstance(value, JaxTensor) or value.dtype.is_floating_point or value.dtype.is_complex:
        return None
    if value.const is not None:
        return (int(value.const.min()), int(value.const.max())) if value.const.numel() else (0, 0)
    if value.dtype in _NARROW:
        kind = np.iinfo(np.uint8 if value.dtype == torch.bool else str(value.dtype)[6:])
        return (0, 1) if value.dtype == torch.bool else (int(kind.min), int(kind.max))
    if value.cell.bounds is not None and value.root.dtype == value.dtype:
        return value.cell.bounds
    carried = None if value.selection is not None else value._array().dtype
    return INT32 if carried == jnp.int32 else None


def result_bounds(func: Any, args: tuple, kwargs: Call, meta: torch.Tensor, number: int = 0) -> Any:
    """The bounds of an operator's result, or None; `number` counts those of several results."""
    packet = getattr(func, "overloadpacket", None)
    if packet in _PLACES and number:
        return 0, max(args[0].numel(), 1)
    rule = _RULES.get(packet)
    return None if rule is None else rule(call_by_name(func, args, kwargs), meta)


def hull(*bounds: Bounds | None) -> Bounds | None:
    """The bounds around all of these; None where one is unknown."""
    known = [b for b in bounds if b is not None]
    if len(known) < len(bounds) or not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operators."""

    def register(rule: Rule) -> Rule:
        for name in names:
            _RULES[getattr(aten, name)] = rule
        return rule

    return register


def _times(bounds: Bounds | None, count: int) -> Bounds | None:
    """Bounds of a sum of up to `count` numbers."""
    if bounds is None:
        return None
    return min(0, bounds[0] * count), max(0, bounds[1] * count)


def _product(first: Bounds | None, second: Bounds | None) -> Bounds | None:
    if first is None or second is None:
        return None
    products = [a * b for a in first for b in second]
    return min(products), max(products)


def _sum(first: Bounds | None, second: Bounds | None) -> Bounds | None:
    if first is None or second is None:
        return None
    return first[0] + second[0], first[1] + second[1]


def _terms(call: Call, meta: torch.Tensor) -> int:
    """How many numbers a reduction puts together."""
    return math.ceil(call["self"].numel() / max(meta.numel(), 1))


# ---- operators whose results are elements of their arguments


@_rule(
    "index", "index_select", "gather", "take", "clone", "flip", "roll", "repeat", "max", "min",
    "amax", "amin", "sort", "topk", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin",
    "_to_copy", "maximum", "minimum",
)  # fmt: skip
def _elements(call: Call, meta: torch.Tensor) -> Bounds | None:
    first = bounds_of(call["self"])
    other = call.get("other")
    return first if other is None else hull(first, bounds_of(other))


@_rule("tril", "triu", "diag_embed", "fmod", "__rshift__", "bitwise_right_shift")
def _elements_or_less(call: Call, meta: torch.Tensor) -> Bounds | None:
    return hull(bounds_of(call["self"]), (0, 0))


@_rule(
    "where", "masked_fill", "cat", "stack", "scatter", "slice_scatter", "select_scatter",
    "diagonal_scatter", "masked_scatter", "index_copy", "index_fill", "constant_pad_nd", "full",
    "full_like", "new_full", "copy", "fill",
)  # fmt: skip
def _either(call: Call, meta: torch.Tensor) -> Bounds | None:
    if call.get("reduce") is not None:
        return None
    names = ("self", "other", "value", "src", "source", "fill_value")
    parts = [call[name] for name in names if name in call and not _is_shape(name, call)]
    parts += call.get("tensors", [])
    return hull(*(_whole(part) for part in parts))


def _is_shape(name: str, call: Call) -> bool:
    """Whether only the shape of this argument matters."""
    return name == "self" and "fill_value" in call


def _whole(value: Any) -> Bounds | None:
    """Also of a float that stands for a whole number."""
    whole = isinstance(value, float) and value.is_integer()
    return bounds_of(int(value) if whole else value)


@_rule("clamp", "clamp_min", "clamp_max")
def _clipped(call: Call, meta: torch.Tensor) -> Bounds | None:
    low, high = bounds_of(call["self"]) or (-(1 << 63), (1 << 63) - 1)
    least, most = (_whole(call.get(name)) for name in ("min", "max"))
    if least is not None:
        low, high = max(low, least[0]), max(high, least[1])
    elif call.get("min") is not None:
        high = (1 << 63) - 1
    if most is not None:
        low, high = min(low, most[0]), min(high, most[1])
    elif call.get("max") is not None:
        low = -(1 << 63)
    return low, high


# ---- places and numbers of elements


@_rule(
    "argmax", "argmin", "argsort", "nonzero", "count_nonzero", "bincount", "multinomial",
)  # fmt: skip
def _places(call: Call, meta: torch.Tensor) -> Bounds:
    return 0, max(call["self"].numel(), 1)


@_rule("searchsorted", "bucketize")
def _buckets(call: Call, meta: torch.Tensor) -> Bounds:
    return 0, call["sorted_sequence" if "sorted_sequence" in call else "boundaries"].shape[-1]


@_rule("arange")
def _steps(call: Call, meta: torch.Tensor) -> Bounds | None:
    start, step = call.get("start") or 0, call.get("step") or 1
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    last = start + max(meta.numel() - 1, 0) * step
    return min(start, last), max(start, last)


@_rule("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones")
def _zeros_or_ones(call: Call, meta: torch.Tensor) -> Bounds:
    return 0, 1


@_rule("randint", "randint_like")
def _drawn(call: Call, meta: torch.Tensor) -> Bounds:
    return call.get("low") or 0, call["high"] - 1


@_rule("randperm")
def _shuffled(call: Call, meta: torch.Tensor) -> Bounds:
    return 0, max(meta.numel() - 1, 0)


# ---- arithmetic


@_rule("add")
def _added(call: Call, meta: torch.Tensor) -> Bounds | None:
    return _sum(bounds_of(call["self"]), _product(bounds_of(call["other"]), _whole(call["alpha"])))


@_rule("sub")
def _subtracted(call: Call, meta: torch.Tensor) -> Bounds | None:
    return _added({**call, "alpha": -call["alpha"]}, meta)


@_rule("rsub")
def _subtracted_from(call: Call, meta: torch.Tensor) -> Bounds | None:
    return _subtracted({**call, "self": call["other"], "other": call["self"]}, meta)


@_rule("neg")
def _negated(call: Call, meta: torch.Tensor) -> Bounds | None:
    return _product(bounds_of(call["self"]), (-1, -1))


@_rule("abs")
def _absolute(call: Call, meta: torch.Tensor) -> Bounds | None:
    first = bounds_of(call["self"])
    return None if first is None else (0, max(abs(first[0]), abs(first[1])))


@_rule("sign", "sgn")
def _signs(call: Call, meta: torch.Tensor) -> Bounds:
    return -1, 1


@_rule("sum", "cumsum", "trace")
def _summed(call: Call, meta: torch.Tensor) -> Bounds | None:
    first, shape = bounds_of(call["self"]), call["self"].shape
    count = _terms(call, meta)
    if tuple(meta.shape) == tuple(shape) and isinstance(call.get("dim"), int):
        count = shape[call["dim"]] if shape else 1
    return _times(first, count)


@_rule("mul")
def _multiplied(call: Call, meta: torch.Tensor) -> Bounds | None:
    return _product(bounds_of(call["self"]), bounds_of(call["other"]))


@_rule("dot", "mm", "bmm", "mv")
def _matrix_product(call: Call, meta: torch.Tensor) -> Bounds | None:
    second = next(call[name] for name in ("tensor", "mat2", "vec") if name in call)
    return _times(_product(bounds_of(call["self"]), bounds_of(second)), call["self"].shape[-1])


@_rule("square")
def _squared(call: Call, meta: torch.Tensor) -> Bounds | None:
    return _product(_absolute(call, meta), _absolute(call, meta))


@_rule("pow")
def _power(call: Call, meta: torch.Tensor) -> Bounds | None:
    base, exponent = bounds_of(call["self"]), bounds_of(call["exponent"])
    if base is None or exponent is None or exponent[0] < 0 or exponent[1] > 64:
        return None
    most = max(abs(base[0]), abs(base[1]), 1) ** exponent[1]
    is_even = exponent[0] == exponent[1] and exponent[0] % 2 == 0
    return (0 if base[0] >= 0 or is_even else -most), most


@_rule("__lshift__", "bitwise_left_shift")
def _shifted(call: Call, meta: torch.Tensor) -> Bounds | None:
    places = bounds_of(call["other"])
    if places is None or places[0] < 0 or places[1] > 64:
        return None
    return _product(bounds_of(call["self"]), (1 << places[0], 1 << places[1]))


@_rule("remainder")
def _remainder(call: Call, meta: torch.Tensor) -> Bounds | None:
    divisor = bounds_of(call["other"])
    if divisor is None:
        return None
    return min(divisor[0] + 1, 0), max(divisor[1] - 1, 0)


@_rule("div", "floor_divide")
def _quotient(call: Call, meta: torch.Tensor) -> Bounds | None:
    first, divisor = bounds_of(call["self"]), bounds_of(call["other"])
    if first is None or divisor is None:
        return None
    if divisor[0] > 0:
        limits = [x // d for x in first for d in divisor]
        return min(*limits, 0 if first[1] >= 0 else limits[0]), max(*limits, 0)
    most = max(abs(first[0]), abs(first[1]))
    return -most, most


@_rule("bitwise_and")
def _common_bits(call: Call, meta: torch.Tensor) -> Bounds | None:
    pair = [bounds_of(call["self"]), bounds_of(call["other"])]
    limits = [b[1] for b in pair if b is not None and b[0] >= 0]
    return (0, min(limits)) if limits else _bits(call, meta)


@_rule("bitwise_or", "bitwise_xor")
def _bits(call: Call, meta: torch.Tensor) -> Bounds | None:
    both = hull(bounds_of(call["self"]), bounds_of(call["other"]))
    if both is None:
        return None
    most = (1 << max(both[0].bit_length(), both[1].bit_length())) - 1
    return (0 if both[0] >= 0 else -most - 1), most


@_rule("bitwise_not")
def _inverted(call: Call, meta: torch.Tensor) -> Bounds | None:
    first = bounds_of(call["self"])
    return None if first is None else (-first[1] - 1, -first[0] - 1)


@_rule("scatter_add", "index_add", "index_put")
def _accumulated(call: Call, meta: torch.Tensor) -> Bounds | None:
    first = bounds_of(call["self"])
    added = next(call[name] for name in ("src", "source", "values") if name in call)
    if call.get("accumulate") is False:
        return hull(first, bounds_of(added))
    # `index_put` broadcasts its values, so that one number may be added at many equal places.
    places = math.prod(i.numel() for i in call.get("indices", ()) if i is not None)
    terms = _times(bounds_of(added), max(math.prod(meta.shape), added.numel(), places))
    return _sum(first, _product(terms, _whole(call.get("alpha", 1))))


_PLACES.update(
    getattr(aten, name)
    for name in ("max", "min", "sort", "topk", "kthvalue", "median", "nanmedian", "mode", "cummax",
                 "cummin", "max_pool2d_with_indices", "max_pool3d_with_indices")
)  # fmt: skip

"""Checks of a dataclass's values, by the limits that its fields state."""

import dataclasses
import inspect
import math
import operator
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jaxsr.interop.errors import InputError, printable

_LARGEST = 2**31 - 1
_LARGEST_FLOAT = 1e37  # beyond, float32 has infinity alone
_RULES = {
    "least": ("at least", operator.ge),
    "most": ("at most", operator.le),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
}


def number(
    default: Any = dataclasses.MISSING,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A field of a finite number, or of several, within these bounds; None passes."""
    bounds = {"least": least, "most": most, "above": above, "below": below}
    stated = {rule: bound for rule, bound in bounds.items() if bound is not None}
    return dataclasses.field(default=default, metadata={"bounds": stated})


def whole_number(text: str) -> int | None:
    """The number that up to 18 ASCII digits state; None for other texts (`int` fails on some)."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def check_fields(config: Any) -> None:
    """Refuses values outside the limits of a dataclass's fields; whole numbers default to 32 bits.

    NaN and infinities are refused everywhere but in a user's own fields without bounds.

    Raises:
      InputError: a field has such a value.
    """
    check_literals(config)
    for field in dataclasses.fields(config):
        declared = [field, *_of_jaxsr(type(config), field.name)]
        if len(declared) == 1 and "bounds" not in field.metadata:  # a user's own: any number
            continue
        bounds = next((f.metadata["bounds"] for f in declared if "bounds" in f.metadata), None)
        value = getattr(config, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, int | float) and not isinstance(each, bool):
                _check(field.name, each, bounds)


def _check(name: str, value: float, bounds: Mapping[str, float] | None) -> None:
    # A whole number may be beyond what math takes.
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} must be finite, got {value}")
    for rule, bound in (bounds or {}).items():
        words, holds = _RULES[rule]
        if not holds(value, bound):
            raise InputError(f"{name} must be {words} {bound:,}, got {printable(value, 40)}")
    largest = _LARGEST if isinstance(value, int) else _LARGEST_FLOAT
    if "most" not in (bounds or {}) and abs(value) > largest:
        raise InputError(f"{name} must be at most {largest:,}, got {printable(value, 40)}")


def _of_jaxsr(kind: type, name: str) -> "list[dataclasses.Field]":
    """The field as classes of jaxsr declare it; a class below them may only change its default."""
    return [
        vars(base)["__dataclass_fields__"][name]
        for base in kind.__mro__
        if base.__module__.startswith("jaxsr.") and name in inspect.get_annotations(base)
    ]


def check_literals(config: Any) -> None:
    """Refuses values outside the `Literal` types of a dataclass's fields.

    Raises:
      InputError: a field has another value.
    """
    for name, declared in get_type_hints(type(config)).items():
        value, kind = getattr(config, name), declared
        if get_origin(declared) in (Union, types.UnionType):
            others = [each for each in get_args(declared) if each is not type(None)]
            if len(others) > 1 or value is None:
                continue
            (kind,) = others
        is_several = get_origin(kind) is tuple
        literal = get_args(kind)[0] if is_several and get_args(kind) else kind
        choices = get_args(literal)
        if get_origin(literal) is not Literal:
            continue
        for each in value if is_several else (value,):
            if each not in choices:
                listed = ", ".join(map(str, choices))
                raise InputError(f"{name} must be one of {listed}, got {each!r}")

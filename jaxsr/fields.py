"""Checks of the values of a dataclass's fields, by what the fields themselves state."""

import dataclasses
import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxsr.errors import InputError, printable

_LARGEST = 2**31 - 1
_INFINITIES = (math.inf, -math.inf)
_LARGEST_FLOAT = 1e37  # beyond, float32 has infinity alone


def number(
    default: Any = dataclasses.MISSING, *, least: float | None = None, most: float | None = None
) -> Any:
    """A field of a number, or of several, from `least` to `most`; None passes."""
    return dataclasses.field(default=default, metadata={"bounds": (least, most)})


def check_fields(config: Any) -> None:
    """Refuses values outside what a dataclass's fields state; whole numbers have 32 bits otherwise.

    Raises:
      InputError: a field has such a value.
    """
    check_literals(config)
    for field in dataclasses.fields(config):
        declared = [field, *_of_jaxsr(type(config), field.name)]
        if len(declared) == 1 and "bounds" not in field.metadata:  # a user's own: any number
            continue
        bounds = next((f.metadata["bounds"] for f in declared if "bounds" in f.metadata), ())
        value = getattr(config, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, int | float) and not isinstance(each, bool):
                _check(field.name, each, *(bounds or (None, None)))


def _check(name: str, value: float, least: float | None, most: float | None) -> None:
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"{name} must be finite, got {value}")
    if least is not None and value < least:
        raise InputError(f"{name} must be at least {least:,}, got {printable(value, 40)}")
    free = _LARGEST if isinstance(value, int) else _LARGEST_FLOAT
    largest = free if most is None else most
    if abs(value) > largest and (value not in _INFINITIES or most is not None):
        raise InputError(f"{name} must be at most {largest:,}, got {printable(value, 40)}")


def _of_jaxsr(kind: type, name: str) -> "list[dataclasses.Field]":
    """The field as classes of jaxsr declare it; a class below them may only change its default."""
    return [
        vars(base)["__dataclass_fields__"][name]
        for base in kind.__mro__
        if base.__module__.startswith("jaxsr.") and name in vars(base).get("__annotations__", {})
    ]


def check_literals(config: Any) -> None:
    """Refuses values outside the `Literal` types of a dataclass's fields.

    Raises:
      InputError: a field has another value.
    """
    for name, kind in get_type_hints(type(config)).items():
        value, is_several = getattr(config, name), get_origin(kind) is tuple
        literal = get_args(kind)[0] if is_several and get_args(kind) else kind
        choices = get_args(literal)
        if get_origin(literal) is not Literal:
            continue
        for each in value if is_several else (value,):
            if each not in choices:
                listed = ", ".join(map(str, choices))
                raise InputError(f"{name} must be one of {listed}, got {each!r}")

"""Values of JSON, YAML or TOML as the types that a dataclass of options declares.

A value that does not fit raises an error with the field's name, the value, and the accepted types.
"""

import dataclasses
import json
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from jaxsr.errors import InputError, did_you_mean, printable

Options = TypeVar("Options")
_UNFIT = object()
_MISSING = dataclasses.MISSING
_CORRECT = "correct the file"
_LEAVE_OUT = f"{_CORRECT}, or leave the entry out to get its default"
_WORDS = {
    bool: ("true or false", "values true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    Path: ("a path", "paths"),
    type(None): ("null", "null"),
}
"""One value of a type, and several."""


def takes_json(name: str) -> bool:
    """Whether an option of text is JSON: a file may have it as a mapping."""
    return name.endswith("_args") or name == "policy"


def from_values(kind: type[Options], values: Mapping[str, Any], *, prefix: str = "") -> Options:
    """The dataclass with these values.

    Args:
      kind: the dataclass.
      values: by field; those that are left out have their defaults.
      prefix: of the fields' names in errors.

    Raises:
      InputError: a name is unknown or missing, or a value is of another type or out of range.
    """
    assert dataclasses.is_dataclass(kind)
    declared = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    for name in values:
        if name not in fields:
            shown = printable(f"{prefix}{name}", 80)
            near = did_you_mean(name, fields)
            raise InputError(
                f"there is no option {shown} of this task{near}; {_CORRECT}, or leave it out"
            )
    required = [n for n, f in fields.items() if f.default is f.default_factory is _MISSING]
    if name := next((n for n in required if n not in values), None):
        raise InputError(f"{prefix}{name} is missing, and has no default; add it to the file")
    return kind(
        **{
            name: _fitting(declared[name], value, prefix + name, required=name in required)
            for name, value in values.items()
        }
    )


def checked(kind: Any, value: Any, name: str) -> Any:
    """The value of an entry as this type has it.

    Args:
      kind: a type, also of several values, a NamedTuple or a mapping.
      value: as a file has it.
      name: of the entry, for errors.

    Raises:
      InputError: it is of another type.
    """
    return _fitting(kind, value, name, required=True)


def _fitting(kind: Any, value: Any, name: str, *, required: bool) -> Any:
    result = _converted(kind, value, name)
    if result is _UNFIT:
        advice = _CORRECT if required else _LEAVE_OUT
        raise InputError(f"{name} must be {_meaning(kind)}, got {_shown(value)}; {advice}")
    return result


def _converted(kind: Any, value: Any, name: str) -> Any:
    """The value as this type has it, or `_UNFIT`."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        exact_first = sorted(inner, key=lambda each: type(value) is not each)
        results = (_converted(each, value, name) for each in exact_first)
        return next((result for result in results if result is not _UNFIT), _UNFIT)
    if origin is Literal:
        return next((x for x in inner if _converted(type(x), value, name) == x), _UNFIT)
    if (origin or kind) in (tuple, list):
        return _several(kind, value, name)
    if isinstance(kind, type) and issubclass(kind, tuple) and kind.__annotations__:
        result = _several(tuple[*get_type_hints(kind).values()], value, name)
        return result if result is _UNFIT else kind(*result)
    if origin is dict and isinstance(value, dict):
        keys, values = (
            _several(list[each], [*part], name)
            for each, part in zip(inner, (value.keys(), value.values()), strict=True)
        )
        return _UNFIT if _UNFIT in (keys, values) else dict(zip(keys, values, strict=True))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        is_group = isinstance(value, Mapping)
        return from_values(kind, value, prefix=f"{name}.") if is_group else _UNFIT
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next((member for member in kind if value in (member, member.name)), _UNFIT)
    if kind in _SINGLE:
        return _SINGLE[kind](value, name)
    fits = not isinstance(origin or kind, type) or isinstance(value, origin or kind)
    return value if fits else _UNFIT  # a type of the user's own


def _several(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, list | tuple):
        return _UNFIT
    inner = get_args(kind) or (Any, ...)
    is_list = (get_origin(kind) or kind) is list
    kinds = inner[:1] * len(value) if is_list or inner[1:] == (...,) else inner
    if len(kinds) != len(value):
        return _UNFIT
    results = [_converted(each, v, name) for each, v in zip(kinds, value, strict=True)]
    if any(result is _UNFIT for result in results):
        return _UNFIT
    return results if is_list else tuple(results)


def _text(value: Any, name: str) -> Any:
    if isinstance(value, Mapping) and takes_json(name):
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError):  # a date of YAML
            return _UNFIT
    number = _whole(value, name)  # as of `mesh: 8`
    return value if isinstance(value, str) else _UNFIT if number is _UNFIT else str(number)


def _truth(value: Any, _: str) -> Any:
    words = {"on": True, "yes": True, "off": False, "no": False}  # of YAML 1.1
    value = words.get(value.lower(), value) if isinstance(value, str) else value
    return value if isinstance(value, bool) else _UNFIT


def _whole(value: Any, _: str) -> Any:
    """A whole number, which may be written as one of a float, `1e3`."""
    if type(value) is float and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value if type(value) is int else _UNFIT


def _number(value: Any, _: str) -> Any:
    try:
        return float(value) if type(value) in (int, float) else _UNFIT
    except OverflowError:
        return _UNFIT


_SINGLE = {
    bool: _truth,
    int: _whole,
    float: _number,
    str: _text,
    Path: lambda value, _: Path(value) if isinstance(value, str | Path) else _UNFIT,
    type(None): lambda value, _: None if value is None else _UNFIT,
}


def _meaning(kind: Any) -> str:
    """Describes the values that a type accepts."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind][0]
    if origin in (Union, types.UnionType):
        return " or ".join(map(_meaning, inner))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if (origin or kind) in (tuple, list):
        several = {_WORDS[each][1] for each in inner if each in _WORDS}
        words = several.pop() if len(several) == 1 else "values"
        count = "" if origin is list or ... in inner or not inner else f"{len(inner)} "
        return f"a list of {count}{words}"
    if dataclasses.is_dataclass(kind):
        return "a mapping of options"
    if (origin or kind) is dict:
        return (
            f"a mapping to {_WORDS[inner[1]][1] if inner[1:] and inner[1] in _WORDS else 'values'}"
        )
    return str(getattr(kind, "__name__", kind))


def _shown(value: Any) -> str:
    return printable(json.dumps(value, default=str, ensure_ascii=False), 80)

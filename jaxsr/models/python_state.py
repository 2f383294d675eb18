"""Numbers that a user's code keeps in Python between its calls.

A compiled step changes them once, and a resumed run begins with the first ones.
"""

from collections.abc import Mapping
from typing import Any

_LONG = 1000
"""Dictionaries of more entries hold data, not state."""


def numbers_of(attributes: Mapping[str, Any], function: Any) -> dict[str, str]:
    """Numbers in attributes, in lists and dictionaries there, and in a file's globals, as text.

    Of a list its length counts as well.

    Args:
      attributes: of the object whose method it is, by name.
      function: whose file is looked at.
    """
    numbers: dict[str, str] = {}

    def add(key: str, value: Any, depth: int) -> None:
        if isinstance(value, int | float):
            numbers[key] = repr(value)  # NaN differs from itself
        elif isinstance(value, list | set) and depth:
            numbers[f"the length of {key}"] = repr(len(value))
        elif isinstance(value, dict) and depth and len(value) <= _LONG:
            for name, part in [*value.items()]:
                add(f"{key}[{name!r}]", part, depth - 1)

    for name, value in attributes.items():
        if not name.startswith("__"):
            add(f"self.{name}", value, 2)
    for name, value in [*getattr(function, "__globals__", {}).items()]:
        if not name.startswith("__"):
            add(f"the global {name}", value, 1)
    return numbers


def changed_number(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """The first that is not what it was; one that is new may be a cache, and does not count."""
    return next((name for name, value in before.items() if after.get(name) != value), None)

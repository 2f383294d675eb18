"""Checks of the values of a dataclass's fields, by what the fields themselves state."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxsr.errors import InputError


def check_literals(config: Any) -> None:
    """Refuses values outside the `Literal` types of a dataclass's fields.

    Raises:
      InputError: a field has another value.
    """
    for name, kind in get_type_hints(type(config)).items():
        choices, value = get_args(kind), getattr(config, name)
        if get_origin(kind) is Literal and value not in choices:
            listed = ", ".join(map(str, choices))
            raise InputError(f"{name} must be one of {listed}, got {value!r}")

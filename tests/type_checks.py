"""Annotations of shapes and dtypes, checked whenever a test calls a function."""

from collections.abc import Callable

from beartype import BeartypeConf, beartype

# As type checkers have it, an int is a float.
_CHECK = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function: Callable) -> Callable:
    """The function with its annotations checked.

    Functions within functions stay as they are: they are made anew at every call, and a check costs
    milliseconds to make.
    """
    return function if "<locals>" in function.__qualname__ else _CHECK(function)

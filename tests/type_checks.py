"""Annotations of shapes and dtypes, checked whenever a test calls a function."""

import random
from collections.abc import Callable
from unittest.mock import patch

# Beartype draws which elements of a list it looks at. Its draws are not those of the process, which
# tests compare: it keeps the function that it finds when it is imported.
with patch.object(random, "getrandbits", random.Random(0).getrandbits):
    from beartype import BeartypeConf, beartype

# As type checkers have it, an int is a float.
_CHECK = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function: Callable) -> Callable:
    """The function with its annotations checked.

    Functions within functions stay as they are: they are made anew at every call, and a check costs
    milliseconds to make.
    """
    return function if "<locals>" in function.__qualname__ else _CHECK(function)

"""Attributes of libraries' classes that are replaced for a while, in one thread."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

_one_at_a_time = threading.RLock()


@contextmanager
def patched(owner: Any, **functions: Callable[..., Any]) -> Generator[None]:
    """Replaces functions of a class or module; other threads get the original ones.

    Args:
      owner: has the functions, or inherits them.
      **functions: by the name of what they replace.
    """
    thread = threading.get_ident()

    def in_thread(plain: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        def chosen(*args: Any, **kwargs: Any) -> Any:
            return (other if threading.get_ident() == thread else plain)(*args, **kwargs)

        return chosen

    with _one_at_a_time:  # or the one that ends last would leave the first one's functions
        chosen = {name: in_thread(getattr(owner, name), f) for name, f in functions.items()}
        patches: Any = mock.patch.multiple  # its stubs take no names
        with patches(owner, **chosen, create=True):
            yield

"""Attributes of libraries' classes that are replaced for a while, in one thread."""

import inspect
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

one_at_a_time = threading.RLock()
"""Held while a library changes the process, as transformers does torch's default dtype."""


@contextmanager
def patched(owner: Any, **functions: Callable[..., Any]) -> Generator[None]:
    """Replaces functions of a class or module; other threads get the original ones.

    Args:
      owner: has the functions or class methods, or inherits them.
      **functions: by the name of what they replace.
    """
    thread = threading.get_ident()

    def in_thread(plain: Any, other: Callable[..., Any]) -> Any:
        if isinstance(plain, classmethod):
            return classmethod(in_thread(plain.__func__, other))

        def chosen(*args: Any, **kwargs: Any) -> Any:
            return (other if threading.get_ident() == thread else plain)(*args, **kwargs)

        return chosen

    with one_at_a_time:  # or the one that ends last would leave the first one's functions
        plain = {name: inspect.getattr_static(owner, name) for name in functions}
        chosen = {name: in_thread(plain[name], f) for name, f in functions.items()}
        patches: Any = mock.patch.multiple  # its stubs take no names
        with patches(owner, **chosen, create=True):
            yield

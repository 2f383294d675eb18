"""Values of Python: whether two are the same, and whether an object has changed inside."""

import collections
import contextvars
import functools
import gc
import inspect
import itertools
import operator
import random
import sys
import types
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from jaxsr.interop.python_code import is_users_file

PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, np.generic)
_SAMPLE = 1 << 20
"""Bytes of an array that are compared, evenly spread over a larger one."""
_RESTORED = 1 << 16
"""Bytes of the largest array that is put back."""
_READ = 100_000
"""Entries of a long container that are compared."""
_LONG = 1000
_OF_ITERATORS = ("builtins", "itertools", "_collections", "_csv", "_struct")
MISSING = object()


def same(first: Any, second: Any, depth: int = 5) -> bool:
    """Whether two values are the same object, or equal plain data."""
    if first is second:
        return True
    if type(first) is not type(second) or depth == 0:
        return False
    if isinstance(first, PLAIN):
        return bool(first == second) or bool(first != first and second != second)  # noqa: PLR0124
    if isinstance(first, weakref.ReferenceType):
        return True  # nn.LSTM makes these anew
    if isinstance(first, types.MethodType):
        return first.__func__ is second.__func__ and first.__self__ is second.__self__
    if isinstance(first, np.ndarray):
        return _digest(first) == _digest(second)
    if isinstance(first, (list, tuple, collections.deque)):
        return len(first) == len(second) and all(
            same(a, b, depth - 1) for a, b in zip(first, second, strict=True)
        )
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            same(v, second[k], depth - 1) for k, v in first.items()
        )
    if isinstance(first, (set, frozenset)):
        return {set_key(v) for v in first} == {set_key(v) for v in second}
    if isinstance(first, (torch.dtype, torch.device, np.dtype)):
        return first == second
    attributes = getattr(first, "__dict__", None)
    opaque = isinstance(first, (torch.Tensor, nn.Module, type, types.FunctionType))
    if isinstance(attributes, dict) and attributes and not opaque:
        return same(attributes, second.__dict__, depth - 1)
    return False


def has_tensor(value: Any, depth: int = 4) -> bool:
    """Whether it is a tensor, or holds one in containers or attributes."""
    if isinstance(value, torch.Tensor):
        return True
    if depth and isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return any(has_tensor(v, depth - 1) for v in value)
    if depth and isinstance(value, dict):
        return any(has_tensor(v, depth - 1) for v in value.values())
    attributes = getattr(value, "__dict__", None)
    if depth and isinstance(attributes, dict) and not isinstance(value, (type, nn.Module)):
        return any(has_tensor(v, depth - 1) for v in attributes.values())
    return False


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes that code has set on a tensor; a `JaxTensor` has attributes of its own."""
    trace_attributes = getattr(type(tensor), "trace_attributes", ("_is_param",))
    return {k: v for k, v in vars(tensor).items() if k not in trace_attributes}


def set_key(value: Any) -> Any:
    """A key for an element of a set."""
    return value if isinstance(value, (PLAIN, tuple)) else id(value)


def orders(before: dict, after: dict) -> tuple[list, list] | None:
    """The keys that both have, in either order; None where the orders are one."""
    first = [set_key(k) for k in before if k in after]
    second = [set_key(k) for k in after if k in before]
    return (first, second) if first != second else None


def _digest(array: np.ndarray) -> tuple:
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat  # which copies nothing
    sample = flat[:: max(1, array.nbytes // _SAMPLE)]
    content = repr(sample.tolist()) if array.dtype.hasobject else sample.tobytes()
    content = content.encode() if isinstance(content, str) else content
    return (array.shape, array.dtype.str, zlib.crc32(content))


def token_of(value: Any) -> Callable[[], object] | None:
    """Reads the changing state of an object of the standard library or NumPy without attributes."""
    if isinstance(value, np.ndarray):
        return lambda: _digest(value)
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        bits = value.bit_generator if isinstance(value, np.random.Generator) else value
        state = (lambda: bits.state) if hasattr(bits, "state") else value.get_state
        return lambda: repr(state())
    if isinstance(value, np.random.BitGenerator):
        return lambda: repr(value.state)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return lambda: hash(value.getstate())
    if isinstance(value, torch.Generator):
        return lambda: zlib.crc32(value.get_state().numpy().tobytes())
    if isinstance(value, (itertools.count, itertools.repeat)):
        return lambda: repr(value)
    if isinstance(value, types.GeneratorType):
        return lambda: _of_frame(value)
    if isinstance(value, BaseException) or type(value).__module__ == "decimal":
        return lambda: repr([value, *getattr(value, "__dict__", {}).items()])
    if isinstance(value, Iterator) and type(value).__module__ in _OF_ITERATORS:
        return lambda: _of_iterator(value)
    if type(value).__module__.startswith(("_hashlib", "_sha", "_md5", "_blake2")):
        return value.digest
    modules = {type(value).__module__, type(type(value)).__module__}
    buffer: Any = value
    if isinstance(value, (bytearray, memoryview)) or modules & {"array", "mmap", "_ctypes"}:
        with suppress(TypeError):  # a pointer or a function of ctypes
            memoryview(buffer)
            return lambda: _of_buffer(buffer)
    return None


def _of_frame(generator: types.GeneratorType) -> object:
    frame = generator.gi_frame
    if frame is None:
        return None
    numbers = {k: repr(v) for k, v in frame.f_locals.items() if isinstance(v, PLAIN)}
    return (frame.f_lasti, repr(sorted(numbers.items())), operator.length_hint(generator, 0))


def _of_buffer(value: Any) -> int:
    view = memoryview(value)
    return zlib.crc32(view.tobytes() if view.nbytes <= _SAMPLE else view.cast("B")[:_SAMPLE])


def _of_iterator(value: Any) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            parts = value.__reduce__()
        except (TypeError, AttributeError):
            # From Python 3.14 on an iterator of itertools hides its place: no value equals it.
            is_hidden = type(value).__module__ == "itertools"
            return object() if is_hidden else operator.length_hint(value, 0)
    if hasattr(value, "line_num"):  # of csv
        return value.line_num
    if type(value).__name__ == "callable_iterator":  # of iter(function, end), and of re.finditer
        return object()
    # A cycle keeps its remaining items in an iterator of its own.
    parts = [p.__reduce__()[2:] if isinstance(p, Iterator) else p for p in _flat(parts)]
    return repr([p for p in parts if isinstance(p, (*PLAIN, tuple))])


def _flat(parts: Any) -> list:
    if isinstance(parts, (tuple, list)):
        return [p for part in parts for p in _flat(part)][:_LONG]
    return [parts]


def token_writer(value: Any) -> Callable[[dict], None] | None:
    """Puts an object back into its present state; None where that is not possible."""
    if isinstance(value, np.ndarray) and value.nbytes <= _RESTORED and value.flags.writeable:
        copy = value.copy()
        return lambda before: np.copyto(value, copy)
    if isinstance(value, np.random.Generator):
        state = value.bit_generator.state
        return lambda before: setattr(value.bit_generator, "state", state)
    if isinstance(value, np.random.RandomState):
        legacy = value.get_state()
        return lambda before: value.set_state(legacy)
    if isinstance(value, random.Random):
        python = value.getstate()
        return lambda before: value.setstate(python)
    return None


def cell_content(cell: types.CellType) -> dict:
    """The variable of a closure."""
    try:
        return {"value": cell.cell_contents}
    except ValueError:  # not assigned yet
        return {}


def closure_name(name: str, cell: types.CellType, function: types.FunctionType) -> str:
    """Names a variable of a closure, an object of the user's own class by that class."""
    kind = type(cell_content(cell).get("value"))
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if kind.__module__ not in sys.builtin_module_names and is_users_file(file or ""):
        return kind.__qualname__
    return f"{name} in the closure of {function.__qualname__}"


def cell_writer(cell: types.CellType) -> Callable[[dict], None]:
    """Puts a variable of a closure back."""

    def write(before: dict) -> None:
        if before:
            cell.cell_contents = before["value"]
        else:
            del cell.cell_contents

    return write


def long_content(container: Any) -> dict:
    """The length of a long list or dictionary, and a number for its plain values."""
    values = container.values() if isinstance(container, dict) else container
    first = itertools.islice(values, _READ)
    plain = [v for v in first if isinstance(v, (bool, int, float, complex, str, bytes))]
    return {" in length": len(container), "": hash(tuple(plain))}


def variable_content(variable: contextvars.ContextVar) -> dict:
    """The value of a context variable, its default where none is set."""
    try:
        return {"value": variable.get()}
    except LookupError:
        return {}


def cached_results(cache: functools._lru_cache_wrapper) -> list[Any]:
    """The results in a cache of functools, and where it is bounded their keys and the function.

    It shows the garbage collector its table, and if it is bounded all that its entries hold.
    """
    if not cache.cache_info().currsize:
        return []
    parts = [part for part in gc.get_referents(cache) if part is not vars(cache)]
    if cache.cache_parameters()["maxsize"] is None:
        return [result for part in parts if isinstance(part, dict) for result in part.values()]
    return [part for part in parts if not isinstance(part, type) and not _is_table(part)]


def _is_table(part: object) -> bool:
    """Whether it is the dictionary of a bounded cache, by which this finds its entries."""
    return isinstance(part, dict) and any(
        type(entry).__name__ == "_lru_list_elem" for entry in part.values()
    )


def of_class(owner: object, key: Any) -> Any:
    """The class attribute that an object's attribute hides."""
    if not isinstance(key, str) or isinstance(owner, (dict, list, set, type)):
        return MISSING
    value = inspect.getattr_static(type(owner), key, MISSING)
    return MISSING if value is None or hasattr(value, "__get__") else value

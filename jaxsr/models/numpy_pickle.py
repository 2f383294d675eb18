"""Reads a pickle of nested dictionaries of numpy arrays, and nothing else.

Unpickling runs whatever code the file names. Here the file may name exactly the three things that a
numpy array's pickle needs, and gets stand-ins for them that only note their arguments; anything
else is refused before it is looked up. No numpy code but `frombuffer` sees the file's contents.
"""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from jaxsr.errors import InputError, MissingFileError

# bfloat16 has no numpy code; the files at hand are float32.
DTYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"})


class _PickledDtype:
    """Notes what `numpy.dtype(code, align, copy)` and its `__setstate__` would receive."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in DTYPES:
            raise pickle.UnpicklingError(f"an array of dtype {code!r}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _PickledArray:
    """Notes an array's state; `array` makes the array of it."""

    def __init__(self, *_: object) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, data = state
        if not (isinstance(dtype, _PickledDtype) and isinstance(data, bytes)):
            raise pickle.UnpicklingError("an array that is not plain numbers")
        if math.prod(shape) * dtype.dtype.itemsize != len(data):
            raise pickle.UnpicklingError(f"an array of shape {shape} in {len(data)} bytes")
        array = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if fortran else "C")
        # Native byte order and writeable memory: torch takes nothing else.
        self.array = array.astype(dtype.dtype.newbyteorder("="))


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy", "ndarray"): "ndarray",  # only ever an argument; a call of a string fails
    ("numpy", "dtype"): _PickledDtype,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(repr(f"{module}.{name}")) from None


def read_numpy_pickle(path: Path) -> dict[str, np.ndarray]:
    """The arrays in a pickle, by their path through the dictionaries, joined with `/`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file names anything but numpy arrays (it is not run), or is cut short.
    """
    try:
        with path.open("rb") as file:
            tree = _ArraysOnly(file).load()
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} is refused: it holds more than numpy arrays ({error!s:.100}), which "
            "unpickling would run; get the file from its source again, or convert it to safetensors"
        ) from error
    except FileNotFoundError:
        raise MissingFileError(f"no weights file at {path}; check the path") from None
    except Exception as error:  # any garbled opcode: EOFError, ValueError, TypeError, KeyError …
        raise InputError(
            f"{path} cannot be read ({error!s:.100}); get it from its source again"
        ) from error
    arrays: dict[str, np.ndarray] = {}
    _flatten(tree, (), arrays, path)
    return arrays


def _flatten(tree: object, keys: tuple[str, ...], arrays: dict, path: Path) -> None:
    if isinstance(tree, dict) and len(keys) < 16:  # a dictionary may contain itself
        for key, value in tree.items():
            _flatten(value, (*keys, str(key)), arrays, path)
    elif isinstance(tree, _PickledArray) and tree.array is not None:
        arrays["/".join(keys)] = tree.array
    else:
        kind, place = type(tree).__name__, "/".join(keys)[:80] or "its top"
        raise InputError(
            f"{path} holds a {kind} at {place}, not numpy arrays; get it from its source again"
        )

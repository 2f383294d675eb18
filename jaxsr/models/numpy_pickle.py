"""Reads a pickle of nested dictionaries of numpy arrays, and nothing else.

Unpickling runs whatever code the file names. Here the file may name exactly the three things that a
numpy array's pickle needs, and gets stand-ins for them that only note their arguments; anything
else is refused before it is looked up. No numpy code but `frombuffer` sees the file's contents.

A few opcodes may also ask for any amount of memory. They are counted before any is run, and the
arrays together have no more bytes than the file.
"""

import functools
import io
import itertools
import math
import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxsr.errors import InputError, MissingFileError

# bfloat16 has no numpy code; the files at hand are float32.
DTYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"})


# A hundred times the number in the largest file at hand (VGG16).
_MOST_OPCODES = 100_000
_LARGEST_FILE = 2**30
_MEMO_OPCODES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


class _PickledDtype:
    """Records the arguments of `numpy.dtype(code, align, copy)` and its `__setstate__`."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in DTYPES:
            raise pickle.UnpicklingError(f"an array of dtype {code!r}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _PickledArray:
    """Notes an array's state; `array` makes the array of it.

    Args:
      budget: bytes that the arrays still to come may have, in a list of one entry.
    """

    def __init__(self, budget: list[int], *_: object) -> None:
        self._budget = budget
        self.array: np.ndarray | None = None

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, data = state
        if not (isinstance(dtype, _PickledDtype) and isinstance(data, bytes)):
            raise pickle.UnpicklingError("an array that is not plain numbers")
        if math.prod(shape) * dtype.dtype.itemsize != len(data):
            raise pickle.UnpicklingError(f"an array of shape {shape} in {len(data)} bytes")
        self._budget[0] -= len(data)
        if self._budget[0] < 0:
            raise pickle.UnpicklingError("arrays of more bytes than the file")
        array = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if fortran else "C")
        # Native byte order and writeable memory: torch takes nothing else.
        self.array = array.astype(dtype.dtype.newbyteorder("="))


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        array = functools.partial(_PickledArray, [len(data)])
        self._allowed = {
            ("numpy.core.multiarray", "_reconstruct"): array,
            ("numpy._core.multiarray", "_reconstruct"): array,
            ("numpy", "ndarray"): "ndarray",  # only ever an argument; a call of a string fails
            ("numpy", "dtype"): _PickledDtype,
        }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(repr(f"{module}.{name}")) from None


def _check_opcodes(data: bytes) -> None:
    """Refuses a pickle that would fill the memory: too many objects, or a huge memo index."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count >= _MOST_OPCODES:
            raise pickle.UnpicklingError(f"more than {_MOST_OPCODES} operations")
        if opcode.name in _MEMO_OPCODES and int(argument or 0) > _MOST_OPCODES:
            raise pickle.UnpicklingError(f"object number {argument}")


def read_numpy_pickle(path: Path) -> dict[str, np.ndarray]:
    """The arrays in a pickle, by their path through the dictionaries, joined with `/`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file names anything but numpy arrays (it is not run), or is cut short.
    """
    try:
        if (size := path.stat().st_size) > _LARGEST_FILE:
            raise pickle.UnpicklingError(f"{size:,} bytes")
        data = path.read_bytes()
        _check_opcodes(data)
        tree = _ArraysOnly(data).load()
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
    _flatten(tree, (), arrays, path, itertools.count())
    return arrays


def _flatten(
    tree: object, keys: tuple[str, ...], arrays: dict, path: Path, visits: Iterator[int]
) -> None:
    if next(visits) > _MOST_OPCODES:  # dictionaries that share others multiply
        raise InputError(f"{path} holds more than {_MOST_OPCODES} entries; get it again")
    if isinstance(tree, dict) and len(keys) < 16:  # a dictionary may contain itself
        for key, value in tree.items():
            _flatten(value, (*keys, str(key)), arrays, path, visits)
    elif isinstance(tree, _PickledArray) and tree.array is not None:
        arrays["/".join(keys)] = tree.array
    else:
        kind, place = type(tree).__name__, "/".join(keys)[:80] or "its top"
        raise InputError(
            f"{path} holds a {kind} at {place}, not numpy arrays; get it from its source again"
        )

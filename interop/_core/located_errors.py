"""Errors of a module's code: its submodule, its file and line, and the shapes of the values."""

import inspect
import linecache
import re
import types
from collections.abc import Mapping

import jax
import torch
from torch import nn
from torch.utils import _pytree as pytree

from jaxsr.interop._core.selections import REFUSAL, RowCount
from jaxsr.interop._core.stack_frames import is_outside_frameworks
from jaxsr.interop._core.tensor import OTHER_CLASS
from jaxsr.interop._core.trace import Trace
from jaxsr.interop.errors import UnsupportedTorchError

_BASES = nn.Module.__mro__
_IN_C = {
    "its data is not allocated yet": "torch reads the values of a traced tensor here; use "
    "torch.stack, or torch.tensor of a list",
    "Creating a new Tensor subclass": OTHER_CLASS,
}
"""Reasons of errors that constructors in C raise, by their words."""


def located(error: Exception, module: nn.Module, names: Mapping[int, str]) -> Exception:
    """The error with its place in front, and with the frames of the module's own code alone.

    Args:
      error: raised by the module's code while it was traced.
      module: the module that ran.
      names: `id` of each of its submodules -> its path.

    Returns:
      An error of the same kind, to be raised `from None`. `jax_traceback_filtering="off"` (the
      environment's JAX_TRACEBACK_FILTERING=off) leaves every frame in it.
    """
    if getattr(error, "located", False):
        return error
    frames = _frames(error)
    text = str(error)
    if (
        isinstance(error, TypeError) and RowCount.__name__ in text
    ):  # torch takes whole numbers alone
        error = UnsupportedTorchError(text := f"shape[0] {REFUSAL}")
    for words, reason in _IN_C.items():
        if isinstance(error, RuntimeError) and words in text:
            error = UnsupportedTorchError(text := reason)
    if not isinstance(error, UnsupportedTorchError):
        text = f"{type(error).__name__}: {text}"
    message = f"{_submodule(frames, module, names)}{_place(frames)}: {text}"
    kind = type(error)
    if isinstance(error, NotImplementedError) and not isinstance(error, UnsupportedTorchError):
        kind = UnsupportedTorchError
    try:
        result = kind(message)
    except Exception:  # its constructor takes something else
        result = RuntimeError(message)
    result.located = True  # pyright: ignore[reportAttributeAccessIssue]
    if jax.config.jax_traceback_filtering == "off":
        return result.with_traceback(error.__traceback__)
    traceback = None
    for entry in reversed(frames):
        if _is_users(entry):
            frame, line = entry.tb_frame, entry.tb_lineno
            traceback = types.TracebackType(traceback, frame, entry.tb_lasti, line)
    return result.with_traceback(traceback)


def write_place(module: nn.Module, attribute: str) -> str:
    """Where a class writes an attribute outside __init__, as `located` prints it; "" if unknown."""
    write = re.compile(
        rf"\bself\.{re.escape(attribute)}\s*(\[.*\]\s*|,[^=()]*)?([-+*/|&]?=(?!=)|\.\w+\()"
    )
    methods = [m for kind in type(module).__mro__ if kind not in _BASES for m in vars(kind).items()]
    for name, method in methods:
        code = inspect.unwrap(method) if callable(method) else None
        if name == "__init__" or not isinstance(code, types.FunctionType):
            continue
        try:
            lines, first = inspect.getsourcelines(code)
        except OSError:
            continue
        for i, line in enumerate(lines):
            if write.search(line):
                return f" at {code.__code__.co_filename}:{first + i} `{line.strip()}`"
    return ""


def _frames(error: BaseException) -> list[types.TracebackType]:
    frames, entry = [], error.__traceback__
    while entry is not None:
        frames.append(entry)
        entry = entry.tb_next
    return frames


def _is_users(entry: types.TracebackType) -> bool:
    code = entry.tb_frame.f_code
    # A torch function mode, such as a recorder, stands between the module's line and torch.
    between = code.co_name in ("__torch_function__", "__torch_dispatch__")
    return not between and is_outside_frameworks(code.co_filename)


def _submodule(
    frames: list[types.TracebackType], module: nn.Module, names: Mapping[int, str]
) -> str:
    """The innermost submodule that was running."""
    for entry in reversed(frames):
        owner = entry.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and names.get(id(owner)):
            return f"submodule {names[id(owner)]!r} ({type(owner).__name__})"
    return type(module).__name__


def _place(frames: list[types.TracebackType]) -> str:
    """The innermost line of the module's own code, and the values that the operation got."""
    place = ""
    for entry in frames:
        if _is_users(entry):
            code = entry.tb_frame.f_code
            source = linecache.getline(code.co_filename, entry.tb_lineno).strip()
            place = f" at {code.co_filename}:{entry.tb_lineno} `{source}`"
    for entry in reversed(frames):
        code, values = entry.tb_frame.f_code, entry.tb_frame.f_locals
        if code.co_name == "dispatch" and isinstance(values.get("self"), Trace):
            tensors = pytree.tree_leaves((values["args"], values["kwargs"]))
            shapes = [
                f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
                for t in tensors
                if isinstance(t, torch.Tensor)
            ]
            return f"{place} on {', '.join(shapes)}" if shapes else place
    return place

"""Tells frames of the user's code from those of torch, JAX, Python and this package."""

import functools
import sys
import sysconfig
import types
from pathlib import Path

import jax
import torch

_PACKAGES = (
    Path(__file__).parents[1],
    Path(torch.__file__).parent,
    Path(jax.__file__).parent,
    Path(torch.__file__).parents[1] / "torchax",
    Path(torch.__file__).parents[1] / "opt_einsum",
)
# As imported and without links: `jaxsr/interop` is a link in the repository.
_FRAMEWORKS = tuple(f"{p}/" for folder in _PACKAGES for p in (folder, folder.resolve()))
_STANDARD_LIBRARY = f"{sysconfig.get_paths()['stdlib']}/"


def code_around() -> types.FrameType:
    """The frame of the code that called something of this package, which then called this."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("jaxsr."):
        frame = frame.f_back
    return frame


def users_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """This frame or the next outer one that is neither of torch, JAX nor this package."""
    while frame is not None and not is_outside_frameworks(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@functools.cache
def is_outside_frameworks(file: str) -> bool:
    """Whether code of this file is neither torch's, JAX's, this package's nor Python's own."""
    if file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file:
        return False
    return not file.startswith("<frozen") and not file.startswith(_FRAMEWORKS)

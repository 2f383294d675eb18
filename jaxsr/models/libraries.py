"""Imports other libraries, which may be missing, or broken with this torch."""

import contextlib
import importlib
import importlib.util
from typing import Any

import torch

from jaxsr.errors import InputError, one_line

_FRAGMENTS: list[torch.library.Library] = []
"""torch forgets the declarations of a freed fragment."""


def import_beside_torch(name: str) -> Any:
    """A module that may import torchvision, which may be of another build of torch.

    torchvision lacks its compiled operators with another build of torch, and then fails to import.
    Networks do without them, so they are declared and the import is tried again.
    """
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        _FRAGMENTS.append(torch.library.Library("torchvision", "FRAGMENT"))
        for operator in ("nms", "qnms"):
            _FRAGMENTS[-1].define(
                f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        return importlib.import_module(name)


def import_library(name: str) -> Any:
    """A module of another library, which may be missing or broken.

    Raises:
      InputError: it cannot be imported.
    """
    try:
        return import_beside_torch(name)
    except Exception as error:  # torchvision fails in many ways with another torch
        library = name.partition(".")[0]
        way_out = f"install it next to this torch: pip install --no-deps {library}"
        lacking = error.name if isinstance(error, ModuleNotFoundError) else None
        if lacking is not None and lacking.partition(".")[0] != library:
            way_out = f"install the package that has {lacking.partition('.')[0]}"
        raise InputError(
            f"{library} cannot be imported ({type(error).__name__}: {one_line(error)}); {way_out}"
        ) from error


def import_transformers() -> Any:
    """transformers, some of whose models import torchvision where that is installed.

    Raises:
      InputError: it cannot be imported.
    """
    if importlib.util.find_spec("torchvision"):
        # Where torchvision stays broken, a model that needs it says so.
        with contextlib.suppress(InputError):
            import_library("torchvision")
    return import_library("transformers")

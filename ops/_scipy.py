"""SciPy, which JAX also needs, for kernels that programs for CPUs call."""

import importlib
import importlib.metadata
from typing import Any

from jaxsr.ops._opencv import version_of


def ndimage() -> Any:
    """The module of images, which has no types; importing it takes a while."""
    return importlib.import_module("scipy.ndimage")


def scipy_version() -> tuple[int, ...]:
    """Numbers for a program's attributes (see `version_of`)."""
    return version_of(importlib.metadata.version("scipy"))

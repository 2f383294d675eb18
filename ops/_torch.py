"""Torch, where it is installed: for kernels that programs for CPUs call."""

import functools
import importlib
import importlib.util
from typing import Any

from jaxsr.ops._opencv import version_of


@functools.cache
def torch_of_avx2() -> Any:
    """The module, or None where it is not installed or its kernels are not those for AVX2.

    Importing it takes two seconds, once, while a program is lowered that calls it.
    """
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    capability = getattr(torch.backends.cpu, "get_cpu_capability", str)()
    return torch if capability in ("AVX2", "AVX512") else None


def torch_version() -> tuple[int, ...] | None:
    """Numbers for a program's attributes (see `version_of`)."""
    torch = torch_of_avx2()
    return None if torch is None else version_of(torch.__version__)

"""PyTorch vision and language code, run natively on JAX.

Importing this package touches no device and changes no global state; `jaxsr.interop` turns torch
modules into pure JAX functions, `jaxsr.ops` holds the image kernels.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxsr.restore import restore as restore

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    # `jaxsr.restore` is a module that can be called; nothing of it is loaded before it is used.
    if name == "restore":
        from importlib import import_module

        return import_module("jaxsr.restore")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

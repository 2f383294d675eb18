"""Traced programs stored on disk, so that a later process does not trace the network.

Tracing a network of 30 blocks takes seconds, and JAX's compilation cache does not save them: its
key is the traced program. The key here is everything that the trace depends on. A program is stored
as `jax.export` writes it, StableHLO without pickles; XLA's results are in JAX's cache.
"""

import hashlib
import importlib.metadata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
from jax import export

from jaxsr.interop.atomic_write import read_sealed, write_sealed
from jaxsr.interop.cpu_kernels import panel_product
from jaxsr.runtime.source_digest import source_digest

# Code that a trace runs through: a change in any of it makes other programs.
_SOURCES = ("jaxsr.generation", "jaxsr.models.llama", "jaxsr.models.hugging_face", "jaxsr.interop")
_PACKAGES = ("jax", "jaxlib", "torch", "torchax")
# Settings for the location of files, not for the computation.
_PLACES = ("jax_compilation_cache_dir",)

# Calls that every process can make whose engine would trace them.
_KERNELS = [export.DisabledSafetyCheck.custom_call(name) for name in panel_product.NAMES.values()]


def stored(
    folder: Path | None, key: Any, trace: Callable[..., Any], args: tuple[Any, ...], *, name: str
) -> Callable[..., Any]:
    """Returns a function that computes the same as `trace` for arguments like `args`; to be jitted.

    Args:
      folder: where programs are kept; created if absent. None: programs are not stored.
      key: the values that `trace` closes over; each must have a complete `repr`.
      trace: the function.
      args: arrays, or their shapes, with shardings over one mesh.
      name: name of the program, for its file.
    """
    if folder is None:
        return trace
    path = folder / f"{name}-{_digest(key, args)}.jaxexport"
    if (content := read_sealed(path)) is not None:
        return export.deserialize(bytearray(content)).call
    exported = exported_program(trace, args)
    write_sealed(path, bytes(exported.serialize()))
    return exported.call


def exported_program(
    trace: Callable[..., Any], args: tuple[Any, ...], *, platform: str | None = None
) -> export.Exported:
    """The program that `stored` keeps.

    Args:
      trace: the function.
      args: as for `stored`.
      platform: `tpu`, `cuda` or `cpu`. Default: where JAX computes.
    """
    platforms = None if platform is None else [platform]
    return export.export(jax.jit(trace), platforms=platforms, disabled_checks=_KERNELS)(*args)


def structure(network: Any) -> list[tuple[str, str, str]]:
    """The modules and settings of a network without its tensors, for a program's key."""
    if hasattr(network, "program_key"):
        return network.program_key()
    return [
        (name, type(module).__qualname__, repr(_settings(module)))
        for name, module in network.named_modules()
    ]


def _settings(module: Any) -> list[tuple[str, Any]]:
    return sorted((n, v) for n, v in vars(module).items() if not n.startswith("_"))


def _digest(key: Any, args: tuple[Any, ...]) -> str:
    leaves, tree = jax.tree.flatten(args)
    shapes = [(x.shape, str(x.dtype), _where(x)) for x in leaves]
    settings = sorted(
        (name, repr(value)) for name, value in jax.config.values.items() if name not in _PLACES
    )
    text = repr((key, str(tree), shapes, settings, _surroundings()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _where(array: Any) -> str:
    sharding = array.sharding
    return f"{sharding.mesh.shape} {sharding.spec} {sharding.memory_kind}"


@cache
def _surroundings() -> tuple[Any, ...]:
    """Versions of the tracing libraries, and a digest of our own code."""
    versions = [(name, importlib.metadata.version(name)) for name in _PACKAGES]
    return (versions, source_digest(*_SOURCES))

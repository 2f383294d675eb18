"""Parameters and buffers of a torch module: where each sits, under which names, as which array."""

import dataclasses
import fnmatch
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

from jaxsr.interop._core.dtypes import constant_to_numpy, to_jax_dtype
from jaxsr.interop._core.shared_memory import refuse_shared_storage
from jaxsr.interop.errors import InputError, UnsupportedTorchError


@dataclasses.dataclass(frozen=True)
class Slot:
    """One parameter or buffer: where it sits in the module, under all its names."""

    places: tuple[tuple[str, str, str], ...]
    """(path of the submodule, "_parameters" or "_buffers", key) for each alias."""
    trainable: bool
    is_parameter: bool
    dtype: torch.dtype
    statistics: bool
    """A normalisation layer's running statistics, kept in float32 whatever the compute dtype."""

    def source(self, module: nn.Module) -> torch.Tensor:
        path, kind, key = self.places[0]
        return getattr(module.get_submodule(path), kind)[key]


def array_of(tensor: torch.Tensor, name: str) -> Any:
    """A parameter or buffer as a JAX array, or as its shape if it has no values."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsupportedTorchError(f"{name} is {tensor.layout} or quantised; densify it first")
    try:
        dtype = to_jax_dtype(tensor.dtype)
        if tensor.device.type == "meta":
            return jax.ShapeDtypeStruct(tuple(tensor.shape), dtype)
        return jnp.asarray(constant_to_numpy(tensor.detach().cpu(), name))
    except UnsupportedTorchError as e:
        raise UnsupportedTorchError(f"{name}: {e}") from e


def find_slots(module: nn.Module) -> tuple[dict[str, Slot], dict[str, str], frozenset[str]]:
    """The slots by name, further names of tied tensors, and names outside the state dictionary."""
    first_names: dict[int, str] = {}
    places: dict[str, list[tuple[str, str, str]]] = {}
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    non_persistent = set()
    for path, sub in module.named_modules(remove_duplicate=False):
        for kind in ("_parameters", "_buffers"):
            for key, tensor in getattr(sub, kind).items():
                if tensor is None:
                    continue
                name = f"{path}.{key}" if path else key
                first = first_names.setdefault(id(tensor), name)
                places.setdefault(first, []).append((path, kind, key))
                tensors.setdefault(first, tensor)
                if first != name:
                    aliases[name] = first
                elif kind == "_buffers" and key in sub._non_persistent_buffers_set:
                    non_persistent.add(name)
    slots = {}
    for name, tensor in tensors.items():
        path, _, _ = places[name][0]
        owner = module.get_submodule(path)
        is_parameter = isinstance(tensor, nn.Parameter)
        slots[name] = Slot(
            places=tuple(places[name]),
            trainable=is_parameter and tensor.requires_grad,
            is_parameter=is_parameter,
            dtype=tensor.dtype,
            statistics=isinstance(owner, nn.modules.batchnorm._NormBase) and not is_parameter,
        )
    refuse_shared_storage(tensors)
    return slots, aliases, frozenset(non_persistent)


def matching(names: list[str], patterns: tuple[str, ...], kind: str) -> list[str]:
    """The names that patterns of `fnmatch` match; each must match one."""
    matched = list[str]()
    for pattern in patterns:
        matches = [n for n in names if fnmatch.fnmatchcase(n, pattern)]
        if not matches:
            listed = ", ".join(names[:12]) + (" …" if len(names) > 12 else "")
            raise InputError(f"pattern {pattern!r} matches no {kind}; there are {listed}")
        matched += [n for n in matches if n not in matched]
    return matched


def mentions(
    value: object, known: Mapping[int, object], within: frozenset[int] = frozenset()
) -> bool:
    """Whether it is one of the known tensors, or a container of some, which may hold itself."""
    if isinstance(value, torch.Tensor):
        return id(value) in known
    if id(value) in within or not (isinstance(value, (list, tuple)) or type(value) is dict):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return any(mentions(v, known, within | {id(value)}) for v in inner)


def replaced_mentions(value: Any, new: Mapping[int, torch.Tensor]) -> Any:
    """The value with new tensors for those that it mentions, by their `id`."""
    if isinstance(value, torch.Tensor):
        return new.get(id(value), value)
    if type(value) in (list, tuple):
        return type(value)(replaced_mentions(v, new) for v in value)
    if type(value) is dict:
        return {k: replaced_mentions(v, new) for k, v in value.items()}
    return value

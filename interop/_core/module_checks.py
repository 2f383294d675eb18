"""Checks of a module before it is converted (wrappers, hooks, caches of weights) and after a call.

A call may not write into arguments, which stay in torch and are lost where arrays were given, and
may not make parameters and buffers.
"""

import copy
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jax.typing import ArrayLike
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree as pytree

from jaxsr.interop._core.attributes import TABLES
from jaxsr.interop._core.dispatch import CONST_LIMIT
from jaxsr.interop._core.dtypes import to_jax_dtype
from jaxsr.interop._core.slots import Slot, mentions
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.errors import UnsupportedTorchError


def refuse_wrappers(module: nn.Module) -> None:
    """Refuses modules that are not plain Python, are not made yet, or have gradient hooks."""
    refuse_backward_hooks(module)
    for name, sub in module.named_modules():
        where = f"submodule {name!r} ({type(sub).__name__})" if name else type(sub).__name__
        if isinstance(sub, torch.jit.ScriptModule):
            raise UnsupportedTorchError(f"{where} is TorchScript; convert the Python module itself")
        if isinstance(sub, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise UnsupportedTorchError(f"{where}: convert its `.module`; the mesh replaces it")
        trained = [(k, p) for k, p in sub._parameters.items() if p is not None and p.requires_grad]
        for key, parameter in trained:
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise UnsupportedTorchError(
                    f"the parameter {key} of {where} has a gradient hook, which JAX would not "
                    "call; remove it and change the gradients between jax.grad and the optimiser, "
                    "or write a torch.autograd.Function with that backward"
                )
        if isinstance(sub, LazyModuleMixin) and LazyModuleMixin.has_uninitialized_params(sub):
            raise UnsupportedTorchError(f"{where} is lazy; run it once in torch first")


def refuse_backward_hooks(module: nn.Module) -> None:
    """Refuses hooks of modules on gradients, which JAX would not call."""
    everywhere = nn.modules.module
    if everywhere._global_backward_hooks or everywhere._global_backward_pre_hooks:
        raise UnsupportedTorchError(
            "torch has a backward hook for all modules, which JAX would not call; remove it"
        )
    for name, sub in module.named_modules():
        if sub._backward_hooks or sub._backward_pre_hooks:
            where = f"submodule {name!r} ({type(sub).__name__})" if name else type(sub).__name__
            raise UnsupportedTorchError(
                f"{where} has a backward hook, which JAX would not call; remove it, or write a "
                "torch.autograd.Function with that backward"
            )


def refuse_other_form(name: str, current: object, before: torch.Tensor, *, is_mixed: bool) -> None:
    """Refuses a buffer that forward has replaced by one of another shape or dtype.

    Args:
      name: of the buffer.
      current: the value that forward left under it.
      before: the value before that.
      is_mixed: whether the computation has another precision than the module, so that a buffer of
        floats may be replaced by floats of another width.
    """
    if not isinstance(current, torch.Tensor) or current.shape != before.shape:
        shape = tuple(current.shape) if isinstance(current, torch.Tensor) else current
        raise UnsupportedTorchError(
            f"forward replaces the buffer {name} of shape {tuple(before.shape)} by {shape}; "
            "keep the shape; if a first forward sets it, run one in torch before to_jax"
        )
    are_floats = current.is_floating_point() and before.is_floating_point()
    if to_jax_dtype(current.dtype) != to_jax_dtype(before.dtype) and not (is_mixed and are_floats):
        raise UnsupportedTorchError(
            f"forward replaces the buffer {name} of {before.dtype} by {current.dtype}, which the "
            f"next call would not see; write into it, or cast the value to {before.dtype}"
        )


def refuse_old_mentions(
    mentioning: list[tuple[nn.Module, str, object]],
    name: str,
    current: object,
    before: torch.Tensor,
) -> None:
    """Refuses a buffer that forward has replaced while an attribute keeps its old tensor.

    Args:
      mentioning: modules, with an attribute that mentions parameters or buffers.
      name, current, before: as those of `refuse_other_form`.
    """
    for module, key, _ in mentioning:
        if current is not before and mentions(vars(module).get(key), {id(before): name}):
            raise UnsupportedTorchError(
                f"forward replaces the buffer {name}, whose old tensor stays in `{key}` of "
                f"{type(module).__name__}, which would follow it here; write into it (`copy_`)"
            )


def refuse_memory_of_another(
    module: nn.Module, slots: Mapping[str, Slot], name: str, current: object
) -> None:
    """Refuses buffers that a call has made the memory of a tensor which is written in place."""
    for other, slot in slots.items():
        path, kind, key = slot.places[0]
        owner = getattr(module.get_submodule(path), kind).get(key)
        shares = isinstance(owner, JaxTensor) and getattr(current, "cell", None) is owner.cell
        if other != name and shares and (slot.trainable or owner.cell.version):
            raise UnsupportedTorchError(
                f"forward makes the buffer {name} the memory of {other}, whose later changes it "
                "would follow in torch and not here; assign a clone()"
            )


def run_uncompiled(twin: nn.Module) -> None:
    """Lets submodules wrapped by `torch.compile` run the original modules, under their names."""
    for sub in twin.modules():
        if type(sub).__name__ == "OptimizedModule":
            sub.forward = sub._orig_mod.forward  # pyright: ignore[reportAttributeAccessIssue]


def drop_caches(twin: nn.Module) -> None:
    """Empties the tables of weights that `train()` of a submodule would empty."""
    for sub in twin.modules():
        if type(sub).train is nn.Module.train:
            continue
        trial = copy.copy(sub)
        vars(trial)["_modules"] = {}
        try:
            trial.train(True)
        except Exception:  # its train() needs its submodules: it is left to torch's meaning
            continue
        for key, value in vars(sub).items():
            emptied = (
                isinstance(value, (dict, list)) and value and vars(trial).get(key) is not value
            )
            if emptied and key not in TABLES and not vars(trial).get(key, True):
                vars(sub)[key] = type(value)()


class InputVersion(NamedTuple):
    """An argument's tensor before a call, and how often it had been written."""

    name: str
    tensor: torch.Tensor
    writes: int


def input_versions(arguments: Sequence[Any]) -> list[InputVersion]:
    """Every tensor of the arguments, by its key in an argument that is a dictionary, as `'x'`."""
    named = [
        (repr(key), value)
        for place, argument in enumerate(arguments)
        for key, value in (
            argument.items() if isinstance(argument, Mapping) else [(place, argument)]
        )
    ]
    return [
        InputVersion(name, leaf, leaf._version)
        for name, value in named
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    ]


def written_input(before: list[InputVersion], arguments: Sequence[Any]) -> str | None:
    """The name of the first argument that a call has written or replaced since `before`."""
    now = {id(entry.tensor): entry for entry in input_versions(arguments)}
    for name, tensor, writes in before:
        entry = now.get(id(tensor))
        if entry is None or entry.writes != writes:
            return name
    return None


def tensors_made(module: nn.Module, known: Container[str]) -> str | None:
    """The error for a call that made parameters or buffers, which would be lost.

    Args:
      module: after the call.
      known: names of those that it had before.
    """
    for path, sub in module.named_modules(remove_duplicate=False):
        for kind, table in (("parameter", sub._parameters), ("buffer", sub._buffers)):
            for key, tensor in table.items():
                name = f"{path}.{key}" if path else key
                if tensor is not None and name not in known:
                    return (
                        f"forward or the loss makes the {kind} {name}, which no optimiser and no "
                        "checkpoint knows; make it in __init__, or call the module once on zeros "
                        "there"
                    )
    return None


def check_names(
    slots: Mapping[str, Slot], params: Mapping[str, ArrayLike], buffers: Mapping[str, ArrayLike]
) -> None:
    """Refuses parameters and buffers whose names are not the module's."""
    for label, arrays, trainable in (("params", params, True), ("buffers", buffers, False)):
        names = {n for n, s in slots.items() if s.trainable is trainable}
        missing, unknown = sorted(names - set(arrays)), sorted(set(arrays) - names)
        if missing or unknown:
            raise ValueError(
                f"{label} must have the module's names; missing {missing[:4]}, "
                f"unknown {unknown[:4]}"
            )


def check_mode(
    module: nn.Module, slots: Mapping[str, Slot], tensors: Mapping[str, JaxTensor], train: bool
) -> None:
    """Refuses a `train()` of the module's own that changes weights, as adapters are merged."""
    for name, slot in slots.items():
        for path, kind, key in slot.places:
            current = getattr(module.get_submodule(path), kind).get(key)
            if current is not tensors[name] or current.cell.version:
                call = "train()" if train else "eval()"
                owner = type(module.get_submodule(path)).__name__
                raise UnsupportedTorchError(
                    f"{call} of {owner} changes {name}, and apply would do so in each call; "
                    f"call {call} in torch before to_jax, and apply(..., train=None)"
                )


def is_number(buffer: torch.Tensor) -> bool:
    """Whether it holds whole numbers, few enough to be those of a configuration."""
    is_whole = not (buffer.is_floating_point() or buffer.is_complex())
    return is_whole and buffer.numel() <= CONST_LIMIT and buffer.device.type != "meta"

"""Torch modules run for their values alone."""

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def in_mode(module: Module, train: bool = False) -> Module:
    """The module after `train()` or `eval()`; as it is, where it has no modes (`torch.export`)."""
    with suppress(NotImplementedError):
        module.train(train)
    return module


def is_placed(module: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> bool:
    """Whether `module.to(device, dtype)` would leave all its tensors as they are."""
    return all(
        tensor.device.type == device.type
        and (
            dtype in (None, tensor.dtype) or not (tensor.is_floating_point() or tensor.is_complex())
        )
        for tensor in (*module.parameters(), *module.buffers())
    )


@dataclass
class _EvaluatedModule:
    module: nn.Module
    mode: bool
    """Before the first block began."""
    blocks: int = 0


_evaluated_modules: dict[int, _EvaluatedModule] = {}
"""By id: modules that blocks of `evaluating` hold in evaluation mode, in any thread."""
_modes_lock = threading.RLock()


@contextmanager
def evaluating(module: nn.Module) -> Generator[None]:
    """In this block a module is in evaluation mode; then each of its modules is as before.

    Of several blocks that overlap, in threads for instance, the last one gives modules their modes
    back.
    """
    modules = [*module.modules()]
    with _modes_lock:
        for each in modules:
            _evaluated_modules.setdefault(
                id(each), _EvaluatedModule(each, each.training)
            ).blocks += 1
    try:
        with _modes_lock:
            in_mode(module)
        yield
    finally:
        with _modes_lock:
            for each in modules:
                evaluated = _evaluated_modules[id(each)]
                evaluated.blocks -= 1
                if not evaluated.blocks:
                    del _evaluated_modules[id(each)]
                    _give_back(each, evaluated.mode)


def _give_back(module: nn.Module, mode: bool) -> None:
    if module.training == mode:
        return
    if type(module).train is not nn.Module.train:  # it may do more, such as merging its weights
        module.train(mode)
    module.training = mode


@contextmanager
def evaluated(module: nn.Module) -> Generator[None]:
    """In this block no graph is recorded, but by tensors that the module's code marks itself.

    Code that calls `torch.autograd.grad`, as for forces, would fail under `torch.no_grad`.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)

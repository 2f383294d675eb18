"""Torch modules run for their values alone."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def in_mode(module: Module, train: bool = False) -> Module:
    """The module after `train()` or `eval()`; as it is, where it has no modes (`torch.export`)."""
    with suppress(NotImplementedError):
        module.train(train)
    return module


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

"""Checks of a module before it is converted: wrappers, hooks, caches of weights."""

import copy

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from jaxsr.interop._core.attributes import TABLES
from jaxsr.interop.errors import UnsupportedTorchError


def refuse_wrappers(module: nn.Module) -> None:
    """Refuses modules that are not plain Python, are not made yet, or have gradient hooks."""
    refuse_backward_hooks(module)
    for name, sub in module.named_modules():
        where = f"submodule {name!r} ({type(sub).__name__})" if name else type(sub).__name__
        if isinstance(sub, torch.jit.ScriptModule):
            raise UnsupportedTorchError(f"{where} is TorchScript; convert the Python module itself")
        if hasattr(sub, "_orig_mod") and type(sub).__name__ == "OptimizedModule":
            raise UnsupportedTorchError(f"{where} is compiled; convert its `_orig_mod`")
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

"""Makes the copy of a torch module that `apply` traces."""

import copy

import torch
from torch import nn

from jaxsr.interop._core import module_checks, registry
from jaxsr.interop._core.containers import register_torch_nodes
from jaxsr.interop._core.functional_module import FunctionalModule
from jaxsr.interop._core.shared_memory import Originals, SharedMemory
from jaxsr.interop._core.slots import find_slots, matching
from jaxsr.interop._core.tensor_types import globals_of
from jaxsr.interop.module_copy import copy_module
from jaxsr.interop.python_state import Snapshot
from jaxsr.interop.python_values import attributes_of


def functionalize(
    module: nn.Module,
    remat: tuple[str, ...],
    sync_axis: str | tuple[str, ...] | None = None,
    static_buffers: tuple[str, ...] = (),
) -> FunctionalModule:
    """The copy of `module` that `apply` traces; the options are those of `to_jax`."""
    registry.load()
    register_torch_nodes()
    from jaxsr.interop.lowerings.batch_norm import replace_forwards

    module_checks.refuse_wrappers(module)
    slots, aliases, non_persistent = find_slots(module)
    memo: dict[int, object] = {}
    for slot in slots.values():
        tensor = slot.source(module)
        meta = torch.empty_like(tensor.detach(), device="meta")
        if slot.is_parameter:
            meta = nn.Parameter(meta, requires_grad=tensor.requires_grad)
        vars(meta).update(copy.deepcopy(attributes_of(tensor), memo))
        memo[id(tensor)] = meta
    reached = Snapshot(module)
    registered = {name: slot.source(module) for name, slot in slots.items()}
    parameters = frozenset(name for name, slot in slots.items() if slot.is_parameter)
    shared = SharedMemory(registered, parameters, reached.tensors, reached.arrays)
    memo |= {key: window.placeholder for key, window in shared.windows.items()}
    memo |= {id(t): t.detach().clone() for _, t in shared.constants if isinstance(t, torch.Tensor)}
    twin = copy_module(module, memo)
    module_checks.drop_caches(twin)
    module_checks.run_uncompiled(twin)
    replace_forwards(twin, sync_axis)
    static = matching([n for n in slots if n not in parameters], static_buffers, "buffer")
    numbers = {n: registered[n] for n in non_persistent if module_checks.is_number(registered[n])}
    numbers |= {n: registered[n] for n in static}
    functional = FunctionalModule(twin, slots, aliases, non_persistent, numbers)
    functional.originals = Originals({n: t for n, t in registered.items() if slots[n].trainable})
    functional.windows = {id(w.placeholder): w for w in shared.windows.values()}
    functional.constants = [(n, memo.get(id(t), t)) for n, t in shared.constants]
    functional.code_globals = globals_of(twin, reached)
    functional.wrap_remat(remat)
    return functional

"""Parameters and buffers that a call has made."""

from collections.abc import Container

from torch import nn


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

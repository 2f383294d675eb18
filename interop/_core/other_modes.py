"""Modes of torch that are not this package's, entered by traced code or active around a trace.

A `TorchFunctionMode` acts above autograd, as the code itself does: its changes have gradients in
torch, and are traced like anything else. A `TorchDispatchMode` acts below: torch differentiates the
operators as if it were not there, with the results that it returned. JAX has no such level.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.modules import module as everywhere
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from jaxsr.interop.errors import UnsupportedTorchError

_KNOWN = ("jaxsr.", "torch._", "torch.fx.")
"""Where the modes are defined that this package and torch itself enter."""


def _is_known(mode: Any) -> bool:
    return isinstance(mode, DeviceContext) or type(mode).__module__.startswith(_KNOWN)


def check_mode(mode: Any) -> None:
    """Refuses a `TorchDispatchMode` that traced code enters."""
    if not _is_known(mode):
        raise UnsupportedTorchError(
            f"{type(mode).__name__} in forward is a TorchDispatchMode, which acts below torch's "
            "gradients and sees operators that JAX does not compute one by one; use a "
            "TorchFunctionMode or forward hooks"
        )


def check_recomputation() -> None:
    """Refuses to recompute a block that runs in a mode: torch recomputes it without the mode."""
    for mode in _get_current_function_mode_stack():
        if not _is_known(mode):
            raise UnsupportedTorchError(
                f"torch.utils.checkpoint within {type(mode).__name__}, which is off when torch "
                "computes the block again in its backward; enter the mode inside the block"
            )


def check_modes_around() -> None:
    """Refuses modes that the caller of a trace has entered, which forward would meet in torch."""
    for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()):
        if not _is_known(mode):
            raise UnsupportedTorchError(
                f"{type(mode).__name__} is active around the call, which torch would apply to "
                "forward and a compiled program would not; enter it in forward, or leave it out"
            )


@contextmanager
def keeping_global_hooks() -> Iterator[None]:
    """Puts torch's hooks of all modules back where traced code ends in an error.

    Torch's own modes, such as FlopCounterMode, register some before they enter the dispatch mode
    that is refused, and would leave them there.
    """
    hooks = [h for name, h in vars(everywhere).items() if name.startswith("_global_")]
    before = [(h, h.copy()) for h in hooks if isinstance(h, dict)]
    try:
        yield
    except BaseException:
        for current, previous in before:
            current.clear()
            current.update(previous)
        raise

"""`torch._foreach_lerp_` and the like, which average weights: one tensor after another."""

from collections.abc import Callable
from typing import Any

import torch

from jaxsr.interop._core.registry import overrides
from jaxsr.interop._core.trace import Trace

_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "copy": lambda x, source, non_blocking=False: source,
    "maximum": lambda x, low: torch.clamp(x, min=low),
    "minimum": lambda x, high: torch.clamp(x, max=high),
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "zero": torch.zeros_like,
}
"""Operators that torch has under another name, or with other arguments."""


def _one_by_one(name: str, function: Callable[..., torch.Tensor]) -> None:
    """Overrides `torch._foreach_NAME` and `torch._foreach_NAME_`."""

    def results(args: tuple, kwargs: dict) -> list[torch.Tensor]:
        def of(value: Any, index: int) -> Any:
            return value[index] if isinstance(value, (list, tuple)) else value

        first = next(v for v in (*args, *kwargs.values()) if isinstance(v, (list, tuple)))
        return [
            function(*(of(a, i) for a in args), **{k: of(v, i) for k, v in kwargs.items()})
            for i in range(len(first))
        ]

    def new(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> list[torch.Tensor]:
        return results(args, kwargs)

    def write(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> list[torch.Tensor]:
        values = zip(args[0], results(args, kwargs), strict=True)
        return [tensor.copy_(value) for tensor, value in values]

    for suffix, handler in (("", new), ("_", write)):
        if hasattr(torch, f"_foreach_{name}{suffix}"):
            overrides(getattr(torch, f"_foreach_{name}{suffix}"))(handler)


_NAMES = [name for name in dir(torch) if name.startswith("_foreach_")]
for _name in sorted({name.removeprefix("_foreach_").rstrip("_") for name in _NAMES}):
    if _function := _FUNCTIONS.get(_name) or getattr(torch, _name, None):
        _one_by_one(_name, _function)

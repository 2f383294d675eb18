"""Hears every torch function that a module's code calls, on whatever engine it runs.

Both engines run the same Python code, so the stream of torch functions (`conv2d`, `add`, `softmax`)
is the same on all of them, whereas what is below differs: CUDA's kernels, torch's fused paths and
JAX's lowerings split the same function differently. One mode and two module hooks hear it all;
nothing that they do is seen by the model or by the stream.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, Protocol

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from jaxsr.comparison.calls import SLOT, Call, Operand, Program, Result, SourceKind

# Attributes that are tensors; reading any other attribute (`shape`, `grad`) is no operation.
_TENSOR_ATTRIBUTES = ("T", "mT", "H", "mH", "data", "real", "imag")
_MEMORY = re.compile(r" at 0x[0-9a-f]+")

Granularity = Literal["module", "operation"]


class Ear(Protocol):
    """Told of every call, in order."""

    def before(self, tensors: list[torch.Tensor]) -> Any:
        """What the ear wants to keep of the operands of a call that will overwrite one of them."""
        ...

    def heard(
        self, call: Call, operands: list[torch.Tensor], results: list[torch.Tensor], kept: Any
    ) -> None:
        """A call is over; `kept` is what `before` gave, None where it was not asked."""
        ...


class Listener:
    """Listens to one run of a module at a time.

    Args:
      ear: told of every call.
      step: number of the run.
      granularity: every torch function, or what every module returns.
      constant_of: a tensor → the torch tensor behind it if its value is known, else None.
    """

    def __init__(
        self,
        ear: Ear,
        *,
        step: int = 0,
        granularity: Granularity = "operation",
        constant_of: Callable[[Any], Any] = lambda t: t,
    ) -> None:
        self.ear, self.step, self.constant_of = ear, step, constant_of
        self.granularity = granularity

    @contextmanager
    def __call__(self, module: nn.Module, args: tuple, kwargs: dict) -> Iterator[None]:
        """Listens while the caller runs `module` on these arguments."""
        run = _Run(self, module, (args, kwargs))
        before = register_module_forward_pre_hook(run.enter)
        after = register_module_forward_hook(run.leave, always_call=True)
        try:
            with run if self.granularity == "operation" else nullcontext():
                yield
        finally:
            before.remove()
            after.remove()


class _Run(TorchFunctionMode):
    def __init__(self, listener: Listener, module: nn.Module, arguments: Any) -> None:
        super().__init__()
        self.listener, self.thread = listener, threading.get_ident()
        self.names = {id(sub): name for name, sub in module.named_modules()}
        self.paths = [""]
        self.count: Counter[tuple[str, str]] = Counter()
        self.order = 0
        # Sources by tensor. Weak, so that listening keeps no activation alive.
        self.sources: Any = WeakIdKeyDictionary()
        for place, tensor in enumerate(_tensors(arguments)):
            self.sources[tensor] = ("input", str(place))
        named = (*module.named_parameters(), *module.named_buffers())
        self.sources.update({tensor: ("parameter", name) for name, tensor in named})

    def enter(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() == self.thread:
            self.paths.append(self.names.get(id(module), self.paths[-1]))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        path = self.paths.pop()
        results = _tensors(output)
        if self.listener.granularity == "module" and results and id(module) in self.names:
            self._hear(path, "forward", _tensors(args), results, "", None, None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = operation_name(func)
        if name is None:
            return func(*args, **kwargs)
        operands = _tensors((args, kwargs))
        in_place = changes_first(func)
        kept = self.listener.ear.before(operands) if in_place else None
        sources = [self._source(tensor) for tensor in operands]
        result = func(*args, **kwargs)
        results = operands[:1] if in_place else _tensors(result)
        if not results:
            return result
        leaves, tree = pytree.tree_flatten((args, kwargs))
        places = tuple(SLOT if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        constants = {
            place: self.listener.constant_of(tensor)
            for place, (tensor, (kind, _)) in enumerate(zip(operands, sources, strict=True))
            if kind == "constant"
        }
        program = Program(func, tree, places, constants, in_place)
        self._hear(self.paths[-1], name, operands, results, _settings(places), program, kept)
        return result

    def _hear(
        self,
        path: str,
        name: str,
        operands: list[torch.Tensor],
        results: list[torch.Tensor],
        settings: str,
        program: Program | None,
        kept: Any,
    ) -> None:
        nth = self.count[path, name]
        self.count[path, name] += 1
        call = Call(
            order=self.order,
            step=self.listener.step,
            path=path,
            operation=name,
            nth=nth,
            operands=tuple(
                Operand(*self._source(tensor), tuple(tensor.shape), _dtype(tensor))
                for tensor in operands
            ),
            results=tuple(Result(tuple(t.shape), _dtype(t)) for t in results),
            settings=settings,
            program=program,
        )
        self.order += 1
        self.listener.ear.heard(call, operands, results, kept)
        for place, tensor in enumerate(results):
            # A parameter that a function hands through (`.to` of its own dtype) stays one.
            if self._source(tensor)[0] != "parameter":
                self.sources[tensor] = ("operation", f"{call.key}#{place}")

    def _source(self, tensor: torch.Tensor) -> tuple[SourceKind, str]:
        return self.sources.get(tensor, ("constant", ""))


def call_again(program: Program, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Makes a recorded call on other tensors; one that writes in place writes into the first."""
    given = iter(tensors)
    leaves = [next(given) if leaf is SLOT else leaf for leaf in program.leaves]
    args, kwargs = pytree.tree_unflatten(leaves, program.tree)
    result = program.function(*args, **kwargs)
    return tensors[:1] if program.in_place else _tensors(result)


def operation_name(func: Any) -> str | None:
    """How reports call a torch function; None for what is no operation."""
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        name = getattr(func.__self__, "__name__", "")
        return name if name in _TENSOR_ATTRIBUTES else None
    if name == "__set__":
        return None
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name[:1] == "r" and name[1:] in ("add", "sub", "mul", "truediv", "matmul", "pow"):
            name = name[1:]  # `1 - x` is a `sub` as well; the order stands in the settings
        name = {"truediv": "div", "rdiv": "div", "iadd": "add_", "imul": "mul_"}.get(name, name)
    return name.lstrip("_")


def changes_first(func: Any) -> bool:
    """Whether a torch function writes into its first argument."""
    name = getattr(func, "__name__", "")
    if name in ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"):
        return True
    return name.endswith("_") and not name.endswith("__")


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _settings(leaves: Sequence[Any]) -> str:
    shown = (str(leaf).removeprefix("torch.") for leaf in leaves)
    return _MEMORY.sub("", ", ".join(shown))[:200]

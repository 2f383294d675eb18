"""Records every torch function that a module's code calls, on any engine.

All engines run the same Python code, so the stream of torch functions (`conv2d`, `add`, `softmax`)
is the same. Below them, CUDA's kernels, torch's fused paths and JAX's lowerings split a function
differently. One torch function mode and two module hooks record the stream; the model does not
notice them.
"""

import fnmatch
import functools
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from jaxsr.comparison.calls import SLOT, Call, Operand, Replay, Result, SourceKind
from jaxsr.comparison.statistics import Figures, describe
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.hooks import random_state, users_frame, version_of
from jaxsr.interop.mode_methods import FunctionMode, Options

_FOLDER = Path(__file__).parent

# Attributes that are tensors; reading any other attribute (`shape`, `grad`) is not an operation.
_TENSOR_ATTRIBUTES = ("T", "mT", "H", "mH", "data", "real", "imag")
_MEMORY = re.compile(r" at 0x[0-9a-f]+")

Granularity = Literal["module", "operation"]


class Observer(Protocol):
    """Called for every operation, in order."""

    def before_call(self, call: Call, operands: list[torch.Tensor]) -> Any:
        """Takes the operands' values, which the call may overwrite; `call` has no results yet."""
        ...

    def after_call(self, call: Call, inputs: Any, results: list[torch.Tensor]) -> None:
        """A call has run; `inputs` is the result of `before_call`."""
        ...


class OpRecorder:
    """Records one run of a module at a time.

    Args:
      observer: called for every operation.
      step: number of the run.
      granularity: every torch function, or the outputs of every module.
      constant_of: a tensor → the torch tensor behind it if its value is known, else None.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        step: int = 0,
        granularity: Granularity = "operation",
        constant_of: Callable[[torch.Tensor], Any] = lambda t: t,
    ) -> None:
        self.observer, self.step, self.constant_of = observer, step, constant_of
        self.granularity = granularity

    @contextmanager
    def __call__(self, module: nn.Module, args: tuple, kwargs: dict) -> Iterator[None]:
        """Records while the caller runs `module` on these arguments."""
        run = _RecordingMode(self, module, (args, kwargs))
        before = register_module_forward_pre_hook(run.enter)
        after = register_module_forward_hook(run.leave, always_call=True)
        try:
            with run if self.granularity == "operation" else nullcontext():
                yield
        finally:
            before.remove()
            after.remove()


class _RecordingMode(FunctionMode):
    def __init__(
        self, recorder: OpRecorder, module: nn.Module, arguments: tuple[tuple, dict]
    ) -> None:
        super().__init__()
        self.recorder, self.thread = recorder, threading.get_ident()
        self.names = {id(sub): name for name, sub in module.named_modules()}
        self.paths = [""]
        self.begun: list[tuple[Call, Any]] = []
        self.count: Counter[tuple[str, str]] = Counter()
        self.order = 0
        # Sources by tensor. Weak, so that recording keeps no activation alive.
        self.sources: Any = WeakIdKeyDictionary()
        for place, tensor in enumerate(_tensors(arguments)):
            self.sources[tensor] = ("input", str(place))
        named = (*module.named_parameters(), *module.named_buffers())
        self.sources.update({tensor: ("parameter", name) for name, tensor in named})

    def enter(self, module: nn.Module, args: tuple) -> None:
        if threading.get_ident() == self.thread:
            self.paths.append(self.names.get(id(module), self.paths[-1]))
            if self.recorder.granularity == "module":
                self.begun.append(self._begin("forward", _tensors(args), ""))

    def leave(self, module: nn.Module, args: tuple, output: PyTree) -> None:
        if threading.get_ident() != self.thread:
            return
        self.paths.pop()
        if self.recorder.granularity == "module":
            call, inputs = self.begun.pop()
            if (results := _tensors(output)) and id(module) in self.names:
                self._record(call, inputs, results)

    def call(self, func: Callable, args: tuple, kwargs: Options) -> Any:
        name = operation_name(func)
        if name is None:
            return func(*args, **kwargs)
        leaves, tree = pytree.tree_flatten((args, kwargs))
        places = tuple(SLOT if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        operands = _tensors(leaves)
        call, inputs = self._begin(name, operands, _settings(places))
        constants = {
            place: self.recorder.constant_of(tensor)
            for place, (tensor, operand) in enumerate(zip(operands, call.operands, strict=True))
            if operand.kind == "constant"
        }
        versions, state = [version_of(tensor) for tensor in operands], random_state()
        result = func(*args, **kwargs)
        moved = [k for k, n in enumerate(versions) if version_of(operands[k]) != n]
        written = tuple(moved[:1]) if result is None else _statistics_written(call)
        for place in (*moved, *written):
            if call.operands[place].kind == "parameter":  # from here on a result
                self.sources.pop(operands[place], None)
        if results := _tensors(result) + [operands[k] for k in written]:
            # A gradient is of all operations that lead to it, and cannot be computed alone.
            alone = func is not torch.autograd.grad
            program = Replay(func, tree, places, constants, written) if alone else None
            draws = state != random_state() or any(isinstance(x, torch.Generator) for x in leaves)
            self._record(replace(call, draws=draws, program=program), inputs, results)
        return result

    def _begin(self, name: str, operands: list[torch.Tensor], settings: str) -> tuple[Call, Any]:
        """A call that is about to run, and the observer's values of its operands."""
        call = Call(
            order=self.order,
            step=self.recorder.step,
            path=self.paths[-1],
            operation=name,
            nth=self.count[self.paths[-1], name],
            operands=tuple(
                Operand(*self._source(tensor), tuple(tensor.shape), _dtype(tensor))
                for tensor in operands
            ),
            results=(),
            settings=settings,
        )
        return call, self.recorder.observer.before_call(call, operands)

    def _record(self, call: Call, inputs: Any, results: list[torch.Tensor]) -> None:
        call = replace(
            call,
            order=self.order,  # a module's calls end in another order than they begin
            nth=self.count[call.token],
            results=tuple(Result(tuple(t.shape), _dtype(t)) for t in results),
            source=_calling_line(),
        )
        self.order += 1
        self.count[call.token] += 1
        self.recorder.observer.after_call(call, inputs, results)
        for place, tensor in enumerate(results):
            # A parameter that a function hands through (`.to` of its own dtype) stays one.
            if self._source(tensor)[0] != "parameter":
                self.sources[tensor] = ("operation", f"{call.key}#{place}")

    def _source(self, tensor: torch.Tensor) -> tuple[SourceKind, str]:
        return self.sources.get(tensor, ("constant", ""))


@dataclass(frozen=True, kw_only=True)
class Record:
    """One operation of a run and its stored results."""

    call: Call
    figures: tuple[Figures, ...] = ()
    """Figures of each result; empty where the value could not leave the program."""
    tensors: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """`in0`, `in1`, …, `out0`, …, for the operations that `keep` names."""


class StatisticsObserver:
    """Takes statistics of every result, and keeps no tensor alive but those that `keep` names.

    The arrays of a call are `out0`, `out1`, …, and `in0`, … where `keep` names it.

    Args:
      value: a tensor's value as an array, or None if it has no value.
      keep: `fnmatch` patterns of `path:operation` whose operands are wanted as well.
    """

    def __init__(self, value: Callable[[torch.Tensor], Any], *, keep: Sequence[str] = ()) -> None:
        self._value, self._keep = value, tuple(keep)
        self.records: list[Record] = []

    def before_call(self, call: Call, operands: list[torch.Tensor]) -> list:
        kept = matches(call, self._keep)
        return [_copied(self._value(t)) for t in operands] if kept else []

    def after_call(self, call: Call, inputs: list, results: list[torch.Tensor]) -> None:
        arrays = {f"out{k}": self._value(t) for k, t in enumerate(results)}
        arrays |= {f"in{k}": v for k, v in enumerate(inputs)}
        self.take(call, {name: v for name, v in arrays.items() if v is not None})

    def take(self, call: Call, arrays: dict[str, Any]) -> None:
        """Gets a call and its arrays, in order."""
        self.records.append(self.record(call, arrays))

    def record(self, call: Call, arrays: dict[str, np.ndarray]) -> Record:
        """The record of a call; without figures if a value could not leave the program."""
        results = [arrays.get(f"out{k}") for k in range(len(call.results))]
        figures = tuple(describe(value) for value in results if value is not None)
        kept = matches(call, self._keep)
        return Record(
            call=call,
            figures=figures if len(figures) == len(results) else (),
            tensors={name: _copied(v) for name, v in arrays.items()} if kept else {},
        )


def matches(call: Call, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches the call's `path:operation`."""
    name = ":".join(call.token)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _copied(value: Any) -> Any:
    """Copies a value whose memory may change."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def replay_call(program: Replay, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Makes a recorded call on other tensors, which it may write."""
    replacements = iter(tensors)
    leaves = [next(replacements) if leaf is SLOT else leaf for leaf in program.leaves]
    args, kwargs = pytree.tree_unflatten(leaves, program.tree)
    result = program.function(*args, **kwargs)
    return _tensors(result) + [tensors[k] for k in program.written]


def _statistics_written(call: Call) -> tuple[int, ...]:
    """The running statistics that a normalisation in training writes; torch does not count it."""
    trains = "True" in call.settings and len(call.operands) > 2
    return (1, 2) if trains and call.operation in ("batch_norm", "instance_norm") else ()


def operation_name(func: Any) -> str | None:
    """Name of a torch function in reports; None if it is not an operation."""
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        name = getattr(func.__self__, "__name__", "")
        return name if name in _TENSOR_ATTRIBUTES else None
    if name in ("__set__", "requires_grad_"):
        return None
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name[:1] == "r" and name[1:] in ("add", "sub", "mul", "truediv", "matmul", "pow"):
            name = name[1:]  # `1 - x` is a `sub` as well; the order stands in the settings
        name = {"truediv": "div", "rdiv": "div", "iadd": "add_", "imul": "mul_"}.get(name, name)
    return name.lstrip("_")


def _calling_line() -> str:
    """File and line of the model's code that runs, as reports name them."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    frame = users_frame(frame)
    if frame is None or Path(frame.f_code.co_filename).parent == _FOLDER:
        return ""  # torch's own modules have been run by this package
    return f"{_shown_file(frame.f_code.co_filename)}:{frame.f_lineno}"


@functools.cache
def _shown_file(file: str) -> str:
    """The file's path within its package: machines install packages in other places."""
    parts, packages = [Path(file).name], Path(file).parent
    while (packages / "__init__.py").is_file():
        parts.insert(0, packages.name)
        packages = packages.parent
    return "/".join(parts)


def _tensors(tree: PyTree) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _settings(leaves: Sequence[object]) -> str:
    shown = (str(leaf).removeprefix("torch.") for leaf in leaves)
    return _MEMORY.sub("", ", ".join(shown))[:200]

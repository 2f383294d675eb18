"""Who computes an operator: the one registry of aten operators and torch functions.

Files of `interop/lowerings` and `interop/folding` register entries with the decorators below, and
are found by themselves (`load`). `resolve` alone chooses between entries, torch and torchax; the
dispatcher acts on its choice, and `jaxsr.interop.explain` prints it.
"""

import dataclasses
import enum
import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard, TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket

from jaxsr.interop._core import custom_ops, torchax
from jaxsr.interop._core.operators import AbsentOperator
from jaxsr.interop._core.schema import functional_of, is_composite, name_of, schema_of
from jaxsr.interop.errors import InputError, UnsupportedTorchError

Function = Callable[..., Any]
Overload: TypeAlias = "OpOverload[..., Any]"
Packet: TypeAlias = "OpOverloadPacket[..., Any]"
Operator: TypeAlias = "OpOverload[..., Any] | OpOverloadPacket[..., Any] | str"
"""An overload, an operator with all its overloads, or the name of either: "namespace::op"."""
Decorated = TypeVar("Decorated", bound=Function)

HOW_TO_ADD = (
    "express it with other operations, or add a lowering: a function of arrays under "
    "@jaxsr.interop.lowering, or under @lowers in a file of interop/lowerings"
)

PACKAGES = ("jaxsr.interop.lowerings", "jaxsr.interop.folding")
"""Packages whose modules register entries when imported."""


class Kind(enum.Enum):
    """How an operator, or a torch function, is computed."""

    USER = "lowering registered by the user"
    REFUSED = "refused"
    LIFT = "jaxsr handler of constants"
    HANDLER = "jaxsr handler"
    PYTHON = "torch, in Python"
    COMPOSITE = "torch, as a composite of other operators"
    VALUE = "read into Python, of constants only"
    KNOWN = "torch, of known values"
    WRITE = "in-place write of the functional form"
    VIEW = "view"
    LOWERING = "jaxsr lowering"
    DECOMPOSITION = "torch decomposition"
    CUSTOM = "Python code of a torch.library custom operator"
    TORCHAX = "torchax lowering"
    NOTHING = "nothing"
    FUNCTION = "torch function override"
    FOLDING = "lane folding rule"
    UNUSED = "unused torchax lowering"


# An operator may have one entry of each of these in addition to the one that computes it.
_BESIDE = (Kind.USER, Kind.FOLDING, Kind.UNUSED, Kind.TORCHAX)
# Functions of arrays, or of tensors, that neither write nor alias their arguments.
_FUNCTIONAL = (Kind.USER, Kind.LOWERING, Kind.DECOMPOSITION)


@dataclasses.dataclass(frozen=True)
class Entry:
    """Who computes one operator or torch function."""

    kind: Kind
    function: Function | None = None
    """Takes arguments that depend on the kind: see the decorator that registers it."""
    reason: str = ""
    """Why it is refused or not used."""
    source: str = ""
    """file:line where it is registered or defined."""
    error: type[UnsupportedTorchError] = UnsupportedTorchError
    """The error of a refusal."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """`function`, of a kind that always has one."""
        assert self.function is not None, self
        return self.function(*args, **kwargs)


_ENTRIES: dict[tuple[Kind | None, object], Entry] = {}


def is_overload(func: object) -> TypeGuard[Overload]:
    """Whether it is an aten overload, as `torch.ops.aten.amax.default`."""
    return isinstance(func, OpOverload)


def is_packet(func: object) -> TypeGuard[Packet]:
    """Whether it is an aten operator with its overloads, as `torch.ops.aten.amax`."""
    return isinstance(func, OpOverloadPacket)


@functools.cache
def resolve(func: Overload) -> Entry:
    """Who computes an aten overload: the first of the following that applies."""
    user, entry = _entry(Kind.USER, func), _entry(None, func)
    schema = schema_of(func)
    if user is not None:
        return user
    if entry is not None and entry.kind in (Kind.REFUSED, Kind.LIFT, Kind.HANDLER):
        return entry
    if entry is None and func.namespace in ("prim", "prims"):
        return Entry(Kind.PYTHON)
    if entry is None and is_composite(func):
        return Entry(Kind.COMPOSITE)
    if schema.needs_value:
        return Entry(Kind.VALUE)
    if entry is None:
        python = custom_ops.python_function(func)
        if python is not None:
            return Entry(Kind.CUSTOM, python, source=source_of(python))
    if schema.mutated:
        return Entry(Kind.WRITE, functional_of(func))
    if schema.is_view:
        return entry or Entry(Kind.VIEW)
    if entry is not None:
        return entry
    wrapper = _entry(Kind.TORCHAX, func)
    decomposition = torchax.decomposition(func)
    if decomposition is not None and wrapper is None:
        return Entry(Kind.DECOMPOSITION, decomposition, source=source_of(decomposition))
    if (Kind.UNUSED, func) not in _ENTRIES:
        lowering = torchax.lowering(func)
        if lowering is not None:
            function = lowering if wrapper is None else wrapper.call(lowering)
            return Entry(Kind.TORCHAX, function, source=source_of(lowering))
        if lack := torchax.lacks(func):
            return Entry(Kind.REFUSED, reason=f"{lack}; {torchax.HOW_TO_INSTALL}")
    return Entry(Kind.NOTHING)


def is_torch_decomposition(func: Overload, entry: Entry) -> bool:
    """Whether a decomposition is torch's own, not one registered here."""
    return _entry(None, func) is not entry


def _entry(slot: Kind | None, func: Overload) -> Entry | None:
    """The entry of an overload, registered under itself or under its name."""
    entry = _ENTRIES.get((slot, func))
    for name in () if entry is not None else (func.name(), func.name().partition(".")[0]):
        entry = entry or _ENTRIES.get((slot, name))
        if entry is not None and entry.kind in _FUNCTIONAL:
            _check_functional(func)
    return entry


def function_override(func: object) -> Entry | None:
    """The override or refusal of a torch function, None where torch's own is run.

    An aten overload that code calls by its name is dispatched like any other.
    """
    return None if is_overload(func) else _ENTRIES.get((None, func))


def folding_rule(func: object) -> Entry | None:
    """The rule by which lane folding computes an overload on folded images, or None."""
    return _ENTRIES.get((Kind.FOLDING, func))


def unused_torchax(func: object) -> Entry | None:
    """The note that torchax's lowering of an overload is not used, and why; or None."""
    return _ENTRIES.get((Kind.UNUSED, func))


def _decorator(kind: Kind, *funcs: object) -> Callable[[Decorated], Decorated]:
    place = _caller()

    def register(function: Decorated) -> Decorated:
        for func in funcs:
            _register(func, Entry(kind, function, source=place))
        return function

    return register


lowers = functools.partial(_decorator, Kind.LOWERING)
"""Registers a JAX lowering: arrays for tensors, as the operator takes them; returns arrays.

Operators of another library are named: "namespace::op", whether or not it is imported.
"""
handles = functools.partial(_decorator, Kind.HANDLER)
"""Registers `(trace, func, args, kwargs)` on tensors, for operators that are not pure functions."""
lifts = functools.partial(_decorator, Kind.LIFT)
"""Registers `(trace, func, args, kwargs)` on tensors that the trace has not adopted."""
decomposes = functools.partial(_decorator, Kind.DECOMPOSITION)
"""Registers a function of tensors that calls other torch operators."""
views = functools.partial(_decorator, Kind.VIEW)
"""Registers `(parent, arguments, metas)`, which returns a `View` for each result, or None."""
overrides = functools.partial(_decorator, Kind.FUNCTION)
"""Registers `(trace, func, args, kwargs)` on tensors, called instead of a torch function."""
folds = functools.partial(_decorator, Kind.FOLDING)
"""Registers a rule of lane folding: `interop/folding/rules.py` describes its arguments."""


def refuse(
    reasons: Mapping[object, str], *, error: type[UnsupportedTorchError] = UnsupportedTorchError
) -> None:
    """Refuses operators (overloads or packets) and torch functions: the reason, a workaround."""
    place = _caller()
    for func, reason in reasons.items():
        _register(func, Entry(Kind.REFUSED, reason=reason, source=place, error=error))


def skip_torchax(reason: str, *funcs: Operator) -> None:
    """Leaves torchax's lowerings of operators unused, because of `reason`."""
    place = _caller()
    for func in funcs:
        _register(func, Entry(Kind.UNUSED, reason=reason, source=place))


def wraps_torchax(*funcs: Operator) -> Callable[[Decorated], Decorated]:
    """Registers a function that makes a lowering of torchax's one.

    It goes in front of torch's decomposition. If an operator has overloads, those that return a new
    tensor are registered.
    """

    def register(wrapper: Decorated) -> Decorated:
        for func in (overload for each in funcs for overload in _overloads(each)):
            if is_overload(func) and not _aliases(func):
                _register(func, Entry(Kind.TORCHAX, wrapper))
        return wrapper

    return register


def computes_known(reason: str, *funcs: Operator) -> None:
    """Leaves operators to torch, where all values are known: `reason` says why others are not."""
    place = _caller()
    for func in (overload for each in funcs for overload in _overloads(each)):
        if is_overload(func) and not schema_of(func).mutated:
            _register(func, Entry(Kind.KNOWN, reason=reason, source=place))


def register_user_lowering(func: Operator, lowering: Function) -> None:
    """Registers for `jaxsr.interop.lowering`; replaces an earlier one of the same operator."""
    entry = Entry(Kind.USER, lowering, source=source_of(lowering))
    # Overloads that write, as `out=`, follow the functional one.
    functional = [f for f in _overloads(func) if not (is_overload(f) and _aliases(f))]
    for overload in functional or [func]:
        _register(overload, entry)


ABSENT: set[str] = set()
"""Names of operators that something is registered for and this torch does not have."""


def _register(func: object, entry: Entry) -> None:
    slot = entry.kind if entry.kind in _BESIDE else None
    for target in _overloads(func):
        if is_overload(target) and entry.kind in _FUNCTIONAL:
            _check_functional(target)
        earlier = _ENTRIES.get((slot, target))
        if earlier is not None and entry.kind is not Kind.USER:
            places = " and ".join(f"at {e.source} ({e.kind.value})" for e in (earlier, entry))
            raise ValueError(f"{_full_name(target)} is registered twice: {places}; keep one")
        _ENTRIES[slot, target] = entry
    resolve.cache_clear()


def _check_functional(func: Overload) -> None:
    if _aliases(func):
        raise InputError(
            f"{func} {_aliases(func)} its argument, which no lowering can do; register one "
            "for the operator that returns a new tensor"
        )


def _aliases(func: Overload) -> str:
    """How an overload aliases its argument, "" where its result is a new tensor."""
    schema = schema_of(func)
    return "writes into" if schema.mutated else "is a view of" if schema.is_view else ""


def _overloads(func: object) -> list[object]:
    """The overloads of an operator. A name whose library is not imported yet stands for itself."""
    if isinstance(func, AbsentOperator):
        ABSENT.add(func.name)
        return []
    if isinstance(func, str):
        namespace, separator, name = func.partition("::")
        name, _, overload = name.partition(".")
        if not (separator and namespace and name):
            raise InputError(f'{func!r} names no operator; write "namespace::op"')
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is None or (overload and overload not in packet.overloads()):
            return [func]
        func = getattr(packet, overload) if overload else packet
    if is_packet(func):
        return [getattr(func, name) for name in func.overloads()]
    return [func]


def _full_name(func: object) -> str:
    return str(func) if is_overload(func) or isinstance(func, str) else name_of(func)


def _caller() -> str:
    """file:line that called the function that calls this one, or its caller within this file."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return _place(frame.f_code.co_filename, frame.f_lineno)


def source_of(function: Function) -> str:
    """file:line where a function is defined, "" where Python does not know."""
    plain: object = function
    while (inner := getattr(plain, "__wrapped__", getattr(plain, "func", None))) is not None:
        plain = inner
    code = getattr(plain, "__code__", None)
    return "" if code is None else _place(code.co_filename, code.co_firstlineno)


def _place(file: str, line: int) -> str:
    """file:line, the file as seen from where its package is installed."""
    path = Path(file)
    package = next((p for p in path.parents if not (p / "__init__.py").exists()), path.parent)
    return f"{path.relative_to(package)}:{line}"


@functools.cache
def load() -> None:
    """Imports torchax and every module that registers entries; call it outside any trace."""
    torchax.prepare()
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            importlib.import_module(module.name)

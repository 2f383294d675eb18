"""Who computes a torch operator or function inside `JaxModule.apply`.

>>> print(jaxsr.interop.explain("aten.amax"))
aten.amax.default: jaxsr lowering (jaxsr/interop/lowerings/extremes.py:146)
  lane folding: a rule of its own (jaxsr/interop/folding/rules.py:162)
"""

import dataclasses
import difflib
from typing import Any

import torch

from jaxsr.interop._core import registry, torchax
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import Entry, Kind, Overload, Packet, is_overload, is_packet
from jaxsr.interop._core.schema import name_of
from jaxsr.interop._core.torchax import HOW_TO_INSTALL, OPERATORS
from jaxsr.interop.errors import InputError
from jaxsr.interop.folding import rules
from jaxsr.interop.folding.elementwise import LANEWISE, pointwise

__all__ = ["HOW_TO_INSTALL", "Explanation", "OperatorExplanation", "explain", "lacking_lowerings"]


@dataclasses.dataclass(frozen=True)
class OperatorExplanation:
    """Who computes one aten overload or torch function."""

    name: str
    """As torch writes it: `aten.amax.default`, `torch.nn.functional.one_hot`."""
    who: str
    """jaxsr lowering, torchax lowering, torch decomposition, view, refused, nothing ..."""
    source: str = ""
    """file:line of that function; "" where it is torch's own."""
    detail: str = ""
    """Reason of a refusal, or another remark."""
    folding: str = ""
    """How lane folding treats it; "" where it gets unfolded images."""

    def __str__(self) -> str:
        first = f"{self.name}: {self.who}" + (f" ({self.source})" if self.source else "")
        others = (self.detail, f"lane folding: {self.folding}" if self.folding else "")
        return "\n  ".join([first, *(line for line in others if line)])


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Who computes an operator: an answer for each of its overloads."""

    operators: tuple[OperatorExplanation, ...]

    def __str__(self) -> str:
        return "\n".join(str(operator) for operator in self.operators)


def explain(target: object) -> Explanation:
    """Who computes an operator inside `JaxModule.apply`: jaxsr, torchax, torch, or nobody.

    Args:
      target: an aten operator or overload ("aten.amax", "aten.amax.default",
        `torch.ops.aten.amax`), or a torch function ("torch.nn.functional.interpolate",
        `torch.einsum`, "torch.Tensor.to").

    Returns:
      An answer for each overload; `print` it.

    Raises:
      InputError: the operator or function does not exist; the message lists similar names.
    """
    registry.load()
    func: Any = _named(target) if isinstance(target, str) else target
    if is_packet(func):
        overloads = [_overload(func, name) for name in func.overloads()]
        return Explanation(tuple(_explain_overload(f) for f in overloads if f is not None))
    if is_overload(func):
        return Explanation((_explain_overload(func),))
    if not callable(func):
        raise InputError(f"{target!r} is neither an aten operator nor a torch function")
    name = target if isinstance(target, str) else name_of(func)
    return Explanation((_explain_function(name, func),))


def lacking_lowerings() -> list[str]:
    """Operators of this torch that jaxsr takes from torchax, and the installed one does not have.

    Raises:
      InputError: the installed torchax cannot be read.
    """
    registry.load()
    packets = {name.rpartition(".")[0].removeprefix("aten.") for name in OPERATORS}
    operators: list[Any] = [getattr(aten, name) for name in sorted(packets)]
    overloads = [getattr(packet, name) for packet in operators for name in packet.overloads()]
    return [str(func) for func in overloads if torchax.lacks(func)]


def _overload(packet: Packet, name: str) -> "Overload | None":
    """None for overloads of TorchScript's own, which the dispatcher does not know."""
    overload: Overload = getattr(packet, name)
    has_kernel = torch._C._dispatch_has_kernel(overload.name())  # pyright: ignore
    return overload if has_kernel else None


def _explain_overload(func: Overload) -> OperatorExplanation:
    entry = registry.resolve(func)
    detail, folding = _detail(func, entry), _folding(func, entry)
    return OperatorExplanation(str(func), _who(func, entry), entry.source, detail, folding)


def _who(func: Overload, entry: Entry) -> str:
    if entry.kind is Kind.WRITE and entry.function is None:
        return "refused"
    if entry.kind is Kind.DECOMPOSITION and not registry.is_torch_decomposition(func, entry):
        return "jaxsr decomposition"
    return entry.kind.value


def _detail(func: Overload, entry: Entry) -> str:
    if entry.kind is Kind.WRITE:
        if entry.function is None:
            return "it has no functional form; assign the result of the out-of-place function"
        return f"the result is that of {_full_name(entry.function)}"
    if entry.kind is Kind.VIEW and entry.function is None:
        return "by strides, through an index map"
    if entry.kind is Kind.VALUE:
        return "refused where the value depends on an input; use torch.where"
    if entry.kind is Kind.NOTHING:
        return registry.HOW_TO_ADD
    unused = registry.unused_torchax(func)
    if unused is not None and entry.kind is Kind.DECOMPOSITION:
        return f"torchax has a lowering that is not used: it {unused.reason}"
    return entry.reason


def _full_name(function: object) -> str:
    return str(function) if is_overload(function) else name_of(function)


def _folding(func: Overload, entry: Entry) -> str:
    rule = rules.rule_of(func)
    if rule is None or entry.kind is Kind.REFUSED:
        return ""
    if rule is pointwise:
        shared = f"one element at a time ({registry.source_of(rule)})"
        return shared if entry.kind in LANEWISE else ""
    return f"a rule of its own ({registry.source_of(rule)})"


def _explain_function(name: str, func: object) -> OperatorExplanation:
    entry = registry.function_override(func)
    if entry is None:
        detail = 'torch runs it; its aten operators are explained by explain("aten....")'
        return OperatorExplanation(name, "torch", detail=detail)
    return OperatorExplanation(name, entry.kind.value, entry.source, entry.reason)


def _named(name: str) -> object:
    """The operator or function of that name."""
    path = name.removeprefix("torch.ops.").replace("::", ".").split(".")
    if path[0] == "torch":
        result: Any = torch
        for depth, part in enumerate(path[1:], 1):
            if not hasattr(result, part):
                raise _unknown(name, [".".join([*path[:depth], member]) for member in dir(result)])
            result = getattr(result, part)
        return result
    operators = {
        operator.replace("::", ".")
        for operator in torch._C._dispatch_get_all_op_names()  # pyright: ignore
    }
    overloads = {o if o.count(".") == 2 else f"{o}.default" for o in operators}
    packets = {o.rpartition(".")[0] for o in overloads}
    plain = ".".join(path)
    if plain not in overloads | packets:
        raise _unknown(name, sorted(packets | overloads))
    result = torch.ops
    for part in path:
        result = getattr(result, part)
    return result


def _unknown(name: str, names: list[str]) -> InputError:
    written = name.removeprefix("torch.ops.").replace("::", ".")
    if written in registry.ABSENT or f"{written}.default" in registry.ABSENT:
        return InputError(
            f"torch {torch.__version__} has no operator {name!r}, which jaxsr computes in releases "
            "of torch that have it"
        )
    similar = difflib.get_close_matches(name, names, n=4)
    hint = f"; similar: {', '.join(similar)}" if similar else ""
    return InputError(f"there is no torch operator or function {name!r}{hint}")

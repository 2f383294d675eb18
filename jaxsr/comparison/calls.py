"""A recorded operation: one call of a torch function, its place, operands and results.

An operation is identified by the step, the path of the module whose `forward` makes the call, the
function's name and how many times that module has called it in that step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from jaxsr.field_values import from_values
from jaxsr.interop.annotations import JsonObject

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils._pytree import TreeSpec

ROOT = "(root)"
"""Stands for the path of the outermost module."""

SourceKind = Literal["operation", "input", "parameter", "constant"]


class Operand(NamedTuple):
    """A tensor that went into a call."""

    kind: SourceKind
    """Result of an earlier call, argument of the model, parameter or buffer, or a tensor that the
    code made otherwise."""
    name: str
    """Key of the call, number of the argument, or the parameter's torch name."""
    shape: tuple[int, ...]
    dtype: str


class Result(NamedTuple):
    """A tensor that came out of a call."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Replay:
    """Everything for making the call again; lives only as long as the process."""

    function: Callable
    tree: "TreeSpec"
    """torch's description of how the arguments nest."""
    leaves: tuple
    """Flat arguments, `SLOT` where a tensor stood."""
    constants: "Mapping[int, Tensor]"
    """Operand number → torch tensor, for operands of kind `constant`."""
    written: tuple[int, ...]
    """Numbers of the operands that are results, changed, and are not returned."""


class _Slot:
    def __repr__(self) -> str:
        return "·"


SLOT = _Slot()


@dataclass(frozen=True, kw_only=True)
class Call:
    """One operation of a run."""

    order: int
    """Position in the step, from 0."""
    step: int
    """Decoding step, 0 for the prompt and for models that run once."""
    path: str
    """Module, as `named_modules` calls it; empty for the outermost."""
    operation: str
    """Name of the torch function."""
    nth: int
    """How many calls of this function this module made before, in this step."""
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    settings: str = ""
    """The other arguments, as text."""
    source: str = ""
    """File and line of the model's code that makes the call; empty if unknown."""
    draws: bool = False
    """Whether it drew random numbers, which it would draw anew when run alone."""
    program: Replay | None = field(default=None, repr=False, compare=False)

    @property
    def token(self) -> tuple[str, str]:
        """The key by which two streams are aligned."""
        return (self.path, self.operation)

    @property
    def key(self) -> str:
        """Name within the step."""
        return f"{self.path}:{self.operation}:{self.nth}"

    @property
    def place(self) -> str:
        """The key in words."""
        repeat = f" (call {self.nth + 1})" if self.nth else ""
        step = f", step {self.step}" if self.step else ""
        source = f" ({self.source})" if self.source else ""
        return f"{self.path or ROOT} · {self.operation}{repeat}{step}{source}"

    @property
    def is_uninitialised(self) -> bool:
        """Whether the results have memory that nothing has written, which is never compared."""
        return self.operation.startswith(("empty", "new_empty", "resize_"))

    def as_row(self) -> JsonObject:
        """Everything but the program, for a file."""
        return {name: value for name, value in vars(self).items() if name != "program"}

    @classmethod
    def from_row(cls, row: JsonObject) -> "Call":
        """Inverse of `as_row`, after a round trip through JSON.

        Raises:
          InputError: the row does not describe a call.
        """
        return from_values(cls, {name: value for name, value in row.items() if name != "program"})

"""The result of comparing two runs: a row for every operation, the faults, the verdict."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from jaxsr.comparison.calls import Call
from jaxsr.comparison.measures import ArrayError
from jaxsr.comparison.metrics import ErrorMetrics
from jaxsr.comparison.statistics import Figures
from jaxsr.comparison.tokens import TokenStep, first_divergence
from jaxsr.interop.annotations import JsonObject

Kind = Literal["local", "backward", "total", "structure", "nan"]


@dataclass(frozen=True, kw_only=True)
class Local:
    """One operation on both sides with equal inputs."""

    error: ErrorMetrics
    """Errors of the second side's result."""
    threshold: float
    """The error that rounding explains, by dtype, reduction length and, if need be, by trial."""
    tried: bool = False
    """Whether the threshold was raised to the effect of rounding the inputs once."""
    problem: str = ""
    """Why there is no figure: shapes that differ, an operation that fails."""
    exact: tuple[float, float] | None = None
    """Error of each side's result against float64, scale-free."""
    tensors: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """Inputs and results, for the first wrong operations."""

    @property
    def above(self) -> bool:
        """Whether rounding does not explain it."""
        return bool(self.problem) or self.error.worst > self.threshold


@dataclass(kw_only=True)
class OperationRow:
    """One operation, or one that a side lacks."""

    number: int
    """Position among all rows."""
    step: int
    first: Call | None
    second: Call | None
    total: ErrorMetrics | None = None
    """None where there is nothing to compare."""
    total_threshold: float = 0.0
    inherited: float = 0.0
    """Largest total error, relative, of the first side's operands."""
    local: Local | None = None
    backward: Local | None = None
    """The error of the gradients of its operands; `result` of it numbers those that have one."""
    exact: tuple[float, float] | None = None
    """Total error of each side against float64, relative."""
    first_figures: tuple[Figures, ...] = field(default=(), repr=False)
    """Figures of the results on the first side; empty where they could not leave the program."""
    second_figures: tuple[Figures, ...] = field(default=(), repr=False)

    @property
    def call(self) -> Call:
        call = self.first or self.second
        assert call is not None
        return call

    @property
    def is_repeatable(self) -> bool:
        """Whether both sides have it, and would give its results again when they run it alone."""
        sides = (self.first, self.second)
        return all(c is not None and not (c.draws or c.is_uninitialised) for c in sides)

    @property
    def nan(self) -> tuple[int, int]:
        """Elements of the results that are not a number, on either side."""
        return sum(f.nan for f in self.first_figures), sum(f.nan for f in self.second_figures)

    @property
    def infinite(self) -> tuple[int, int]:
        """Elements of the results that are infinite, on either side."""
        sides = (self.first_figures, self.second_figures)
        first, second = (sum(f.infinite for f in side) for side in sides)
        return first, second

    def worst_element(self, error: ErrorMetrics) -> str:
        """The element of the results in which an error is largest: index and both values."""
        if error.worst_at < 0 or error.result >= len(self.call.results):
            return ""
        shape = self.call.results[error.result].shape
        place = ", ".join(str(k) for k in np.unravel_index(error.worst_at, shape))
        first, second = error.worst_pair
        number = f" of result {error.result}" if len(self.call.results) > 1 else ""
        return f"largest at [{place}]{number}: {first:.7g} against {second:.7g}"

    @property
    def total_above(self) -> bool:
        """By the root mean square: over a whole run a single element may go astray in any of
        thousands of tensors, where large terms cancel, and mean nothing."""
        return self.total is not None and self.total.relative > self.total_threshold

    @property
    def local_above(self) -> bool:
        return self.local is not None and self.local.above


@dataclass(frozen=True, kw_only=True)
class Discrepancy:
    """An operation that rounding does not explain."""

    kind: Kind
    row: OperationRow
    text: str
    """The fault, without its place."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that a report shows."""

    first: JsonObject
    """Header of the first side's trace."""
    second: JsonObject
    rows: list[OperationRow] = field(repr=False)
    findings: list[Discrepancy]
    """In order of execution."""
    outputs: list[ErrorMetrics]
    """Errors of the results: the first of every step, then the further ones; whole tensors."""
    outputs_threshold: float
    steps: list[TokenStep]
    """Steps of language models."""
    weights: list[tuple[str, float]]
    """Parameters and buffers that are not equal, with their relative difference, worst first."""
    nan_steps: list[int]
    """Steps whose results hold NaN on either side."""
    compared_steps: int
    local_checked: bool
    """Whether local errors were looked for."""
    gradients: list[ArrayError] = field(default_factory=list)
    """Errors of the whole step: the worse side against float64, where they were compared."""

    @property
    def checked(self) -> int:
        """Operations that both sides have."""
        return sum(row.first is not None and row.second is not None for row in self.rows)

    @property
    def checked_locally(self) -> int:
        return sum(row.local is not None for row in self.rows)

    @property
    def outputs_above(self) -> bool:
        return any(pair.relative > self.outputs_threshold for pair in self.outputs)

    @property
    def wrong_gradient(self) -> ArrayError | None:
        """The gradient of the whole step that exceeds the rounding error most."""
        wrong = [one for one in self.gradients if not one.ok]
        return max(wrong, key=lambda one: one.ratio, default=None)

    @property
    def divergence(self) -> TokenStep | None:
        """The first step whose tokens differ."""
        return first_divergence(self.steps)

    @property
    def agree(self) -> bool:
        """Whether rounding explains every difference that was looked at; the exit status follows.

        It is the same for stored traces and for engines that were run.
        """
        benign = self.divergence is None or self.divergence.tie
        wrong = self.findings or self.weights or self.nan_steps or self.wrong_gradient
        return not wrong and benign and not self.outputs_above

"""Local errors: what each operation adds by itself.

The first side runs operation by operation. After each one, the second side runs its counterpart on
the same inputs, with its own parameters, constants and settings, and the results are compared. Only
figures are stored, and the tensors of the first wrong operations.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxsr.comparison.calls import Call
from jaxsr.comparison.metrics import INCOMPARABLE, ErrorMetrics, error_metrics, worst_of
from jaxsr.comparison.thresholds import (
    NOISE_FACTOR,
    local_threshold,
    pair_roundoff,
    reduction_length,
    roundoff_of,
)
from jaxsr.comparison.trace import Progress, Runner
from jaxsr.comparison.workload import Rollout, Workload

STORED_SUSPECTS = 3
"""Wrong operations whose tensors are stored."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """One operation on both sides with equal inputs."""

    error: ErrorMetrics
    """Of the second side's result."""
    threshold: float
    """What rounding explains, by dtype, reduction length and, if need be, by trial."""
    tried: bool = False
    """Whether the threshold was raised to what rounding the inputs once does to the result."""
    problem: str = ""
    """Why there is no figure: shapes that differ, an operation that fails."""
    first_exact: float | None = None
    """Error of the first side's result against float64, scale-free."""
    second_exact: float | None = None
    """Error of the second side's result against float64."""
    tensors: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """Inputs and results, for the first wrong operations."""

    @property
    def above(self) -> bool:
        """Whether rounding does not explain it."""
        return bool(self.problem) or self.error.worst > self.threshold


class LocalErrorObserver:
    """Compares every operation as soon as the first side has run it.

    Args:
      first: side that runs.
      second: side whose operations are run on the first's inputs.
      counterparts: order of the first's call → the second's call, for one step.
      reference: torch in float64, or None.
      within: whether to look at a call.
    """

    def __init__(
        self,
        first: Runner,
        second: Runner,
        counterparts: dict[int, Call],
        *,
        reference: "Runner | None",
        within: Callable[[Call], bool],
        suspects: int,
    ) -> None:
        self.errors: dict[int, Local] = {}
        self._first, self._second, self._reference = first, second, reference
        self._counterparts, self._within = counterparts, within
        self._suspects = suspects
        self._declared = roundoff_of([first.side.dtype, second.side.dtype])

    def before_call(self, tensors: list[Any]) -> Any:
        """See `Observer.before_call`."""
        values = [self._first.value(t) for t in tensors]
        return [None if v is None else np.array(v) for v in values]

    def after_call(self, call: Call, operands: list[Any], results: list[Any], saved: Any) -> None:
        """See `Observer.after_call`."""
        other = self._counterparts.get(call.order)
        if other is None or not self._within(call):
            return
        inputs = saved or [self._first.value(t) for t in operands]
        outputs = [value for t in results if (value := self._first.value(t)) is not None]
        if len(outputs) < len(results) or any(value is None for value in inputs):
            return  # inside another JAX transformation
        self.errors[call.order] = self._compare(call, other, inputs, outputs)

    def _compare(
        self, call: Call, other: Call, inputs: list[Any], outputs: list[np.ndarray]
    ) -> Local:
        threshold = local_threshold(call, other, self._declared)
        if len(inputs) != len(other.operands):
            counts = f"{len(inputs)} tensors on one side, {len(other.operands)} on the other"
            return Local(error=INCOMPARABLE, threshold=threshold, problem=f"takes {counts}")
        try:
            second_outputs = self._second.call(other, _replaceable(other, inputs))
        except Exception as error:  # whatever the operation raises on these inputs is the finding
            return Local(error=INCOMPARABLE, threshold=threshold, problem=_reason(error))
        error = _difference(outputs, second_outputs)
        problem = ""
        if [o.shape for o in outputs] != [t.shape for t in second_outputs]:
            shapes = (" ".join(str(t.shape) for t in side) for side in (outputs, second_outputs))
            problem = "gives shape {} on one side, {} on the other".format(*shapes)
        tried = False
        if error.worst > threshold and not problem:
            noise = self._noise(call, other, inputs, outputs)
            threshold, tried = max(threshold, noise), True
        exact = self._exact(call, inputs, outputs, second_outputs)
        tensors = {}
        if (problem or error.worst > threshold) and self._suspects > 0:
            self._suspects -= 1
            tensors = {f"in{k}": np.array(v) for k, v in enumerate(inputs)}
            tensors |= {f"first_out{k}": np.array(v) for k, v in enumerate(outputs)}
            tensors |= {f"second_out{k}": np.array(v) for k, v in enumerate(second_outputs)}
        return Local(
            error=error,
            threshold=threshold,
            tried=tried,
            problem=problem,
            first_exact=exact[0],
            second_exact=exact[1],
            tensors=tensors,
        )

    def _noise(
        self, call: Call, other: Call, inputs: list[Any], outputs: list[np.ndarray]
    ) -> float:
        """What moves if every floating input moves by one step of the coarser dtype."""
        unit = pair_roundoff(call, other, self._declared)
        rng = np.random.default_rng(0)
        moved = []
        for value in inputs:
            if value.dtype.kind in "biu":
                moved.append(value)
                continue
            sign = rng.choice((-1.0, 1.0), size=value.shape)
            with np.errstate(over="ignore", invalid="ignore"):
                step = value.astype(np.float64) * (1 + 2 * unit * sign)
                step = step.astype(value.dtype)
            moved.append(np.where(np.isfinite(step.astype(np.float64)), step, value))
        try:
            shifted = self._first.call(call, moved)
        except Exception:  # an operation that allows only certain values tells nothing this way
            return 0.0
        rounding = _difference(outputs, shifted).worst
        if not math.isfinite(rounding):
            return 0.0
        return NOISE_FACTOR * rounding * math.sqrt(reduction_length(call))

    def _exact(
        self, call: Call, inputs: list[Any], outputs: list[Any], second_outputs: list[Any]
    ) -> tuple[float | None, float | None]:
        if self._reference is None:
            return None, None
        try:
            exact = self._reference.call(call, inputs)
        except Exception:  # torch lacks some operations in float64
            return None, None
        return tuple(  # type: ignore[return-value]
            _difference(
                exact, [np.asarray(v, e.dtype) for v, e in zip(side, exact, strict=False)]
            ).worst
            for side in (outputs, second_outputs)
        )


def local_errors(
    workload: Workload,
    first: Runner,
    second: Runner,
    counterparts: Sequence[dict[int, Call]],
    *,
    tokens: Sequence[int] = (),
    reference: "Runner | None" = None,
    within: Callable[[Call], bool] = lambda call: True,
    progress: Progress = lambda text: None,
) -> list[dict[int, Local]]:
    """The local error of every operation that both sides have, by step and order.

    Args:
      workload: what to run.
      first: gives the inputs of every operation.
      second: is judged.
      counterparts: for each step, order of the first's call → the second's.
      tokens: fed after each step.
      reference: torch in float64: shows which side is more accurate.
      within: which of the first's calls to look at.
      progress: called with a line on each stage.
    """
    rollout: Rollout = workload.begin()
    errors: list[dict[int, Local]] = []
    suspects = STORED_SUSPECTS
    while (inputs := rollout.inputs()) is not None:
        step = len(errors)
        progress(f"local errors: step {step + 1} of {workload.steps}")
        observer = LocalErrorObserver(
            first, second, counterparts[step], reference=reference, within=within, suspects=suspects
        )
        outputs = first.observe(inputs, observer, step=step)
        suspects -= sum(bool(local.tensors) for local in observer.errors.values())
        errors.append(observer.errors)
        rollout.take(outputs, tokens[step] if step < len(tokens) else None)
    return errors


def _replaceable(other: Call, inputs: list[Any]) -> list[np.ndarray | None]:
    """The first side's values where the second's are results; its own parameters and constants."""
    return [
        value if operand.kind in ("operation", "input") else None
        for operand, value in zip(other.operands, inputs, strict=True)
    ]


def _difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> ErrorMetrics:
    if len(first) != len(second):
        return INCOMPARABLE
    return worst_of([error_metrics(a, b) for a, b in zip(first, second, strict=True)])


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]

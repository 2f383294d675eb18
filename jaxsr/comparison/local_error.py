"""Local errors: what each operation adds by itself.

The first side runs operation by operation. As each one ends, the second side's counterpart is run
on the very inputs that the first had, with the second side's own parameters, constants and
settings, and the two results are compared at once. Tensors of one operation live at a time; nothing
of the run is stored but figures, and the tensors of the first operations found wrong.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxsr.comparison.calls import Call
from jaxsr.comparison.metrics import INCOMPARABLE, Apart, apart, worst_of
from jaxsr.comparison.thresholds import (
    NOISE_FACTOR,
    local_threshold,
    pair_roundoff,
    reduction_length,
    roundoff_of,
)
from jaxsr.comparison.trace import Progress, Runner
from jaxsr.comparison.workload import Course, Subject

KEPT_SUSPECTS = 3
"""Operations whose tensors are kept whole."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """One operation on both sides with equal inputs."""

    error: Apart
    """Of the second side's result."""
    threshold: float
    """What rounding explains, by dtype, reduction length and, where asked, by trial."""
    tried: bool = False
    """Whether the threshold was raised to what rounding the inputs once does to the result."""
    problem: str = ""
    """Why there is no figure: shapes that differ, an operation that fails."""
    first_exact: float | None = None
    """Error of the first side's result against float64, scale-free."""
    second_exact: float | None = None
    """Error of the second side's result against float64."""
    whole: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """Inputs and results, for the first operations found."""

    @property
    def above(self) -> bool:
        """Whether rounding does not explain it."""
        return bool(self.problem) or self.error.worst > self.threshold


class LockstepEar:
    """Compares as it hears.

    Args:
      first: side that is listened to.
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
        reference: Runner | None,
        within: Callable[[Call], bool],
        suspects: int,
    ) -> None:
        self.found: dict[int, Local] = {}
        self._first, self._second, self._reference = first, second, reference
        self._counterparts, self._within = counterparts, within
        self._suspects = suspects
        self._declared = roundoff_of([first.side.dtype, second.side.dtype])

    def before(self, tensors: list[Any]) -> Any:
        """See `Ear.before`."""
        values = [self._first.value(t) for t in tensors]
        return [None if v is None else np.array(v) for v in values]

    def heard(self, call: Call, operands: list[Any], results: list[Any], kept: Any) -> None:
        """See `Ear.heard`."""
        other = self._counterparts.get(call.order)
        if other is None or not self._within(call):
            return
        inputs = kept or [self._first.value(t) for t in operands]
        outputs = [value for t in results if (value := self._first.value(t)) is not None]
        if len(outputs) < len(results) or any(value is None for value in inputs):
            return  # inside another JAX transformation
        self.found[call.order] = self._compare(call, other, inputs, outputs)

    def _compare(
        self, call: Call, other: Call, inputs: list[Any], outputs: list[np.ndarray]
    ) -> Local:
        threshold = local_threshold(call, other, self._declared)
        if len(inputs) != len(other.operands):
            counts = f"{len(inputs)} tensors on one side, {len(other.operands)} on the other"
            return Local(error=INCOMPARABLE, threshold=threshold, problem=f"takes {counts}")
        try:
            theirs = self._second.call(other, _replaceable(other, inputs))
        except Exception as error:  # whatever the operation raises on these inputs is the finding
            return Local(error=INCOMPARABLE, threshold=threshold, problem=_reason(error))
        error = _difference(outputs, theirs)
        problem = ""
        if [o.shape for o in outputs] != [t.shape for t in theirs]:
            shapes = (" ".join(str(t.shape) for t in side) for side in (outputs, theirs))
            problem = "gives shape {} on one side, {} on the other".format(*shapes)
        tried = False
        if error.worst > threshold and not problem:
            noise = self._noise(call, other, inputs, outputs)
            threshold, tried = max(threshold, noise), True
        exact = self._exact(call, inputs, outputs, theirs)
        whole = {}
        if (problem or error.worst > threshold) and self._suspects > 0:
            self._suspects -= 1
            whole = {f"in{k}": np.array(v) for k, v in enumerate(inputs)}
            whole |= {f"first_out{k}": np.array(v) for k, v in enumerate(outputs)}
            whole |= {f"second_out{k}": np.array(v) for k, v in enumerate(theirs)}
        return Local(
            error=error,
            threshold=threshold,
            tried=tried,
            problem=problem,
            first_exact=exact[0],
            second_exact=exact[1],
            whole=whole,
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
        self, call: Call, inputs: list[Any], outputs: list[Any], theirs: list[Any]
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
            for side in (outputs, theirs)
        )


def local_errors(
    subject: Subject,
    first: Runner,
    second: Runner,
    counterparts: Sequence[dict[int, Call]],
    *,
    tokens: Sequence[int] = (),
    reference: Runner | None = None,
    within: Callable[[Call], bool] = lambda call: True,
    progress: Progress = lambda text: None,
) -> list[dict[int, Local]]:
    """The local error of every operation that both sides have, by step and order.

    Args:
      subject: what to run.
      first: gives the inputs of every operation.
      second: is judged.
      counterparts: for each step, order of the first's call → the second's.
      tokens: fed after each step.
      reference: torch in float64: tells which side is nearer to the truth.
      within: which of the first's calls to look at.
      progress: told what is being done.
    """
    course: Course = subject.begin()
    found: list[dict[int, Local]] = []
    suspects = KEPT_SUSPECTS
    while (inputs := course.inputs()) is not None:
        step = len(found)
        progress(f"local errors: step {step + 1} of {subject.steps}")
        ear = LockstepEar(
            first,
            second,
            counterparts[step],
            reference=reference,
            within=within,
            suspects=suspects,
        )
        outputs = first.listen(inputs, ear, step=step)
        suspects -= sum(bool(local.whole) for local in ear.found.values())
        found.append(ear.found)
        course.take(outputs, tokens[step] if step < len(tokens) else None)
    return found


def _replaceable(other: Call, inputs: list[Any]) -> list[np.ndarray | None]:
    """The first side's values where the second's are results; its own parameters and constants."""
    return [
        value if operand.kind in ("operation", "input") else None
        for operand, value in zip(other.operands, inputs, strict=True)
    ]


def _difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> Apart:
    if len(first) != len(second):
        return INCOMPARABLE
    return worst_of([apart(a, b) for a, b in zip(first, second, strict=True)])


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]

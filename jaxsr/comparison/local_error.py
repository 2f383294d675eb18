"""Local errors: what each operation adds by itself.

The first side runs operation by operation. After each one, the second side runs its counterpart on
the same inputs, with its own parameters, constants and settings, and the results are compared. Only
figures are stored, and the tensors of the first wrong operations.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from jaxsr.comparison.calls import Call
from jaxsr.comparison.metrics import INCOMPARABLE, ErrorMetrics, error_metrics, worst_of
from jaxsr.comparison.result import Local, Row
from jaxsr.comparison.thresholds import (
    NOISE_FACTOR,
    local_threshold,
    pair_roundoff,
    reduction_length,
    roundoff_of,
)
from jaxsr.comparison.trace import Progress, Runner
from jaxsr.comparison.workload import Workload
from jaxsr.errors import one_line

STORED_SUSPECTS = 3
"""Wrong operations whose tensors are stored."""


class LocalErrorObserver:
    """Compares every operation as soon as the first side has run it; see `measure_local_errors`."""

    def __init__(
        self,
        first: Runner,
        second: Runner,
        rows: Sequence[Row],
        *,
        reference: "Runner | None",
        within: str,
    ) -> None:
        self._rows = {
            (row.step, row.first.order): row
            for row in rows
            if row.first is not None
            and row.second is not None
            and (not within or f"{row.first.path}.".startswith(f"{within}."))
        }
        self._first, self._second, self._reference = first, second, reference
        self._suspects = STORED_SUSPECTS
        self._declared = roundoff_of([first.side.dtype, second.side.dtype])

    def before_call(self, tensors: list[torch.Tensor]) -> list[np.ndarray | None]:
        values = [self._first.value(t) for t in tensors]
        return [None if v is None else np.array(v) for v in values]

    def after_call(
        self, call: Call, operands: list[torch.Tensor], results: list[torch.Tensor], saved: Any
    ) -> None:
        row = self._rows.get((call.step, call.order))
        if row is None or row.second is None or call.program is None:
            return
        values = saved or [self._first.value(t) for t in operands]
        inputs = [value for value in values if value is not None]
        outputs = [value for t in results if (value := self._first.value(t)) is not None]
        if len(outputs) < len(results) or len(inputs) < len(values):
            return  # inside another JAX transformation
        row.local = self._compare(call, row.second, inputs, outputs)

    def _compare(
        self, call: Call, other: Call, inputs: list[np.ndarray], outputs: list[np.ndarray]
    ) -> Local:
        threshold = local_threshold(call, other, self._declared)
        if len(inputs) != len(other.operands):
            counts = f"{len(inputs)} tensors on one side, {len(other.operands)} on the other"
            return Local(error=INCOMPARABLE, threshold=threshold, problem=f"takes {counts}")
        # The first side's values where the second's are results; its own parameters and constants.
        replaced = [
            value if operand.kind in ("operation", "input") else None
            for operand, value in zip(other.operands, inputs, strict=True)
        ]
        try:
            second_outputs = self._second.call(other, replaced)
        except Exception as error:  # whatever the operation raises on these inputs is the finding
            reason = f"{type(error).__name__}: {one_line(error)}"[:300]
            return Local(error=INCOMPARABLE, threshold=threshold, problem=reason)
        error = _difference(outputs, second_outputs)
        problem, tried = "", False
        if [o.shape for o in outputs] != [t.shape for t in second_outputs]:
            shapes = (" ".join(str(t.shape) for t in side) for side in (outputs, second_outputs))
            problem = "gives shape {} on one side, {} on the other".format(*shapes)
        elif error.worst > threshold:
            noise = self._noise(call, other, inputs, outputs)
            threshold, tried = max(threshold, noise), True
        tensors = {}
        if (problem or error.worst > threshold) and self._suspects > 0:
            self._suspects -= 1
            groups = {"in": inputs, "first_out": outputs, "second_out": second_outputs}
            tensors = {
                f"{name}{k}": np.array(v)
                for name, group in groups.items()
                for k, v in enumerate(group)
            }
        return Local(
            error=error,
            threshold=threshold,
            tried=tried,
            problem=problem,
            exact=self._exact(call, inputs, outputs, second_outputs),
            tensors=tensors,
        )

    def _noise(
        self, call: Call, other: Call, inputs: list[np.ndarray], outputs: list[np.ndarray]
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
                step = (value.astype(np.float64) * (1 + 2 * unit * sign)).astype(value.dtype)
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
        self,
        call: Call,
        inputs: list[np.ndarray],
        outputs: list[np.ndarray],
        second_outputs: list[np.ndarray],
    ) -> tuple[float, float] | None:
        if self._reference is None:
            return None
        try:
            exact = self._reference.call(call, inputs)
        except Exception:  # torch lacks some operations in float64
            return None
        first, second = (
            _difference(
                exact, [np.asarray(v, e.dtype) for v, e in zip(side, exact, strict=False)]
            ).worst
            for side in (outputs, second_outputs)
        )
        return first, second


def measure_local_errors(
    workload: Workload,
    first: Runner,
    second: Runner,
    rows: Sequence[Row],
    *,
    tokens: Sequence[int] = (),
    reference: "Runner | None" = None,
    within: str = "",
    progress: Progress = lambda text: None,
) -> None:
    """Fills in the local error of every operation that both sides have.

    Args:
      workload: what to run.
      first: gives the inputs of every operation.
      second: is judged.
      rows: the operations of both.
      tokens: fed after each step.
      reference: torch in float64: shows which side is more accurate.
      within: look at this module only.
      progress: called with a line on each stage.
    """
    rollout, step = workload.begin(), 0
    observer = LocalErrorObserver(first, second, rows, reference=reference, within=within)
    while (inputs := rollout.inputs()) is not None:
        progress(f"local errors: step {step + 1} of {workload.steps}")
        outputs = first.observe(inputs, observer, step=step)
        rollout.take(outputs, tokens[step] if step < len(tokens) else None)
        step += 1


def _difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> ErrorMetrics:
    if len(first) != len(second):
        return INCOMPARABLE
    return worst_of([error_metrics(a, b) for a, b in zip(first, second, strict=True)])

"""Local errors: the error that each operation itself adds, forward and backward.

The first side runs operation by operation, or is a stored trace with whole tensors. After each one,
the second side runs its counterpart on the same inputs, with its own parameters, constants and
settings, and the results are compared. Only figures are stored, and the tensors of the first wrong
operations.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from jaxsr.comparison.backend_spec import BackendSpec
from jaxsr.comparison.calls import Call
from jaxsr.comparison.metrics import INCOMPARABLE, ErrorMetrics, error_metrics, worst_of
from jaxsr.comparison.op_recorder import Record
from jaxsr.comparison.recorded_trace import Backend, Progress, RecordedTrace
from jaxsr.comparison.result import Local, OperationRow
from jaxsr.comparison.thresholds import (
    NOISE_FACTOR,
    gradient_threshold,
    local_threshold,
    pair_roundoff,
    reduction_length,
    roundoff_of,
)
from jaxsr.comparison.workload import Workload
from jaxsr.errors import one_line

STORED_SUSPECTS = 3
"""Wrong operations whose tensors are stored."""


class LocalErrorObserver:
    """Compares every operation as soon as the first side has run it; see `measure_local_errors`."""

    def __init__(
        self,
        first: "Backend | None",
        second: Backend,
        rows: Sequence[OperationRow],
        *,
        dtypes: Sequence[str],
        reference: "Backend | None" = None,
        within: str = "",
        gradients: bool = False,
    ) -> None:
        self._rows = {
            (row.step, row.first.order): row
            for row in rows
            if row.first is not None
            and row.second is not None
            and row.second.program is not None
            and row.is_repeatable
            and (not within or f"{row.first.path}.".startswith(f"{within}."))
        }
        self._first, self._second, self._reference = first, second, reference
        self._gradients, self._suspects = gradients, STORED_SUSPECTS
        self._declared = roundoff_of(dtypes)

    def before_call(self, call: Call, operands: list[torch.Tensor]) -> list[np.ndarray]:
        if self._first is None or (call.step, call.order) not in self._rows:
            return []
        values = (self._first.value(t) for t in operands)
        return [np.array(value) for value in values if value is not None]

    def after_call(self, call: Call, inputs: list[np.ndarray], results: list[torch.Tensor]) -> None:
        row = self._rows.get((call.step, call.order))
        if row is None or call.program is None or self._first is None:
            return
        outputs = [value for t in results if (value := self._first.value(t)) is not None]
        if len(outputs) == len(results) and len(inputs) == len(call.operands):
            self.compare(row, call, inputs, outputs)  # else inside another JAX transformation

    def stored(self, records: Sequence[Record]) -> None:
        """Compares with a stored run: the operations whose tensors are whole in the trace."""
        for record in records:
            call = record.call
            row = self._rows.get((call.step, call.order))
            names = [f"in{k}" for k in range(len(call.operands))]
            names += [f"out{k}" for k in range(len(call.results))]
            if row is not None and record.tensors.keys() >= set(names):
                values = [record.tensors[name] for name in names]
                self.compare(row, call, values[: len(call.operands)], values[len(call.operands) :])

    def compare(
        self, row: OperationRow, call: Call, inputs: list[np.ndarray], outputs: list[np.ndarray]
    ) -> None:
        """Fills in the errors of one operation, whose inputs and outputs the first side gives."""
        other = row.second
        assert other is not None
        if len(inputs) != len(other.operands):
            counts = f"{len(inputs)} tensors on one side, {len(other.operands)} on the other"
            threshold = local_threshold(call, other, self._declared)
            row.local = Local(error=INCOMPARABLE, threshold=threshold, problem=f"takes {counts}")
            return
        # The first side's values where the second's are results, or come from nowhere, as inside an
        # `autograd.Function`; its own parameters and constants.
        assert other.program is not None
        constants = other.program.constants
        from_second = [
            operand.kind == "parameter" or constants.get(place) is not None
            for place, operand in enumerate(other.operands)
        ]

        def replaced(values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
            return [None if second else v for second, v in zip(from_second, values, strict=True)]

        def forward(side: Backend, values: Sequence[np.ndarray]) -> list[np.ndarray]:
            if side is self._second:
                return side.call(other, replaced(values))
            return side.call(call if call.program else other, values)

        threshold = local_threshold(call, other, self._declared)
        row.local = self._judge(_Trial(call, other, inputs, outputs, threshold, forward))
        if self._gradients and self._first is not None and not row.local.problem:
            row.backward = self._backward(self._first, call, other, inputs, replaced)

    def _backward(
        self, first: Backend, call: Call, other: Call, inputs: list[np.ndarray], replaced: Callable
    ) -> Local | None:
        """The error of an operation's gradients, of the operands that have one on both sides."""

        def gradients(side: Backend, values: Sequence[np.ndarray]) -> list[np.ndarray | None]:
            if side is self._second:
                return side.gradients(other, replaced(values))
            return side.gradients(call, values)

        try:
            sides = gradients(first, inputs), gradients(self._second, inputs)
        except Exception:  # torch lacks the gradient of some operations, JAX that of others
            return None
        pairs = enumerate(zip(*sides, strict=True))
        both = [k for k, (a, b) in pairs if a is not None and b is not None]
        if not both:
            return None

        def chosen(of_operands: list[np.ndarray | None]) -> list[np.ndarray]:
            return [value for k in both if (value := of_operands[k]) is not None]

        return self._judge(
            _Trial(
                call, other, inputs, chosen(sides[0]),
                gradient_threshold(call, other, self._declared, both),
                lambda side, values: chosen(gradients(side, values)),
            )
        )  # fmt: skip

    def _judge(self, trial: "_Trial") -> Local:
        """The second side's error."""
        threshold, outputs = trial.threshold, trial.outputs
        try:
            second_outputs = trial.run(self._second, trial.inputs)
        except Exception as error:  # whatever the operation raises on these inputs is the finding
            reason = f"{type(error).__name__}: {one_line(error)}"[:300]
            return Local(error=INCOMPARABLE, threshold=threshold, problem=reason)
        error = _difference(outputs, second_outputs)
        problem, tried = "", False
        if [o.shape for o in outputs] != [t.shape for t in second_outputs]:
            shapes = (" ".join(str(t.shape) for t in side) for side in (outputs, second_outputs))
            problem = "gives shape {} on one side, {} on the other".format(*shapes)
        elif error.worst > threshold:
            threshold, tried = max(threshold, self._noise(trial)), True
        tensors = {}
        if (problem or error.worst > threshold) and self._suspects > 0:
            self._suspects -= 1
            groups = {"in": trial.inputs, "first_out": outputs, "second_out": second_outputs}
            tensors = {
                f"{name}{k}": np.array(v)
                for name, group in groups.items()
                for k, v in enumerate(group)
            }
        return Local(
            error=error, threshold=threshold, tried=tried, problem=problem,
            exact=self._exact(trial, second_outputs), tensors=tensors,
        )  # fmt: skip

    def _noise(self, trial: "_Trial") -> float:
        """The result's movement if every floating input moves by a step of the coarser dtype."""
        unit = pair_roundoff(trial.call, trial.other, self._declared)
        rng = np.random.default_rng(0)
        moved = []
        for value in trial.inputs:
            if value.dtype.kind in "biu":
                moved.append(value)
                continue
            sign = rng.choice((-1.0, 1.0), size=value.shape)
            with np.errstate(over="ignore", invalid="ignore"):
                step = (value.astype(np.float64) * (1 + 2 * unit * sign)).astype(value.dtype)
            moved.append(np.where(np.isfinite(step.astype(np.float64)), step, value))
        # A stored run cannot move: the second side's own movement stands for it.
        side = self._first or self._second
        try:
            still, movement = (trial.run(side, values) for values in (trial.inputs, moved))
            rounding = _difference(still, movement).worst
        except Exception:  # this does not work for an operation that allows only certain values
            return 0.0
        if not math.isfinite(rounding):
            return 0.0
        return NOISE_FACTOR * rounding * math.sqrt(reduction_length(trial.call))

    def _exact(
        self, trial: "_Trial", second_outputs: list[np.ndarray]
    ) -> tuple[float, float] | None:
        """Errors of both sides against float64."""
        if self._reference is None:
            return None
        try:
            exact = trial.run(self._reference, trial.inputs)
        except Exception:  # torch lacks some operations in float64
            return None
        first, second = (
            _difference(
                exact, [np.asarray(v, e.dtype) for v, e in zip(side, exact, strict=False)]
            ).worst
            for side in (trial.outputs, second_outputs)
        )
        return first, second


class _Trial(NamedTuple):
    """An operation, forward or backward, on the inputs that the first side gave it."""

    call: Call
    other: Call
    """The second side's counterpart."""
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    """Outputs of the first side."""
    threshold: float
    run: Callable[[Backend, Sequence[np.ndarray]], list[np.ndarray]]
    """Makes a side compute it on given inputs."""


def measure_local_errors(
    workload: Workload,
    first: "Backend | RecordedTrace",
    second: Backend,
    rows: Sequence[OperationRow],
    *,
    tokens: Sequence[int] = (),
    reference: "Backend | None" = None,
    within: str = "",
    gradients: bool = False,
    progress: Progress = lambda text: None,
) -> None:
    """Computes the local error of every operation that both sides have.

    Args:
      workload: the model and its inputs.
      first: gives the inputs of every operation; a trace gives those that it stored whole.
      second: the side that is judged.
      rows: the operations of both.
      tokens: fed after each step.
      reference: torch in float64: shows which side is more accurate.
      within: look at this module only.
      gradients: also compare the gradients of every operation.
      progress: called with a line on each stage.
    """
    stored = isinstance(first, RecordedTrace)
    side = BackendSpec.parse(first.header["side"]) if stored else first.side
    observer = LocalErrorObserver(
        None if stored else first, second, rows, dtypes=(side.dtype, second.side.dtype),
        reference=reference, within=within, gradients=gradients,
    )  # fmt: skip
    if stored:
        progress("local errors of the stored operations")
        observer.stored(first.records)
        return
    rollout, step = workload.begin(), 0
    while (inputs := rollout.inputs()) is not None:
        progress(f"local errors: step {step + 1} of {workload.steps}")
        outputs = first.observe(inputs, observer, step=step)
        rollout.take(outputs, tokens[step] if step < len(tokens) else None)
        step += 1


def _difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> ErrorMetrics:
    if len(first) != len(second):
        return INCOMPARABLE
    return worst_of([error_metrics(a, b) for a, b in zip(first, second, strict=True)])

"""What a check gives: rows, costs, the first fault; `print` shows it on one screen."""

from dataclasses import asdict, dataclass, field
from typing import Literal

from jaxsr.comparison.measures import FACTOR, FLOOR_ULPS, ArrayError
from jaxsr.interop.annotations import JsonObject
from jaxsr.runtime.exit_status import ExitStatus

Status = Literal["ok", "differs", "refused", "failed", "skipped"]
"""refused: a named limit of jaxsr or a mesh; failed: an error that jaxsr does not name."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was checked."""

    name: str
    """`forward`, `gradient`, `train gradient`, `vmap`, …"""
    status: Status
    arrays: tuple[ArrayError, ...] = ()
    detail: str = ""
    """Why it was refused, failed or skipped; or what else there is to say."""
    required: bool = True
    """Whether a refusal here refuses the module."""

    @property
    def worst(self) -> ArrayError | None:
        """The array with the largest error for its bound."""
        return max(self.arrays, key=lambda one: one.ratio, default=None)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds to build a program; steps a second of it and of eager torch on the CPU, if timed."""

    program: str
    trace_s: float
    compile_s: float
    steps_per_s: float | None = None
    torch_steps_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModuleError:
    """One submodule's output within a run of the whole, against the referee."""

    path: str
    kind: str
    """Name of its class."""
    worst: ArrayError
    amplification: float = 1.0
    """Torch's error in steps of float32, relative to the largest before it."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The first operation that is wrong by itself, on torch's inputs; or the module itself."""

    path: str
    kind: str
    quantity: str
    """The operation, or `gradient of` it; of the module itself the array that differs."""
    error: float
    bound: float
    detail: str = ""
    source: str = ""
    """File and line of the model's code that calls it."""


@dataclass(kw_only=True, repr=False)
class CheckResult:
    """Whether a module computes the same in JAX as in torch.

    `repr` is the page that the command prints.
    """

    name: str
    kind: str
    """Name of its class."""
    parameters: int
    """Number of values in trainable and frozen parameters."""
    inputs: str
    referee: str = "float64"
    platform: str = "cpu"
    rows: list[Row] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    fault: Fault | None = None
    modules: list[ModuleError] = field(default_factory=list)
    """The submodules in order of execution, where they were recorded."""
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """`differs` before `failed` before `refused` before `ok`."""
        states = {row.status for row in self.rows if row.required or row.status == "differs"}
        order: tuple[Status, ...] = ("differs", "failed", "refused", "ok")
        return next(status for status in order if status in states or status == "ok")

    @property
    def ok(self) -> bool:
        """Whether everything required was computed, and nothing differs."""
        return self.status == "ok"

    @property
    def exit_status(self) -> ExitStatus:
        """Exit status of the command."""
        if self.status == "refused":
            return ExitStatus.WRONG_INPUT
        return ExitStatus.OK if self.ok else ExitStatus.FAILED

    @property
    def reason(self) -> str:
        """Why the status is not ok; "" where it is."""
        if self.ok:
            return ""
        row = next(row for row in self.rows if row.status == self.status)
        if row.worst is not None and row.status == "differs" and not row.detail:
            worst = row.worst
            return (
                f"{row.name} of {worst.name}: JAX is {worst.error:.1e} from the referee, torch "
                f"{worst.torch_error:.1e}, allowed {worst.bound:.1e}"
            )
        return f"{row.name}: {row.detail}"

    def row(self, name: str) -> Row | None:
        """The row of that name."""
        return next((row for row in self.rows if row.name == name), None)

    def as_json(self) -> JsonObject:
        """Everything as plain data."""
        content = asdict(self)
        for row, plain in zip(self.rows, content["rows"], strict=True):
            for one, entry in zip(row.arrays, plain["arrays"], strict=True):
                entry |= {"bound": one.bound, "ok": one.ok}
        return {
            "status": self.status,
            "ok": self.ok,
            "reason": self.reason,
            "rule": {"factor": FACTOR, "floor_ulps": FLOOR_ULPS},
            **content,
        }

    def __repr__(self) -> str:
        from jaxsr.comparison.check_report import report_of
        from jaxsr.comparison.report import as_text

        return as_text(report_of(self))

"""The result of a check: rows, costs, the first fault. `print` shows it on one screen.

Its page has the module tree, coloured by error.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Literal

from jaxsr.comparison.measures import FACTOR, FLOOR_ULPS, ArrayError
from jaxsr.comparison.report import Line, Report, Table, as_text
from jaxsr.interop.annotations import JsonObject
from jaxsr.runtime.exit_status import ExitStatus

Status = Literal["ok", "differs", "refused", "failed", "skipped"]
"""refused: a named limit of jaxsr or a mesh; failed: an error that jaxsr does not name."""


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One thing that was checked."""

    name: str
    """`forward`, `gradient`, `train gradient`, `vmap`, …"""
    status: Status
    arrays: tuple[ArrayError, ...] = ()
    detail: str = ""
    """Why the check was refused, failed or skipped; or another remark."""
    required: bool = True
    """Whether a refusal here refuses the module."""

    @property
    def worst(self) -> ArrayError | None:
        """The array with the largest error for its bound."""
        return max(self.arrays, key=lambda one: one.ratio, default=None)


def skipped(name: str, reason: str) -> CheckRow:
    """The row of something that cannot be checked here, and need not be."""
    return CheckRow(name=name, status="skipped", detail=reason, required=False)


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
    rows: list[CheckRow] = field(default_factory=list)
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
        """Whether everything required was computed, and agrees."""
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

    def row(self, name: str) -> CheckRow | None:
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
        return as_text(report_of(self))


_VERDICTS = {
    "ok": "computes the same in JAX as in torch",
    "differs": "DIFFERS",
    "refused": "REFUSED",
    "failed": "FAILED",
}
_LONGEST = 300
_RULE = (
    f"errors are relative to the largest value of each array; a difference counts where JAX is "
    f"further from float64 than {FACTOR:.0f} times torch's float32 error, and than "
    f"{FLOOR_ULPS:.0f} steps of float32 at that value"
)
_AMPLIFIES = 100
"""Times that a submodule may amplify rounding before the page says so."""


def report_of(result: CheckResult) -> Report:
    """The verdict, the rows, the first wrong submodule, costs and notes."""
    verdict, reason = _VERDICTS[result.status], result.reason[:_LONGEST]
    subject = (
        f"{result.kind}, {result.parameters:,} parameters; {result.inputs}; JAX on "
        f"{result.platform}; referee {result.referee}"
    )
    details = [
        f"{row.name}: {row.detail[:_LONGEST]}"
        for row in result.rows
        if row.detail and row.detail not in reason
    ]
    headings = ("check", "", "error", "torch's", "allowed", "worst of")
    checks = [Line(_cells(row), row.status) for row in result.rows]
    tables = [Table(title="checks", headings=headings, left=(0, 1, 5), lines=checks)]
    if result.speeds:
        tables.append(_speed_table(result.speeds))
    if result.modules:
        tables.append(_module_table(result))
    return Report(
        title=result.name,
        status=result.status,
        headline=f"{verdict}: {reason}" if reason else verdict,
        lines=[subject, *([_fault_line(result)] if result.fault is not None else [])],
        tables=tables,
        notes=[*details, *result.notes, _RULE],
    )


def _cells(row: CheckRow) -> list[str]:
    if row.worst is None:
        return [row.name, row.status, "", "", "", ""]
    numbers = (f"{x:.1e}" for x in (row.worst.error, row.worst.torch_error, row.worst.bound))
    more = len(row.arrays) - 1
    return [row.name, row.status, *numbers, row.worst.name + (f" (+{more})" if more else "")]


def _fault_line(result: CheckResult) -> str:
    """The first wrong submodule."""
    fault = result.fault
    assert fault is not None
    where = f"{fault.path} ({fault.kind})" if fault.path else f"{fault.kind} itself"
    numbers = f"error {fault.error:.1e}, allowed {fault.bound:.1e}"
    source = f" ({fault.source})" if fault.source else ""
    return f"first wrong module: {where}, {fault.quantity}{source}: {fault.detail or numbers}"


def _speed_table(speeds: list[Speed]) -> Table:
    def rate(value: float | None) -> str:
        return "" if value is None else f"{value:.3g}"

    headings = ("program", "traced in", "compiled in", "steps a second", "torch on the CPU")
    lines = [
        Line(
            [s.program, f"{s.trace_s:.2f} s", f"{s.compile_s:.2f} s", rate(s.steps_per_s),
             rate(s.torch_steps_per_s)]
        )
        for s in speeds
    ]  # fmt: skip
    return Table(title="speed", headings=headings, left=(0,), lines=lines)


def colour(error: ModuleError) -> str:
    """Green at a hundredth of the bound or less, yellow near it, red from the bound on."""
    ratio = error.worst.ratio
    if ratio > 1:
        return "hsl(0 75% 48%)"
    decades = max(math.log10(ratio), -2.0) if ratio > 0 else -2.0
    return f"hsl({round(50 - 45 * decades)} 60% 42%)"


def _module_table(result: CheckResult) -> Table:
    """Parents before children, children in order of execution."""
    order = {one.path: position for position, one in enumerate(result.modules)}

    def first_position(path: str) -> int:
        """Where the first call inside a path ended."""
        inside = [n for p, n in order.items() if not path or p == path or p.startswith(f"{path}.")]
        return min(inside, default=len(order))

    def sort_key(one: ModuleError) -> list[tuple[int, str]]:
        parts = one.path.split(".") if one.path else []
        prefixes = [".".join(parts[: i + 1]) for i in range(len(parts))]
        return [(first_position(prefix), prefix) for prefix in prefixes]

    fault = result.fault.path if result.fault is not None else None
    lines = []
    for one in sorted(result.modules, key=sort_key):
        parts = one.path.split(".")
        above = [".".join(parts[:n]) for n in range(1, len(parts))]
        ancestors = [path for path in above if path in order]  # a ModuleList is never called
        name = one.path.removeprefix(ancestors[-1] + ".") if ancestors else one.path
        notes = ["wrong by itself"] if one.path == fault else []
        if one.amplification > _AMPLIFIES:
            notes.append(f"ill-conditioned: × {one.amplification:.0f}")
        errors = (f"{x:.1e}" for x in (one.worst.error, one.worst.torch_error, one.worst.bound))
        shape = " × ".join(map(str, one.worst.shape))
        cells = (name, one.kind, shape, *errors, ", ".join(notes))
        style = "differs" if one.path == fault else ""
        lines.append(Line(cells, style, colour(one), len(ancestors)))
    headings = ("module", "class", "output", "error", "torch's", "allowed", "")
    return Table(
        title="submodules, green at a hundredth of what is allowed, yellow near it, red beyond it",
        headings=headings, left=(0, 1, 2, 6), lines=lines, shown=(),
    )  # fmt: skip

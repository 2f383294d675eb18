"""The result of a check, and how checks are run: one that raises does not stop the others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxsr.errors import one_line
from jaxsr.runtime.activity import set_status

Status = Literal["ok", "note", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis."""

    subject: str
    """Subject of the check."""
    status: Status
    """`note`: works, but worth knowing; `fail`: something will not work."""
    detail: str
    """The result, with its figures."""
    advice: str | None = None
    """Advice; always there for a failure."""
    is_detail: bool = False
    """Whether it is printed with --verbose alone, as a failure that jaxsr avoids."""
    is_summary: bool = False
    """Whether it sums up its section, for those who do not ask for --verbose."""


Check = Callable[[], Iterator[Finding]]


def run_checks(checks: dict[str, Check]) -> Iterator[tuple[str, Finding]]:
    """Runs checks in order and yields each finding with the name of its section."""
    advice = "this check itself broke; JAXSR_TRACEBACK=1 python -m jaxsr.doctor shows where"
    for section, check in checks.items():
        set_status(f"checking {section}")
        try:
            for finding in check():
                yield section, finding
        except Exception as error:
            yield section, raised(section, error, advice)


def raised(subject: str, error: Exception, advice: str) -> Finding:
    """The failure of a check that raised."""
    return Finding(subject, "fail", f"{type(error).__name__}: {one_line(error)[:300]}", advice)


def judged(subject: str, good: bool, detail: str, advice: str) -> Finding:
    """`ok` or, with advice, `fail`."""
    return Finding(subject, "ok", detail) if good else Finding(subject, "fail", detail, advice)


def relative_error(result: Any, reference: np.ndarray, *, least_scale: float = 0.0) -> float:
    """The largest difference, in units of the reference's largest value."""
    scale = max(float(np.abs(reference).max()), least_scale)
    return float(np.abs(np.asarray(result, np.float64) - reference).max() / scale)

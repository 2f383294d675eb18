"""A sentinel: a program, its reference, and a description of the fault."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxsr.interop.annotations import PyTree

JAX = "https://github.com/jax-ml/jax/issues/"
XLA = "https://github.com/openxla/xla/issues/"

_OTHER_RELEASE = "install another jaxlib, or compute this on another platform"


class NotHereError(Exception):
    """A sentinel needs something that this machine lacks; its message names it."""


Outcome = tuple[PyTree, PyTree]
"""Result of the device, and the reference: arrays of one shape."""


@dataclass(frozen=True)
class Sentinel:
    """One program, and a description of its fault."""

    name: str
    run: Callable[[], Outcome]
    """Computes both; raises `NotHereError` where it cannot run."""
    source: str
    """The thread, or the file of this project, that describes the fault."""
    fault: str
    """Where the fault was seen, and how it showed."""
    workaround: str
    """Workaround for JAX code of your own."""
    avoided: str | None
    """How jaxsr's programs avoid it; None where they are at risk."""
    tolerance: float
    """Tolerance of the result, in units of the reference's largest value."""


def sentinel(
    *,
    source: str,
    fault: str,
    workaround: str = _OTHER_RELEASE,
    avoided: str | None = None,
    tolerance: float = 1e-5,
) -> Callable[[Callable[[], Outcome]], Sentinel]:
    """Makes a function the sentinel of its name; the fields of `Sentinel`."""

    def describe(run: Callable[[], Outcome]) -> Sentinel:
        name = run.__name__.replace("_", " ")
        return Sentinel(name, run, source, fault, workaround, avoided, tolerance)

    return describe


def normal(*shape: int) -> np.ndarray:
    """Standard normal numbers in float32, the same at every call."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)

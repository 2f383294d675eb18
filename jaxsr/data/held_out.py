"""The part held out for validation, by the hash of each name: new data do not move old files."""

import hashlib
import os
from collections.abc import Sequence

import numpy as np


def is_held_out(names: Sequence[str], fraction: float) -> np.ndarray:
    """Whether each name is held out: a fraction of them on average, and at least one."""
    draws = np.array([_draw(name) for name in names])
    # A dozen names can all lie above the fraction: the lowest is then the one held out.
    return draws <= max(fraction, draws.min())


def _draw(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") / 2**64

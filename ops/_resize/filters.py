"""Interpolation filters: the window functions that every resize convention weighs its taps with.

A filter is a function of the distance from the output pixel's centre, in pixels of the coarser
grid, and is zero beyond its radius. All arithmetic is NumPy, at trace time.

References:
  Keys 1981, "Cubic convolution interpolation for digital image processing": a = -1/2 makes the
  cubic exact for quadratics; torch (without antialias) and OpenCV use a = -3/4 instead.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Filter:
    """A symmetric window function and the distance beyond which it is zero."""

    radius: float
    weigh: Callable[[np.ndarray], np.ndarray]


def cubic(a: float) -> Filter:
    """Keys' piecewise cubic with slope `a` at distance 1."""

    def weigh(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x < 1, near, np.where(x < 2, far, 0.0))

    return Filter(2.0, weigh)


def lanczos(lobes: int) -> Filter:
    """A sinc under the central lobe of a wider one."""

    def weigh(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) < lobes, np.sinc(x) * np.sinc(x / lobes), 0.0)

    return Filter(float(lobes), weigh)


def _box(x: np.ndarray) -> np.ndarray:
    # Half open, so that a pixel on the boundary between two outputs counts once (Pillow's rule).
    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def _hamming(x: np.ndarray) -> np.ndarray:
    # The two constants are float32 in Pillow, which moves a 22-bit weight now and then.
    base, swing = float(np.float32(0.54)), float(np.float32(0.46))
    return np.where(np.abs(x) < 1, np.sinc(x) * (base + swing * np.cos(np.pi * x)), 0.0)


BOX = Filter(0.5, _box)
TRIANGLE = Filter(1.0, lambda x: np.maximum(0.0, 1 - np.abs(x)))
HAMMING = Filter(1.0, _hamming)
KEYS_CUBIC = cubic(-0.5)
SHARP_CUBIC = cubic(-0.75)
LANCZOS3 = lanczos(3)

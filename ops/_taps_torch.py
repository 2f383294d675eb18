"""Tap tables of `torch.nn.functional.interpolate`, on its CPU backend.

Coordinates are float32 there, and a float32 coordinate near 1000 is off by up to 3e-5 of a pixel,
which is visible in the result; so they are rounded here just as torch rounds them. For uint8 torch
computes coordinates in float64 and turns the weights into 16-bit integers.
"""

import math

import numpy as np

from jaxsr.ops._filters import KEYS_CUBIC, LANCZOS3, SHARP_CUBIC, TRIANGLE, Filter
from jaxsr.ops._taps import Taps, area_taps, make_taps, nearest_taps

ANTIALIASED = {"bilinear": TRIANGLE, "bicubic": KEYS_CUBIC, "lanczos": LANCZOS3}
INTERPOLATED = {"bilinear": TRIANGLE, "bicubic": SHARP_CUBIC}
METHODS = ("nearest", "nearest-exact", "bilinear", "bicubic", "area", "lanczos")


def torch_taps(
    extent: int,
    outputs: int,
    *,
    method: str,
    antialias: bool,
    align_corners: bool = False,
    scale: float | None = None,
    fixed_point: bool = False,
) -> Taps:
    """The taps along one axis.

    Args:
      extent: pixels of the input.
      outputs: pixels of the result.
      method: one of `METHODS`.
      antialias: stretches the filter when shrinking; bilinear, bicubic and lanczos only.
      align_corners: centres of the corner pixels coincide, instead of the corners of the image.
      scale: output pixels per input pixel where they are not `outputs / extent` (`scale_factor`).
      fixed_point: torch's uint8 arithmetic, in place of its float32 arithmetic.
    """
    real = np.float64 if fixed_point else np.float32
    step = _step(extent, outputs, align_corners=align_corners, scale=scale, real=real)
    if method == "area":
        return area_taps(extent, outputs)
    if method in ("nearest", "nearest-exact"):
        # Nearest is float32 for every dtype, and its product is rounded before the addition.
        step32 = _step(extent, outputs, align_corners=False, scale=scale, real=np.float32)
        position = np.arange(outputs, dtype=np.float32)
        if method == "nearest-exact":
            position = position + np.float32(0.5)
        index = np.floor(position * step32).astype(np.int64)
        return nearest_taps(extent, index, step=float(step))
    if antialias:
        index, weight = _antialiased(extent, outputs, step, ANTIALIASED[method])
    else:
        index, weight = _interpolated(outputs, step, method, align_corners=align_corners)
    if not fixed_point:
        return make_taps(extent, index, weight, step=float(step))
    return _to_fixed_point(extent, index, weight, step=float(step))


def _step(
    extent: int,
    outputs: int,
    *,
    align_corners: bool,
    scale: float | None,
    real: type[np.floating],
) -> np.floating:
    if align_corners:
        return real(extent - 1) / real(outputs - 1) if outputs > 1 else real(0)
    if scale is not None:
        return real(1.0 / scale)
    return real(extent) / real(outputs)


def _interpolated(
    outputs: int, step: np.floating, method: str, *, align_corners: bool
) -> tuple[np.ndarray, np.ndarray]:
    real = type(step)
    position = np.arange(outputs, dtype=real)
    if align_corners:
        centre = step * position
    else:
        # torch's compiler contracts this into one fused multiply-add, rounded once; a float64
        # product of two float32 numbers is exact, so rounding the difference does the same.
        exact = np.float64(step) * (position + real(0.5)).astype(np.float64) - 0.5
        centre = exact.astype(real)
    if method == "bilinear":
        centre = np.maximum(centre, 0)
    base = np.floor(centre)
    fraction = (centre - base).astype(np.float64)
    chosen = INTERPOLATED[method]
    radius = int(chosen.radius)
    offset = np.arange(1 - radius, radius + 1)
    index = base.astype(np.int64)[:, None] + offset
    return index, chosen.weigh(offset - fraction[:, None])


def _antialiased(
    extent: int, outputs: int, step: np.floating, chosen: Filter
) -> tuple[np.ndarray, np.ndarray]:
    real = type(step)
    stretch = step if step >= 1 else real(1)
    support = real(chosen.radius * float(stretch))
    inverse = real(1.0 / float(stretch))
    centre = (np.float64(step) * (np.arange(outputs) + 0.5)).astype(real)
    # C's conversion to an integer truncates, and these are all above -1 once clamped.
    first = np.maximum(np.trunc((centre - support).astype(np.float64) + 0.5), 0).astype(np.int64)
    stop = np.trunc((centre + support).astype(np.float64) + 0.5).astype(np.int64)
    stop = np.minimum(np.minimum(stop, extent), first + 2 * math.ceil(support) + 1)
    index = first[:, None] + np.arange(max(1, int((stop - first).max())))
    distance = (index.astype(real) - centre[:, None]).astype(np.float64) + 0.5
    weight = chosen.weigh((distance * float(inverse)).astype(real).astype(np.float64))
    weight = np.where(index < stop[:, None], weight, 0.0)
    total = weight.sum(axis=1, keepdims=True)
    return index, weight / np.where(total == 0, 1.0, total)


def _to_fixed_point(extent: int, index: np.ndarray, weight: np.ndarray, *, step: float) -> Taps:
    """16-bit weights with as many fractional bits as the largest of them leaves room for."""
    # Taps that the edge clamps to one pixel are one weight before they are rounded.
    index = np.clip(index, 0, extent - 1)
    merged = weight.copy()
    for t in range(1, index.shape[1]):
        for earlier in range(t):
            same = (index[:, t] == index[:, earlier]) & (merged[:, t] != 0)
            merged[same, earlier] += merged[same, t]
            merged[same, t] = 0
    largest = float(merged.max())
    bits = 0
    while bits < 22 and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = merged * (1 << bits)
    rounded = np.trunc(np.where(scaled < 0, scaled - 0.5, scaled + 0.5)).astype(np.int32)
    return make_taps(extent, index, rounded, step=step, bits=bits)

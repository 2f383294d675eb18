"""Tap tables of `torch.nn.functional.interpolate`, on its CPU backend.

Coordinates are float32 there, and a float32 coordinate near 1000 is off by up to 3e-5 of a pixel,
which is visible in the result; so they are rounded here just as torch rounds them. For float64 and
uint8 torch computes coordinates in float64. For uint8 it turns the weights into 16-bit integers and
rounds between the two passes, the last axis first.
"""

import math
from collections.abc import Sequence

import numpy as np

from jaxsr.ops._resize.convention import Convention
from jaxsr.ops._resize.filters import KEYS_CUBIC, LANCZOS3, SHARP_CUBIC, TRIANGLE, Filter
from jaxsr.ops._resize.torch_calls import resize_by_torch
from jaxsr.ops._resize.weights import (
    Pass,
    Taps,
    area_taps,
    centred_taps,
    choices,
    drop_bits,
    float_passes,
    make_taps,
    nearest_taps,
    normalised_below,
)

ANTIALIASED = {"bilinear": TRIANGLE, "bicubic": KEYS_CUBIC, "lanczos": LANCZOS3}
INTERPOLATED = {"bilinear": TRIANGLE, "bicubic": SHARP_CUBIC}
METHODS = ("nearest", "nearest-exact", "bilinear", "bicubic", "area", "lanczos")


def torch_passes(
    shape: Sequence[int],
    dtype: np.dtype,
    axes: Sequence[int],
    size: Sequence[int],
    *,
    method: str,
    antialias: bool,
    align_corners: bool,
    scale: Sequence[float | None],
) -> list[Pass]:
    """The passes over an image of `shape`; `scale` as `torch_step` takes it, for each axis."""
    taps: list[tuple[int, Taps]] = []
    fixed: list[Pass] = []
    for axis, outputs, factor in zip(axes, size, scale, strict=True):
        extent = shape[axis]
        if method == "area":
            taps.append((axis, area_taps(extent, outputs)))
            continue
        if method in ("nearest", "nearest-exact"):
            taps.append((axis, _nearest(extent, outputs, method, factor)))
            continue
        real = np.float64 if dtype.name in ("uint8", "float64") else np.float32
        step = torch_step(extent, outputs, align_corners, factor, real)
        if antialias:
            weights = _antialiased(extent, outputs, step, ANTIALIASED[method])
        else:
            weights = _interpolated(outputs, step, method, align_corners)
        if dtype == np.uint8:
            table, bits = _fixed_point(extent, *weights, step=float(step))
            fixed.append(Pass(axis, table, np.dtype(np.int32), drop_bits(bits)))
        else:
            taps.append((axis, make_taps(extent, *weights, step=float(step))))
    if fixed:
        return fixed[::-1]
    return (choices if method.startswith("nearest") else float_passes)(taps, dtype)


def torch_step(
    extent: int, outputs: int, align_corners: bool, scale: float | None, real: type[np.floating]
) -> np.floating:
    """Input pixels per output; `scale` is torch's `scale_factor`, used instead of the quotient."""
    if align_corners:
        return real(extent - 1) / real(outputs - 1) if outputs > 1 else real(0)
    if scale is not None:
        return real(1.0 / scale)
    return real(extent) / real(outputs)


def _nearest(extent: int, outputs: int, method: str, scale: float | None) -> Taps:
    # float32 for every dtype.
    step = torch_step(extent, outputs, False, scale, np.float32)
    position = np.arange(outputs, dtype=np.float32)
    if method == "nearest-exact":
        position = position + np.float32(0.5)
    index = np.floor(position * step).astype(np.int64)
    return nearest_taps(extent, index, step=float(step))


def _interpolated(
    outputs: int, step: np.floating, method: str, align_corners: bool
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
    return centred_taps(centre, INTERPOLATED[method])


def _antialiased(
    extent: int, outputs: int, step: np.floating, window: Filter
) -> tuple[np.ndarray, np.ndarray]:
    real = type(step)
    stretch = step if step >= 1 else real(1)
    support = real(window.radius * float(stretch))
    inverse = real(1.0 / float(stretch))
    centre = (np.float64(step) * (np.arange(outputs) + 0.5)).astype(real)
    # C's conversion to an integer truncates towards zero.
    first = np.maximum(np.trunc((centre - support).astype(np.float64) + 0.5), 0).astype(np.int64)
    stop = np.trunc((centre + support).astype(np.float64) + 0.5).astype(np.int64)
    stop = np.minimum(np.minimum(stop, extent), first + 2 * math.ceil(support) + 1)
    index = first[:, None] + np.arange(max(1, int((stop - first).max())))
    distance = (index.astype(real) - centre[:, None]).astype(np.float64) + 0.5
    weight = window.weigh((distance * float(inverse)).astype(real).astype(np.float64))
    return index, normalised_below(stop, index, weight)


def _fixed_point(
    extent: int, index: np.ndarray, weight: np.ndarray, *, step: float
) -> tuple[Taps, int]:
    """16-bit weights and their fractional bits: as many as the largest weight leaves room for."""
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
    return make_taps(extent, index, rounded, step=step), bits


def _check(*, method: str, antialias: bool, align_corners: bool, scale: object) -> None:
    del scale
    if antialias and method not in ANTIALIASED:
        raise ValueError(
            f"antialias=True needs method bilinear, bicubic or lanczos, got {method!r}"
        )
    if method == "lanczos" and not antialias:
        raise ValueError("method 'lanczos' needs antialias=True in the torch convention")
    if align_corners and method not in ("bilinear", "bicubic"):
        raise ValueError(f"align_corners=True needs method bilinear or bicubic, got {method!r}")


CONVENTION = Convention(
    name="torch",
    passes=torch_passes,
    methods=METHODS,
    antialias=False,
    options=("scale", "align_corners"),
    check=_check,
    library=resize_by_torch,
    library_dtypes=("uint8",),
)

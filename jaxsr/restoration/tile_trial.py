"""Tries tiles on strips of an image, one of its height and one of its width, before their use.

A network's margin and period are measured on small images. Its result may depend on more: the
image's height or width, a position further down, statistics of the whole image. A strip of the
image's own length shows that, for a small share of the work.

Strips are compared with their own tiles along their length, all in float32 on the CPU. Half of a
strip's width is the image itself, the other half noise that brightens along it: an even image would
show nothing.
"""

import math
from collections.abc import Callable

import numpy as np

from jaxsr.restoration.receptive_field import ROUNDING, Reach
from jaxsr.restoration.tiling import Plan, Size

Images = np.ndarray
"""float32 (1, channels, height, width)."""

_WIDTHS = (16, 32, 64)
"""Widths of a strip; the next where a network does not take one."""


def side_that_differs(
    plan: Plan,
    reach: Reach,
    network: Callable[[Images], Images],
    crop: Callable[[Size, Size], Images],
    *,
    max_pixels: int,
) -> str:
    """The side of an image along which tiles change the result, `height` or `width`, or "".

    Args:
      plan: the image's tiles.
      reach: of the network; its `tried` notes the sides that agreed.
      network: computes images on the host.
      crop: gives the part of the image of a (height, width) at a (top, left).
      max_pixels: of a strip; a longer image is tried as far as that goes.
    """
    for axis, side in enumerate(("height", "width")):
        length, tile = plan.size[axis], plan.shape[axis]
        if tile < length and reach.tried.get((axis, tile), 0) < length:
            if not _agrees(plan, axis, reach, network, crop, max_pixels):
                return side
            reach.tried[axis, tile] = length
    return ""


def _agrees(
    plan: Plan,
    axis: int,
    reach: Reach,
    network: Callable[[Images], Images],
    crop: Callable[[Size, Size], Images],
    max_pixels: int,
) -> bool:
    across = plan.size[1 - axis]
    for least in _WIDTHS:
        aligned = math.ceil(max(least, reach.least_side) / reach.period) * reach.period
        width = min(aligned, across)
        length = min(plan.size[axis], max_pixels // width // reach.period * reach.period)
        middle = (across - width) // 2
        turned = axis == 1
        strip = crop(
            (width, length) if turned else (length, width), (middle, 0) if turned else (0, middle)
        )
        try:
            return _strip_agrees(_half_noise(strip, 2 + axis), plan, axis, reach.scale, network)
        except (RuntimeError, ValueError, AssertionError):  # a side that it does not take
            continue
    return False


def _strip_agrees(
    strip: Images, plan: Plan, axis: int, scale: int, network: Callable[[Images], Images]
) -> bool:
    tile, along = plan.shape[axis], 2 + axis
    untiled = network(strip)
    tolerance = ROUNDING * max(float(np.abs(untiled).max()), 1e-6)
    for start, inner, end in plan.spans(axis):
        if start + tile > strip.shape[along]:
            break
        piece = network(_narrow(strip, along, start, start + tile))
        used = _narrow(piece, along, (inner - start) * scale, (end - start) * scale)
        expected = _narrow(untiled, along, inner * scale, end * scale)
        if not np.abs(used - expected).max() <= tolerance:  # NaN is not
            return False
    return True


def _narrow(images: Images, axis: int, start: int, end: int) -> Images:
    return images[(slice(None),) * axis + (slice(start, end),)]


def _half_noise(strip: Images, along: int) -> Images:
    """The strip with noise in [0, 1] in half of its width, brighter towards its end."""
    noisy = np.moveaxis(strip.copy(), along, -1)  # width before length
    half = noisy[..., noisy.shape[-2] // 2 :, :]
    ramp = np.linspace(0, 0.5, half.shape[-1], dtype=np.float32)
    half[...] = np.random.default_rng(0).random(half.shape, np.float32) / 2 + ramp
    return np.moveaxis(noisy, -1, along)

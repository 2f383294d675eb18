"""`torch.nn.functional.interpolate` itself, called from programs for CPUs: uint8, channels last.

Torch is imported when a program is lowered. Where it is not installed, or has no kernels of AVX2,
and on other platforms, `conventions/torch.py` computes the same in JAX.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np

from jaxsr.ops._opencv import for_each_row
from jaxsr.ops._resize.library_rows import resized_rows
from jaxsr.ops._torch import torch_of_avx2, torch_version
from jaxsr.xla_calls.calls import Arrays, Attributes, enabled, kernel

_OPERATORS = ("upsample_bilinear2d", "upsample_bicubic2d",
              "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")  # fmt: skip
_CHANNELS = (3, 4)
"""Numbers of channels for torch's kernels; for planes XLA's program is faster."""
_MOST_PHASES, _MOST_READS = 4, 16
"""Outputs of a period, and taps times input pixels per output, up to which XLA's sums of strided
slices are faster. Two loaded cores, 8 × 512² × 3 by torch and by XLA, processor ms: bilinear to
256² 4.8 and 2.1, to 128² 2.6 and 0.6, antialiased 3.0 and 7.1; bicubic to 224² 5.8 and 50."""
_LEAST_PIXELS = 1 << 16
"""Pixels of image and result from which on torch is worth its import."""


def resize_by_torch(
    image: jax.Array,
    axes: Sequence[int],
    size: Sequence[int],
    *,
    method: str,
    antialias: bool,
    align_corners: bool,
    scale: Sequence[float | None],
) -> jax.Array | None:
    """The resized image, in a program for CPUs; None where torch is not called for it."""
    is_suitable = (
        image.dtype == np.uint8
        and method in ("bilinear", "bicubic")
        and len(axes) == 2
        and tuple(axes) == (image.ndim - 3, image.ndim - 2)
        and image.shape[-1] in _CHANNELS
        and all(factor is None for factor in scale)
        and min(size) > 1  # to 1 x 1 torch 2.13 stops at an internal assertion
    )
    if not is_suitable or not enabled():
        return None
    extents = [image.shape[axis] for axis in axes]
    pixels = math.prod(image.shape[:-3]) * (math.prod(extents) + math.prod(size))
    if pixels < _LEAST_PIXELS or all(
        _is_simple(extent, outputs, method, antialias)
        for extent, outputs in zip(extents, size, strict=True)
    ):
        return None
    version = torch_version()
    if version is None:
        return None
    operator = _OPERATORS.index(f"{'_' * antialias}upsample_{method}2d{'_aa' * antialias}")
    options = {"operator": (operator,), "align_corners": (align_corners,), "torch": version}
    return resized_rows(image, axes, size, _resize, options)


def _is_simple(extent: int, outputs: int, method: str, antialias: bool) -> bool:
    step = extent / outputs
    taps = (2 if method == "bilinear" else 4) * (max(step, 1) if antialias else 1)
    period = outputs // math.gcd(extent, outputs)
    return period <= _MOST_PHASES and taps * step <= _MOST_READS


@kernel("jaxsr_torch_resize")
def _resize(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    torch, (images,), (results,) = torch_of_avx2(), inputs, outputs
    operator = getattr(torch.ops.aten, _OPERATORS[attributes["operator"][0]]).out
    align_corners = bool(attributes["align_corners"][0])
    size = results.shape[1:3]

    def tensor(rows: np.ndarray, row: int) -> object:
        return torch.from_numpy(rows[row : row + 1]).permute(0, 3, 1, 2)

    def resize(row: int) -> None:
        # One image at a time, for which torch starts no threads.
        operator(tensor(images, row), size, align_corners, None, None, out=tensor(results, row))

    for_each_row(resize, len(images))

"""Which operations of a CPU program torch computes: measured, in one place."""

import functools
import math
from collections.abc import Sequence

import jax
import torch

from jaxsr.interop.cpu_kernels.onednn import Geometry
from jaxsr.xla_calls.calls import calls_compiled, enabled, is_native

_DTYPES = ("float32", "float64", "bfloat16")


def convolves_by_torch(a: jax.Array, b: jax.Array, shape: Sequence[int]) -> bool:
    """Whether torch's kernel is called for a convolution or one of its gradients."""
    sizes = [math.prod(each) for each in (a.shape, b.shape, shape)]
    return enabled() and a.dtype.name in _DTYPES and 3 <= len(shape) <= 5 and all(sizes)


def weight_by_xla(
    x: jax.Array, shape: Sequence[int], *, wrt: str, groups: int, channels_last: bool
) -> bool:
    """Whether XLA computes the gradient of a convolution's weight, where torch's kernels are on.

    With AVX2 it takes about half of oneDNN's time where images are small
    (`benchmarks.cpu_convolutions`).

    Args:
      x: the images.
      shape: of the result.
      wrt: which array of the convolution it is.
      groups: of channels.
      channels_last: whether the last axis of images holds the channels.
    """
    return (
        wrt == "weight"
        and channels_last
        and is_native()
        and _has_avx2_alone()
        and x.dtype.name == "float32"
        and groups == 1
        and min(shape[:2]) >= _LEAST_CHANNELS_OF_XLA
        and math.prod(shape[2:]) > 1
        and math.prod(x.shape[1:-1]) <= _MOST_PIXELS_OF_XLA
    )


_LEAST_CONCATENATED = 1 << 22
"""Elements of concatenated images from which on their convolution is a sum of the parts' own. Fewer
stay in a cache, where both take as long (`benchmarks.cpu_concatenations`)."""


def convolves_parts(elements: int) -> bool:
    """Whether a convolution of concatenated channels is the sum of the convolutions of the parts.

    Args:
      elements: of the concatenated images.
    """
    return elements >= _LEAST_CONCATENATED


_LEAST_CHANNELS_OF_XLA = 64
"""Channels of images and of results: with fewer, XLA's products are small."""
_MOST_PIXELS_OF_XLA = 600
"""Pixels of an image: from some 800 on XLA is slower than oneDNN."""


def weight_by_patches(
    x: torch.Tensor, g: torch.Tensor, weight: torch.Tensor, geometry: Geometry
) -> bool:
    """Whether the gradient of a convolution's weight is a product of patches, not oneDNN's.

    With AVX2 oneDNN reads images once for every few channels. Where they leave the cache, a product
    takes a third to four fifths of the time, copies of the patches included
    (`benchmarks.cpu_convolutions`). Decided in the call: another machine may run the program.

    Args:
      x: (N, C, *sides), the images.
      g: (N, O, *sides of the result), the gradient of the result.
      weight: (O, C / groups, *kernel), the result.
      geometry: of the convolution.
    """
    outputs, channels, *kernel = weight.shape
    if not (is_native() and _has_avx2_alone() and weight.dtype == torch.float32):
        return False
    if math.prod(kernel) == 1:
        return geometry.is_pointwise and channels * outputs >= _LEAST_POINTWISE
    return (
        geometry.groups == 1
        and channels >= _LEAST_CHANNELS
        and (outputs >= _LEAST_CHANNELS or geometry.has_unit_stride)
        and x.numel() + g.numel() >= _LEAST_IMAGES
    )


_LEAST_CHANNELS = 24
"""Channels of images: with fewer, copies of patches take longer."""
_LEAST_POINTWISE = 1 << 14
"""Elements of a weight of one pixel: a product of smaller ones is slower than oneDNN's, of larger
ones up to 1.4 times as fast."""
_LEAST_IMAGES = 1 << 20
"""Elements of both: smaller ones stay in the cache."""


@functools.cache
def _has_avx2_alone() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX2"


_LEAST_SUMMED = 1 << 15
"""Elements from which on torch sums pixels: it takes a fifth to a third of the time of XLA's walk
through windows, and a call costs as much as XLA takes for about 10,000 elements."""
_LEAST_MOMENTS_BY_ROW = 1 << 20
"""Elements of an image from which on torch computes moments of each image by itself. Below, XLA
centres all images and torch sums them in one call: torch would need one for each image."""


def sums_by_torch(x: jax.Array) -> bool:
    """Whether torch's kernel is called for sums over the pixels of each channel."""
    return enabled() and x.dtype.name in ("float32", "float64") and x.size >= _LEAST_SUMMED


def moments_by_torch(x: jax.Array, *, by_row: bool) -> bool:
    """Whether torch's kernels for batch normalisation are called for moments and their gradient.

    Args:
      x: the images, rows along axis 0.
      by_row: whether each row has moments of its own.
    """
    elements = x.size // max(1, x.shape[0])
    return sums_by_torch(x) and (not by_row or elements >= _LEAST_MOMENTS_BY_ROW)


_LEAST_SCORES = 1 << 15
"""Pairs of a query and a key from which on torch computes attention: it is faster there, and
a call costs as much as XLA takes for about 10,000."""


def attends_by_torch(q: jax.Array, k: jax.Array) -> bool:
    """Whether torch's kernel is called for attention and its gradients.

    Args:
      q: (B, T, K, G, D), queries.
      k: (B, S, K, D), keys.
    """
    scores = q.size // q.shape[-1] * k.shape[1]
    return enabled() and q.dtype.name in ("float32", "float64") and scores >= _LEAST_SCORES


def attends_compiled(dtype: torch.dtype, features: int | None) -> bool:
    """Whether there is a compiled kernel for attention with so many features for each head."""
    return dtype == torch.float32 and features is not None and features % 32 == 0


def attends_by_llvm(q: jax.Array, k: jax.Array, mask: Sequence[jax.Array]) -> bool:
    """Whether the kernel that LLVM compiles is called for attention.

    Args:
      q: (B, T, K, G, D), queries.
      k: (B, S, K, D), keys.
      mask: none or one, (B | 1, K | 1, G | 1, T | 1, S | 1).
    """
    shared = all(each.dtype == bool and each.shape[1:3] == (1, 1) for each in mask)
    fits = q.dtype.name == "float32" and q.shape[-1] % 32 == 0
    return calls_compiled() and shared and fits

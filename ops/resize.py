"""Image resize in the conventions of torch, OpenCV, Pillow and MATLAB.

Images are channels last unless `axes` says otherwise, with any number of leading axes and any
intensity range. Sums run in float32 (float64 for float64 images); uint8 images are resized in the
integer arithmetic of the convention's own library. Every convention is tested against the library
it is named for, which also says where the rules come from.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from jaxsr.ops import _taps_torch
from jaxsr.ops._arguments import compute_dtype, image_array, normal_axis, one_of
from jaxsr.ops._resample import apply_taps
from jaxsr.ops._taps import Taps

CONVENTIONS = ("torch",)
LARGEST_EXTENT = 1 << 24
"""Pixels along one axis, beyond which float32 no longer numbers them one by one."""


def resize(
    image: Num[Array, "..."],
    size: int | Sequence[int],
    *,
    method: str = "bilinear",
    antialias: bool | None = None,
    convention: str = "torch",
    axes: Sequence[int] = (-3, -2),
    scale: float | Sequence[float] | None = None,
    align_corners: bool = False,
) -> Num[Array, "..."]:
    """Resizes an image, or every image of a batch, along `axes`.

    Differentiable for floating-point images. A NaN or an infinity reaches only the outputs whose
    filter covers it.

    Args:
      image: float32, bfloat16, float16, float64 or uint8; the result keeps the dtype.
      size: extents of the result, one for each axis; one integer stands for all. Static.
      method: 'nearest', 'nearest-exact', 'bilinear', 'bicubic', 'area' or 'lanczos'.
      antialias: stretch the filter when shrinking, so that no pixel is skipped. Default: False.
      convention: whose rules: 'torch'.
      axes: axes to resize, height first: (-3, -2) is channels last, (-2, -1) channels first.
      scale: output pixels per input pixel, where that is not the quotient of the extents: torch's
        `scale_factor` with `recompute_scale_factor=False`.
      align_corners: torch's option: the centres of the corner pixels stay where they are, rather
        than the outer edges of the image.

    Raises:
      TypeError: `image` is boolean, complex, or of another integer type.
      ValueError: an extent below 1, an unknown name, an empty image, or options that do not go
        together.
    """
    image = image_array(image)
    positive = tuple(normal_axis(axis, image.ndim, "axes") for axis in axes)
    if not positive or len(set(positive)) < len(positive):
        raise ValueError(f"axes must name different axes, at least one, got {tuple(axes)}")
    one_of(convention, CONVENTIONS, "convention")
    one_of(method, _taps_torch.METHODS, f"method of the {convention} convention")
    sizes = _check_size(size, len(positive))
    scales = _check_scale(scale, len(positive))
    antialias = method == "lanczos" if antialias is None else bool(antialias)
    _check_torch_options(method, antialias=antialias, align_corners=align_corners)
    return _resize(
        image,
        size=sizes,
        method=method,
        antialias=antialias,
        axes=positive,
        scale=scales,
        align_corners=bool(align_corners),
    )


def _check_size(size: int | Sequence[int], count: int) -> tuple[int, ...]:
    extents = _one_each(size, count, "size", (int, np.integer))
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, int | np.integer):
            raise TypeError(
                f"size must hold integers, got {extent!r}; extents are static, also under jit"
            )
        if not 1 <= extent <= LARGEST_EXTENT:
            raise ValueError(f"size must be 1 to {LARGEST_EXTENT} on each axis, got {size!r}")
    return tuple(int(extent) for extent in extents)


def _one_each(value, count: int, name: str, single: type | tuple[type, ...]) -> tuple:
    if isinstance(value, single) or not hasattr(value, "__len__"):
        return (value,) * count
    if len(value) != count:
        raise ValueError(f"{name} must hold one value for each of {count} axes, got {value!r}")
    return tuple(value)


def _check_scale(scale: float | Sequence[float] | None, count: int) -> tuple[float | None, ...]:
    if scale is None:
        return (None,) * count
    scales = tuple(float(s) for s in _one_each(scale, count, "scale", (int, float)))
    if not all(math.isfinite(s) and s > 0 for s in scales):
        raise ValueError(f"scale must be positive and finite, got {scale!r}")
    return scales


def _check_torch_options(method: str, *, antialias: bool, align_corners: bool) -> None:
    if antialias and method not in _taps_torch.ANTIALIASED:
        raise ValueError(
            f"antialias=True needs method bilinear, bicubic or lanczos, got {method!r}"
        )
    if method == "lanczos" and not antialias:
        raise ValueError("method 'lanczos' needs antialias=True in the torch convention")
    if align_corners and method not in ("bilinear", "bicubic"):
        raise ValueError(f"align_corners=True needs method bilinear or bicubic, got {method!r}")


@partial(jax.jit, static_argnames=("size", "method", "antialias", "axes", "scale", "align_corners"))
def _resize(
    image: Array,
    *,
    size: tuple[int, ...],
    method: str,
    antialias: bool,
    axes: tuple[int, ...],
    scale: tuple[float | None, ...],
    align_corners: bool,
) -> Array:
    fixed_point = image.dtype == jnp.uint8 and method in _taps_torch.ANTIALIASED
    passes: list[tuple[int, Taps]] = []
    for axis, extent, factor in zip(axes, size, scale, strict=True):
        taps = _taps_torch.torch_taps(
            image.shape[axis],
            extent,
            method=method,
            antialias=antialias,
            align_corners=align_corners,
            scale=factor,
            fixed_point=fixed_point,
        )
        passes.append((axis, taps))
    if method in ("nearest", "nearest-exact"):
        for axis, taps in passes:
            image = jnp.take(image, jnp.asarray(taps.index[:, 0]), axis=axis, mode="clip")
        return image
    if fixed_point:
        for axis, taps in reversed(passes):
            image = _fixed_point_pass(image, taps, axis)
        return image
    x = image.astype(compute_dtype(image.dtype))
    for axis, taps in _cheapest_first(passes):
        if not taps.is_identity:
            x = apply_taps(x, taps, axis)
    if image.dtype == jnp.uint8:
        x = jnp.clip(jnp.round(x), 0, 255)
    return x.astype(image.dtype)


def _fixed_point_pass(image: Array, taps: Taps, axis: int) -> Array:
    """Integer sums, rounded half up and clipped to uint8."""
    total = apply_taps(image.astype(jnp.int32), taps, axis) + (1 << (taps.bits - 1))
    return jnp.clip(total >> taps.bits, 0, 255).astype(jnp.uint8)


def _cheapest_first(passes: list[tuple[int, Taps]]) -> list[tuple[int, Taps]]:
    """Shrinks before it grows; leading axes first when shrinking, trailing ones when growing."""

    def cost(item: tuple[int, Taps]) -> tuple[float, int]:
        axis, taps = item
        ratio = taps.outputs / taps.extent
        return ratio, axis if ratio < 1 else -axis

    return sorted(passes, key=cost)

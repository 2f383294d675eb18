"""Interpolation and grid sampling. Interpolation is `jaxsr.ops.resize` in torch's convention."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.dtypes import widened
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.ops._sampler import METHODS, grid_bounded, grid_position
from jaxsr.xla_calls.stored import stored


def resize_images(
    x: jax.Array,
    size: Sequence[int],
    scales: Sequence[float | None],
    method: str,
    align: bool = False,
    aa: bool = False,
    axes: tuple[int, ...] | None = None,
) -> jax.Array:
    """torch's interpolation of the last axes, or of those named."""
    from jaxsr.ops.resize import resize

    axes = tuple(range(-len(size), 0)) if axes is None else axes
    # torch uses a given factor and otherwise the ratio of the sizes, axis by axis.
    factors = [
        out / x.shape[axis] if factor is None else factor
        for factor, out, axis in zip(scales, size, axes, strict=True)
    ]
    has_factor = any(factor is not None for factor in scales)
    return resize(
        x,
        tuple(size),
        method=method,
        antialias=aa,
        convention="torch",
        axes=axes,
        scale=factors if has_factor and not align else None,
        align_corners=align,
    )


def _register(op: torch._ops.OpOverload, method: str, *, aligns: bool, aa: bool = False) -> None:
    def lowering(x: jax.Array, size: Sequence[int], *rest: Any) -> jax.Array:
        align = bool(rest[0]) if aligns else False
        scales = rest[1:] if aligns else rest
        scales = tuple(scales) + (None,) * (len(size) - len(scales))
        return resize_images(x, size, scales, method, align, aa)

    lowers(op)(lowering)


_register(aten.upsample_linear1d.default, "bilinear", aligns=True)
_register(aten.upsample_bilinear2d.default, "bilinear", aligns=True)
_register(aten.upsample_trilinear3d.default, "bilinear", aligns=True)
_register(aten.upsample_bicubic2d.default, "bicubic", aligns=True)
_register(aten._upsample_bilinear2d_aa.default, "bilinear", aligns=True, aa=True)
_register(aten._upsample_bicubic2d_aa.default, "bicubic", aligns=True, aa=True)
if hasattr(aten, "_upsample_lanczos2d_aa"):  # since torch 2.13
    _register(aten._upsample_lanczos2d_aa.default, "lanczos", aligns=True, aa=True)
for _n in (1, 2, 3):
    _register(getattr(aten, f"upsample_nearest{_n}d").default, "nearest", aligns=False)
    _register(getattr(aten, f"_upsample_nearest_exact{_n}d").default, "nearest-exact", aligns=False)


# ---- grid sampling


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(
    x: jax.Array, grid: jax.Array, mode: int = 0, padding: int = 0, align: bool = False
) -> jax.Array:
    """Samples images or volumes, in float32 at least as torch's kernels do.

    Args:
      x: (N, C, H, W) or (N, C, D, H, W).
      grid: (N, …, 2) or (N, …, 3) positions, the last axis of the image first; the image lies
        within [-1, 1].
      mode: 0 linear, 1 nearest, 2 cubic.
      padding: 0 zeros, 1 border, 2 reflection.
      align: whether -1 and 1 are centres of pixels, not their borders.
    """
    x, grid = widened(x), widened(grid)
    sizes = x.shape[2:]
    method = ("bilinear", "nearest", "bicubic")[mode]
    padding_mode = ("zeros", "border", "reflection")[padding]
    taps = list[list[tuple[jax.Array, jax.Array]]]()
    for axis, size in enumerate(sizes):
        # A tap and its weight are of one position.
        unit = grid[..., len(sizes) - 1 - axis]
        p = stored(grid_position(unit, size, method, padding_mode, align))
        first, weights = METHODS[method](p)
        places = [first + k for k in range(len(weights))]
        if method == "bicubic":
            places = [grid_bounded(q, size, padding_mode, align) for q in places]
        taps.append(list(zip(places, weights, strict=True)))
    total = jnp.zeros((), x.dtype)
    for corner in itertools.product(*taps):
        weight: Any = math.prod(w for _, w in corner)
        total = total + weight[:, None] * _gather(x, [place for place, _ in corner])
    return total


def _gather(x: jax.Array, coordinates: list[jax.Array]) -> jax.Array:
    inside = jnp.ones((), bool)
    flat = jnp.zeros((), jnp.int32)
    for size, c in zip(x.shape[2:], coordinates, strict=True):
        inside = inside & (c >= 0) & (c <= size - 1)
        flat = flat * size + jnp.clip(c, 0, size - 1).astype(jnp.int32)
    rows = x.reshape(*x.shape[:2], -1)
    values = jax.vmap(lambda row, index: row[:, index])(rows, flat)
    return jnp.where(inside[:, None], values, 0)

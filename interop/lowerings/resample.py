"""Interpolation and grid sampling. Interpolation is `jaxsr.ops.resize` in torch's convention."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core import torchax
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import decomposes, lowers
from jaxsr.ops._stored import stored


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


@decomposes(aten.grid_sampler_2d.default)
def grid_sampler_2d(x: torch.Tensor, grid: torch.Tensor, *options: Any) -> torch.Tensor:
    """torch's decomposition; like torch's kernels, with coordinates in float32."""
    decomposition = torchax.decomposition(aten.grid_sampler_2d.default)
    assert decomposition is not None
    return decomposition(_float32(x), _float32(grid), *options)


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.to(torch.float32) if half else tensor


def _unnormalise(coord: jax.Array, size: int, align: bool) -> jax.Array:
    return (coord + 1) / 2 * (size - 1) if align else ((coord + 1) * size - 1) / 2


def _reflect(coord: jax.Array, low: float, high: float) -> jax.Array:
    span = high - low
    if span == 0:
        return jnp.zeros_like(coord)
    coord = jnp.abs(coord - low)
    extra = jnp.mod(coord, span)
    flips = jnp.floor(coord / span)
    return jnp.where(jnp.mod(flips, 2) == 0, extra + low, span - extra + low)


@lowers(aten.grid_sampler_3d.default)
def grid_sampler_3d(
    x: jax.Array, grid: jax.Array, mode: int = 0, padding: int = 0, align: bool = False
) -> jax.Array:
    """Samples volumes: mode 0 trilinear, 1 nearest; padding 0 zeros, 1 border, 2 reflection."""
    sizes = x.shape[2:]
    coords = []
    for size, c in zip(sizes, (grid[..., 2], grid[..., 1], grid[..., 0]), strict=True):
        p = stored(_unnormalise(c, size, align))  # a tap and its weight are of one position
        if padding == 2:
            low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
            p = _reflect(p, low, high)
        if padding:
            # where, not clip: at the border itself torch passes no gradient, clip passes half.
            p = jnp.where(p <= 0, 0, jnp.where(p >= size - 1, size - 1, p))
        coords.append(p)
    if mode == 1:
        return _gather(x, [jnp.round(c) for c in coords])
    floors = [jnp.floor(c) for c in coords]
    total = jnp.zeros((), x.dtype)
    for corner in itertools.product((0, 1), repeat=3):
        weight = jnp.ones((), x.dtype)
        for bit, c, f in zip(corner, coords, floors, strict=True):
            weight = weight * ((c - f) if bit else (1 - (c - f)))
        total = total + weight[:, None] * _gather(
            x, [f + bit for f, bit in zip(floors, corner, strict=True)]
        )
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

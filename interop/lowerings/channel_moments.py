"""Moments of each channel, and values of channels at every pixel: the parts of normalisations.

`affine` and `dots`, `spread` and `channel_sums` are each other's transpose. So a gradient asks for
all its sums over pixels at once, and on CPUs torch computes them (`interop/cpu_kernels`): XLA's
walk through windows there, which costs seven times as much.

Everywhere x is (N, ...) with channels along `axis`, at least 1. Values of channels are (C,), for
all images together, or (N, C), for each by itself.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from jaxsr.interop.cpu_kernels.channel_moments import (
    channel_dots_by_torch,
    channel_moments_by_torch,
    channel_sums_by_torch,
)
from jaxsr.interop.cpu_kernels.choice import moments_by_torch, sums_by_torch
from jaxsr.interop.cpu_kernels.operands import alike
from jaxsr.xla_calls.primitives import cpu_primitive


def moments(x: jax.Array, *, axis: int, by_row: bool = False) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of each channel; the variance is divided by the number of pixels.

    Args:
      x: floating-point images.
      axis: of the channels.
      by_row: of each image by itself.
    """
    mean, variance = _rows(moments_p.bind(x, axis=axis % x.ndim, by_row=by_row))
    return mean.squeeze(-2), variance.squeeze(-2)


def affine(
    x: jax.Array, mean: jax.Array, scale: jax.Array, shift: jax.Array, *, axis: int
) -> jax.Array:
    """`(x - mean) * scale + shift`, with values of channels.

    Args:
      x: floating-point images.
      mean: of each channel.
      scale: of each channel.
      shift: of each channel.
      axis: of the channels.
    """
    return affine_p.bind(*alike(scale, shift, x, mean), axis=axis % x.ndim)


def channel_sums(x: jax.Array, *, axis: int, by_row: bool = False) -> jax.Array:
    """Sums over the pixels of each channel; arguments as for `moments`."""
    return sums_p.bind(x, axis=axis % x.ndim, by_row=by_row)


def spread(values: jax.Array, shape: Sequence[int], *, axis: int) -> jax.Array:
    """Values of channels at every pixel of images of a shape."""
    return spread_p.bind(values, shape=tuple(shape), axis=axis % len(shape))


def _dots(g: jax.Array, x: jax.Array, mean: jax.Array, *, axis: int) -> jax.Array:
    """Sums of `g` and of `g * (x - mean)`: (2, C), or (N, 2, C)."""
    return dots_p.bind(*alike(g, x, mean), axis=axis)


def _rows(both: jax.Array) -> Sequence[jax.Array]:
    """The two values of each channel, (1, C) or (N, 1, C) each.

    A slice's gradient is a padding, and that of two slices the sum of two paddings, which XLA
    compiles for each layer. It drops the concatenation of a split's gradient.
    """
    return lax.split(both, (1, 1), axis=both.ndim - 2)


# ---- with JAX's operations


def _at_pixels(values: jax.Array, *, shape: Sequence[int], axis: int) -> jax.Array:
    return lax.broadcast_in_dim(values, shape, (axis,) if values.ndim == 1 else (0, axis))


def _plain_sums(x: jax.Array, *, axis: int, by_row: bool) -> jax.Array:
    return jnp.sum(x, [i for i in range(x.ndim) if i != axis and (i or not by_row)])


def _plain_moments(x: jax.Array, *, axis: int, by_row: bool) -> jax.Array:
    pixels = _pixels(x, axis, by_row)
    mean = channel_sums(x, axis=axis, by_row=by_row) / pixels
    # Centred before squaring: E[x²] − E[x]² loses everything when the mean dwarfs the spread.
    squares = jnp.square(x - _at_pixels(mean, shape=x.shape, axis=axis))
    return jnp.stack([mean, channel_sums(squares, axis=axis, by_row=by_row) / pixels], -2)


def _plain_affine(
    scale: jax.Array, shift: jax.Array, x: jax.Array, mean: jax.Array, *, axis: int
) -> jax.Array:
    mean, scale, shift = (_at_pixels(v, shape=x.shape, axis=axis) for v in (mean, scale, shift))
    return (x - mean) * scale + shift


def _plain_dots(g: jax.Array, x: jax.Array, mean: jax.Array, *, axis: int) -> jax.Array:
    products = g * (x - _at_pixels(mean, shape=x.shape, axis=axis))
    by_row = mean.ndim == 2
    return jnp.stack([channel_sums(each, axis=axis, by_row=by_row) for each in (g, products)], -2)


def _pixels(x: jax.Array, axis: int, by_row: bool) -> int:
    """Pixels of each channel."""
    return x.size // x.shape[axis] // (x.shape[0] if by_row else 1)


def shape_option(*_: Any, shape: tuple[int, ...], **__: Any) -> tuple[int, ...]:
    """The result's shape, of primitives that have it as an option."""
    return shape


# ---- on CPUs


def _sums_on_cpu(x: jax.Array, *, axis: int, by_row: bool) -> jax.Array:
    by_torch = sums_by_torch(x)
    return (channel_sums_by_torch if by_torch else _plain_sums)(x, axis=axis, by_row=by_row)


def _moments_on_cpu(x: jax.Array, *, axis: int, by_row: bool) -> jax.Array:
    by_torch = moments_by_torch(x, by_row=by_row)
    return (channel_moments_by_torch if by_torch else _plain_moments)(x, axis=axis, by_row=by_row)


def _dots_on_cpu(g: jax.Array, x: jax.Array, mean: jax.Array, *, axis: int) -> jax.Array:
    by_torch = moments_by_torch(x, by_row=mean.ndim == 2)
    return (channel_dots_by_torch if by_torch else _plain_dots)(g, x, mean, axis=axis)


moments_p = cpu_primitive("jaxsr_channel_moments", _plain_moments, _moments_on_cpu)
dots_p = cpu_primitive("jaxsr_channel_dots", _plain_dots, _dots_on_cpu)
sums_p = cpu_primitive("jaxsr_channel_sums", _plain_sums, _sums_on_cpu)
affine_p = cpu_primitive("jaxsr_channel_affine", _plain_affine)
spread_p = cpu_primitive("jaxsr_channel_spread", _at_pixels, shape_of=shape_option)


# ---- derivatives


def _sums_transposed(
    ct: jax.Array, x: ad.UndefinedPrimal, *, axis: int, by_row: bool
) -> list[jax.Array]:
    return [spread(ct, x.aval.shape, axis=axis)]


def _spread_transposed(
    ct: jax.Array, values: ad.UndefinedPrimal, *, shape: tuple[int, ...], axis: int
) -> list[jax.Array]:
    return [channel_sums(ct, axis=axis, by_row=values.aval.ndim == 2)]


def _moments_jvp(
    primals: Sequence[jax.Array], tangents: Sequence[jax.Array], *, axis: int, by_row: bool
) -> tuple[jax.Array, jax.Array]:
    (x,), (dx,) = primals, tangents
    both = moments_p.bind(x, axis=axis, by_row=by_row)
    # The mean's own change leaves the variance as it is: sums of x - mean are zero.
    of_mean, of_variance = _rows(_dots(dx, x, both[..., 0, :], axis=axis))
    pixels = _pixels(x, axis, by_row)
    return both, jnp.concatenate([of_mean / pixels, of_variance * (2 / pixels)], -2)


def _affine_jvp(
    primals: Sequence[jax.Array], tangents: Sequence[jax.Array | ad.Zero], *, axis: int
) -> tuple[jax.Array, jax.Array]:
    scale, _, x, mean = primals
    *of_channels, dx, dmean = tangents
    out = affine_p.bind(*primals, axis=axis)
    terms = []
    if not all(isinstance(each, ad.Zero) for each in (*of_channels, dmean)):
        dscale, dshift, dmean = map(ad.instantiate_zeros, (*of_channels, dmean))
        terms.append(affine(x, mean, dscale, dshift - scale * dmean, axis=axis))
    if not isinstance(dx, ad.Zero):
        terms.append(dx * spread(scale, x.shape, axis=axis))
    return out, sum(terms[1:], terms[0])


def _affine_transposed(
    ct: jax.Array,
    scale: jax.Array | ad.UndefinedPrimal,
    shift: jax.Array | ad.UndefinedPrimal,
    x: jax.Array,
    mean: jax.Array,
    *,
    axis: int,
) -> list[jax.Array | None]:
    dots = _dots(ct, x, mean, axis=axis)
    gradients = (dots[..., 1, :], dots[..., 0, :])
    return [
        gradient if ad.is_undefined_primal(primal) else None
        for gradient, primal in zip(gradients, (scale, shift), strict=True)
    ] + [None, None]


def _dots_jvp(
    primals: Sequence[jax.Array], tangents: Sequence[jax.Array | ad.Zero], *, axis: int
) -> tuple[jax.Array, jax.Array]:
    (g, x, mean), (dg, dx, dmean) = primals, tangents
    out = dots_p.bind(*primals, axis=axis)
    change = jnp.zeros_like(out[..., 1, :])
    if not isinstance(dx, ad.Zero):
        change = channel_sums(g * dx, axis=axis, by_row=mean.ndim == 2)
    if not isinstance(dmean, ad.Zero):
        change = change - out[..., 0, :] * dmean
    tangent = jnp.stack([jnp.zeros_like(change), change], -2)
    return out, tangent if isinstance(dg, ad.Zero) else tangent + _dots(dg, x, mean, axis=axis)


def _dots_transposed(
    ct: jax.Array, g: ad.UndefinedPrimal, x: jax.Array, mean: jax.Array, *, axis: int
) -> list[jax.Array | None]:
    return [affine(x, mean, ct[..., 1, :], ct[..., 0, :], axis=axis), None, None]


ad.deflinear2(sums_p, _sums_transposed)
ad.deflinear2(spread_p, _spread_transposed)
ad.primitive_jvps[moments_p] = _moments_jvp
ad.primitive_jvps[affine_p] = _affine_jvp
ad.primitive_transposes[affine_p] = _affine_transposed
ad.primitive_jvps[dots_p] = _dots_jvp
ad.primitive_transposes[dots_p] = _dots_transposed

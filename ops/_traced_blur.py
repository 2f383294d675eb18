"""Gaussian windows whose sigma is known on the device alone, one for each image."""

from collections.abc import Sequence
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import positive_pair
from jaxsr.ops._border import Border, pad_axis
from jaxsr.ops._images import Parameter, in_dtype_of, real_dtype, spread
from jaxsr.ops._separable import LONGEST_SUM
from jaxsr.ops._typed_jax import jit, optimization_barrier, zeros_like


def is_array(sigma: Parameter) -> bool:
    """Whether sigma, or one of a pair, is an array: then it fixes no window."""
    values = sigma if isinstance(sigma, Sequence) else (sigma,)
    return any(isinstance(value, jax.Array | np.ndarray) for value in values)


def traced_blur(
    image: jax.Array,
    sigma: Parameter,
    kernel_size: int | Sequence[int] | None,
    border: Border,
    convention: str,
    axes: tuple[int, int],
) -> jax.Array:
    """`gaussian_blur` with a sigma, or a pair of them, for each image; axes from the front."""
    if kernel_size is None:
        raise ValueError(
            "a traced sigma needs kernel_size, which fixes the window; 2 round(3 sigma) + 1 holds "
            "the greatest sigma"
        )
    sizes = positive_pair(kernel_size, "kernel_size")
    if any(size % 2 == 0 for size in sizes) or max(sizes) > LONGEST_SUM:
        raise ValueError(
            f"kernel_size must be odd and at most {LONGEST_SUM} with a traced sigma, got "
            f"{kernel_size}; shrink the image first, or give sigma as a number"
        )
    if convention == "opencv" and image.dtype == jnp.uint8:
        raise ValueError(
            "OpenCV's rule for uint8 needs sigma as a number; use convention='torchvision', or "
            "floats"
        )
    pair = sigma if isinstance(sigma, Sequence) else (sigma, sigma)
    if len(pair) != 2:
        raise ValueError(f"sigma must be one array or (vertical, horizontal), got {len(pair)}")
    from_end = axes[0] - image.ndim, axes[1] - image.ndim
    vertical, horizontal = (spread(value, image, from_end, "sigma") for value in pair)
    return _blur(image, vertical, horizontal, sizes, border, axes) if image.size else image


@jit("sizes", "border", "axes")
def _blur(
    image: jax.Array,
    vertical: jax.Array,
    horizontal: jax.Array,
    sizes: tuple[int, int],
    border: Border,
    axes: tuple[int, int],
) -> jax.Array:
    x = image.astype(real_dtype(image))
    for axis, sigma, size in zip(axes, (vertical, horizontal), sizes, strict=True):
        x = _filtered(x, sigma, size // 2, axis, border)
    return in_dtype_of(image, x)


def _filtered(x: jax.Array, sigma: jax.Array, radius: int, axis: int, border: Border) -> jax.Array:
    # Sigma 0 leaves the image. Weights are 0 from 1e-3 on, and powers of less have no slope.
    least = jnp.maximum(jnp.abs(sigma), 1e-3)
    weights = [jnp.exp(-0.5 * jnp.square(k / least)) for k in range(1, radius + 1)]
    wide = optimization_barrier(pad_axis(x, axis, radius, radius, border))

    def shifted(offset: int) -> jax.Array:
        start = radius + offset
        return jax.lax.slice_in_dim(wide, start, start + x.shape[axis], axis=axis)

    pairs = ((shifted(-k) + shifted(k)) * weight for k, weight in enumerate(weights, start=1))
    total = 1 + 2 * reduce(jnp.add, weights, zeros_like(sigma))
    return optimization_barrier(reduce(jnp.add, pairs, shifted(0)) / total)

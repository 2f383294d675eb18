"""Runs the passes of a resize, by the formulation that suits the platform it is compiled for.

CPU and GPU sum strided slices or gathers (`apply_taps`). A TPU is two to five times faster with
matrix products by its compiler's estimates, but their zeros would spread a NaN or an infinity over
whole lines; so where one turns up the products are done another way.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._resample import apply_taps, by_matmul, by_matmul_of_any
from jaxsr.ops._taps import Pass, Taps


def run_passes(image: jax.Array, passes: Sequence[Pass]) -> jax.Array:
    """The resized image, in the dtype of the image."""
    passes = [step for step in passes if step.finish or not step.taps.is_identity]
    is_float = all(np.issubdtype(step.dtype, np.floating) for step in passes)
    in_order = any(step.taps.in_order for step in passes)
    if not passes or not is_float or in_order or all(step.taps.is_choice for step in passes):
        return by_sums(image, passes)
    return jax.lax.platform_dependent(
        image,
        tpu=lambda image: by_products(image, passes),
        default=lambda image: by_sums(image, passes),
    )


def by_sums(image: jax.Array, passes: Sequence[Pass]) -> jax.Array:
    """Weighted sums of slices or gathers, pass by pass."""
    x = image
    for step in passes:
        # MATLAB's uint8 results hang on float64 sums, whatever the caller's setting.
        with jax.enable_x64(True) if step.dtype == np.float64 else nullcontext():
            x = apply_taps(x.astype(step.dtype), step.taps, step.axis, step.finish)
    return x.astype(image.dtype)


def by_products(image: jax.Array, passes: Sequence[Pass]) -> jax.Array:
    """Matrix products, unless a value is not finite."""
    if image.dtype == jnp.uint8:
        return products(image, passes)
    grows = math.prod(step.taps.outputs / step.taps.extent for step in passes) > 1
    if grows:
        # The image is what is smaller, and the branch writes the result where it belongs.
        return jax.lax.cond(
            jnp.isfinite(image).all(),
            lambda image: products(image, passes),
            lambda image: products(image, passes, by_matmul_of_any),
            image,
        )
    # A bad pixel that any output reads is bad in the result as well.
    result = products(image, passes)
    return jax.lax.cond(
        # Whether all are finite, in the form that the compiler joins to the last product.
        (result * 0).sum() == 0,
        lambda: result,
        lambda: products(image, passes, by_matmul_of_any),
    )


def products(
    image: jax.Array,
    passes: Sequence[Pass],
    product: Callable[[jax.Array, Taps, int], jax.Array] = by_matmul,
) -> jax.Array:
    """Matrix products, pass by pass; by `by_matmul` for finite values alone."""
    x = image
    # The leading axis first where both change alike, also when growing: the other order has the
    # compiler transpose the larger of the two intermediates.
    for step in sorted(passes, key=lambda step: (step.taps.outputs / step.taps.extent, step.axis)):
        x = product(x.astype(step.dtype), step.taps, step.axis)
    finish = passes[-1].finish
    return (x if finish is None else finish(x)).astype(image.dtype)

"""Runs the passes of a resize, by the formulation that suits the platform it is compiled for.

CPU and GPU sum strided slices or gathers (`apply_taps`), a GPU few of them in one kernel. A TPU is
two to five times faster with matrix products by its compiler's estimates, but their zeros would
spread a NaN or an infinity over whole lines; so where one turns up the products are done another
way. uint8 images in fixed point are products as well, digit by digit.

A CPU is good at sums of slices and bad at their gradient as JAX derives it, which pads and
scatters. So the gradient also consists of sums, with the transposed tables: 4 to 27 times as fast
as products with the tables as matrices (`python -m benchmarks.ops --only gradient`). A pixel in
which more outputs than `MOST_GATHERS` have a share is left to products. Where an output's gradient
is not finite, NaN then spreads over the lines that their zeros meet.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching

from jaxsr.ops._resize.kernels import (
    LONG_LINE,
    MOST_GATHERS,
    apply_taps,
    by_digits,
    by_fused_gathers,
    by_matmul,
    by_matmul_of_any,
    can_take_digits,
    gathers_pixels,
    plan_phases,
)
from jaxsr.ops._resize.weights import SPARE, Pass, Taps
from jaxsr.ops._typed_jax import cond, platform_dependent
from jaxsr.xla_calls.primitives import cpu_primitive

MOST_PLANE_PHASES = 4
"""Phases of a ratio up to which float64 sums are faster in planes."""
MOST_FUSED_TAPS = 4
"""Taps of one axis with which a GPU gathers for both axes in one kernel. More are slower so than by
an array between the axes, and four do where the phases of the ratio are slices
(`python -m benchmarks.gpu --part kernels`)."""
CACHE_BYTES = 1 << 24
"""Results from which on gathered pixels, which arrive in columns, no longer turn within a cache."""
SAME_SET_BYTES = 4096
"""Places so far apart, or a multiple of it, share the lines of a cache that a few of them fill."""


def run_passes(image: jax.Array, passes: Sequence[Pass]) -> jax.Array:
    """The resized image, in the dtype of the image."""
    passes = [step for step in passes if step.finish or not step.taps.is_identity]
    if not passes:
        return image
    if any(step.taps.in_order for step in passes):
        planes = partial(by_planes, passes=passes)
        return platform_dependent(image, cpu=planes, default=partial(by_sums, passes=passes))
    sums = partial(by_sums, passes=passes)
    if not all(np.issubdtype(step.dtype, np.floating) for step in passes):
        digits = partial(sums, digits=True)
        planes = partial(by_planes, passes=passes)
        return platform_dependent(image, cpu=planes, tpu=digits, default=sums)
    chooses = all(step.taps.is_choice for step in passes)
    tpu = partial(by_sums if chooses else by_products, passes=passes)
    cpu, cuda = partial(on_cpu, passes=passes), partial(on_gpu, passes=passes)
    return platform_dependent(image, cpu=cpu, tpu=tpu, cuda=cuda, default=sums)


def by_planes(image: jax.Array, passes: Sequence[Pass]) -> jax.Array:
    """`by_sums` of uint8 levels, with channels moved to the front: loops over three are slow.

    torch's bicubic of 8 × 512² × 3 to 256², antialiased: 1.0 ms instead of 2.9.
    """
    last = max(step.axis for step in passes)
    channels = math.prod(image.shape[last + 1 :])
    phases = [plan_phases(step.taps) for step in passes]
    simple = all(
        plan is not None and plan.outputs_per_period <= MOST_PLANE_PHASES for plan in phases
    )
    in_integers = all(np.issubdtype(step.dtype, np.integer) for step in passes)
    if channels == 1 or channels >= LONG_LINE or not (simple or in_integers):
        return by_sums(image, passes)
    planes = jnp.moveaxis(image.reshape(*image.shape[: last + 1], channels), -1, 0)
    moved = [replace(step, axis=step.axis + 1) for step in passes]
    out = jnp.moveaxis(by_sums(planes, moved), 0, -1)
    return out.reshape(*out.shape[:-1], *image.shape[last + 1 :])


def on_cpu(image: jax.Array, passes: Sequence[Pass]) -> jax.Array:
    """Sums of slices, or products where a pass would gather too much; derivative by sums."""

    def run(image: jax.Array) -> jax.Array:
        if not _gathers_badly(image, passes):
            return by_sums(image, passes)
        return _if_finite(products(image, passes), lambda: by_sums(image, passes))

    return _with_derivative(image, passes, run)


def on_gpu(image: jax.Array, passes: Sequence[Pass]) -> jax.Array:
    """Sums of gathers in one kernel for few taps, else of slices; derivative by sums."""
    return _with_derivative(image, passes, partial(by_sums, passes=passes, fused=True))


def _with_derivative(
    image: jax.Array, passes: Sequence[Pass], run: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    is_linear = all(step.finish is None for step in passes)
    is_wider = any(step.dtype == np.float64 for step in passes) and image.dtype != np.float64
    if not is_linear or is_wider or not jnp.issubdtype(image.dtype, jnp.floating):
        return by_sums(image, passes)
    resized = jax.custom_jvp(run)

    @resized.defjvp
    def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        return resized(*primals), _linear(*tangents, passes)

    return resized(image)


def _linear(x: jax.Array, passes: Sequence[Pass]) -> jax.Array:
    """The passes, as a function whose gradient is sums as well."""
    steps = tuple(passes)
    if any(step.taps.index.shape[1] > MOST_GATHERS for step in _transposed(steps)):
        return products(x, passes)
    return sums_p.bind(x, passes=steps)


def _fuses(taps: Taps) -> bool:
    """Whether a GPU is faster without the intermediate result, though it gathers more."""
    width = taps.index.shape[1]
    return width <= 2 or (width <= MOST_FUSED_TAPS and plan_phases(taps) is None)


@lru_cache(256)
def _transposed(passes: tuple[Pass, ...]) -> tuple[Pass, ...]:
    return tuple(replace(step, taps=step.taps.transposed()) for step in reversed(passes))


def _gathers_badly(image: jax.Array, passes: Sequence[Pass]) -> bool:
    """Whether gathered columns of pixels would evict each other before they are turned to rows."""
    shape: list[Any] = list(image.shape)
    if not all(isinstance(extent, int) for extent in shape):
        return False  # an exported program's batch, of any extent
    for step in passes:
        shape[step.axis] = step.taps.outputs
        apart = math.prod(shape) // step.taps.outputs * step.dtype.itemsize
        large = apart * step.taps.outputs > CACHE_BYTES and apart % SAME_SET_BYTES == 0
        if large and gathers_pixels(shape, step.taps, step.axis):
            return True
    return False


def by_sums(
    image: jax.Array, passes: Sequence[Pass], *, digits: bool = False, fused: bool = False
) -> jax.Array:
    """Weighted sums of slices or gathers, pass by pass.

    Args:
      image: to resize.
      passes: in their order.
      digits: as products, where they fit.
      fused: as gathers that compilers may fuse, where they are few.
    """
    x = image
    for step in passes:
        if fused and _fuses(step.taps):
            x = by_fused_gathers(x.astype(step.dtype), step.taps, step.axis, step.finish)
            continue
        if digits and can_take_digits(x, step.taps):
            x = by_digits(x, step.taps, step.axis, step.finish)
            continue
        # MATLAB's uint8 results hang on float64 sums, whatever the caller's setting.
        with jax.enable_x64(True) if step.dtype == np.float64 else nullcontext():
            x = apply_taps(x.astype(step.dtype), step.taps, step.axis, step.finish)
    return x.astype(image.dtype)


def by_products(image: jax.Array, passes: Sequence[Pass]) -> jax.Array:
    """Matrix products, unless a value is not finite."""
    if image.dtype == jnp.uint8:
        return products(image, passes)
    of_any = partial(products, passes=passes, product=by_matmul_of_any)
    grows = math.prod(step.taps.outputs / step.taps.extent for step in passes) > 1
    if grows:
        # The image is smaller than the result, and the branch writes the result into its place.
        branches = partial(products, passes=passes), of_any
        return cond(jnp.isfinite(image).all(), *branches, image)
    # A bad pixel that any output reads is bad in the result as well.
    return _if_finite(products(image, passes), lambda: of_any(image))


def _if_finite(result: jax.Array, otherwise: Callable[[], jax.Array]) -> jax.Array:
    # Whether all are finite, in the form that the compiler joins to the last product.
    return cond((result * 0).sum() == 0, lambda: result, otherwise)


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


def _shape_after(x: Any, *, passes: tuple[Pass, ...]) -> tuple[int, ...]:
    shape = list(x.shape)
    for step in passes:
        shape[step.axis] = step.taps.outputs
    return tuple(shape)


def _linear_sums(x: jax.Array, *, passes: tuple[Pass, ...]) -> jax.Array:
    x = by_sums(x, passes)
    for step in passes:
        shares = (np.abs(step.taps.weight) > SPARE).any(axis=1)
        if not shares.all():  # a gradient's: pixels that no output reads
            others = [axis for axis in range(x.ndim) if axis != step.axis]
            x = jnp.where(np.expand_dims(shares, others), x, 0)
    return x


sums_p = cpu_primitive("jaxsr_sums", _linear_sums, shape_of=_shape_after)
"""`by_sums` of passes without a finish; its transpose is the same of transposed tables."""


def _transpose(gradient: Any, _: Any, *, passes: tuple[Pass, ...]) -> list[Any]:
    return [sums_p.bind(gradient, passes=_transposed(passes))]


def _batched(operands: Any, axes: Any, *, passes: tuple[Pass, ...]) -> tuple[Any, int]:
    x = jnp.moveaxis(operands[0], axes[0], 0)
    return sums_p.bind(x, passes=tuple(replace(s, axis=s.axis + 1) for s in passes)), 0


ad.deflinear2(sums_p, _transpose)  # pyright: ignore[reportUnknownMemberType]
batching.primitive_batchers[sums_p] = _batched

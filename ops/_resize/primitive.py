# pyright: basic
# JAX gives primitives and partitioners no types.
"""A resize that CPU programs leave to the convention's own library, as one JAX operation.

It is chosen while a program is lowered for its platform. Other platforms, and images that the
library is not called for, take the passes of `dispatch.py`; so do all derivatives.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching

from jaxsr.ops._resize.conventions import CONVENTIONS
from jaxsr.ops._resize.dispatch import run_passes
from jaxsr.xla_calls.primitives import cpu_primitive


def resize_in_jax(
    image: jax.Array,
    *,
    axes: tuple[int, ...],
    size: tuple[int, ...],
    convention: str,
    options: tuple[tuple[str, Any], ...],
) -> jax.Array:
    """The passes that the convention makes for this image."""
    make_passes = CONVENTIONS[convention].passes
    passes = make_passes(image.shape, np.dtype(image.dtype), axes, size, **dict(options))
    return run_passes(image, passes)


def _on_cpu(image: jax.Array, *, convention: str, **static: Any) -> jax.Array:
    library = CONVENTIONS[convention].library
    assert library is not None
    out = library(image, static["axes"], static["size"], **dict(static["options"]))
    return resize_in_jax(image, convention=convention, **static) if out is None else out


def _shape_of(
    image: Any, *, axes: tuple[int, ...], size: tuple[int, ...], **_: Any
) -> tuple[int, ...]:
    extents: dict[int, int] = dict(zip(axes, size, strict=True))
    shape: tuple[int, ...] = image.shape
    return tuple(extents.get(i, n) for i, n in enumerate(shape))


def _batched(operands: Any, batch_axes: Any, *, axes: tuple[int, ...], **static: Any) -> Any:
    image = jnp.moveaxis(operands[0], batch_axes[0], 0)
    return resize_p.bind(image, axes=tuple(axis + 1 for axis in axes), **static), 0


def _derivative(primals: Any, tangents: Any, **static: Any) -> Any:
    _, tangent = jax.jvp(partial(resize_in_jax, **static), primals, tangents)
    return resize_p.bind(*primals, **static), tangent


resize_p = cpu_primitive("jaxsr_resize", resize_in_jax, _on_cpu, shape_of=_shape_of)
"""Takes an image; `axes`, `size`, `convention` and `options` as `resize` normalises them."""
batching.primitive_batchers[resize_p] = _batched
ad.primitive_jvps[resize_p] = _derivative

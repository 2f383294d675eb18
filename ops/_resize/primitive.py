# pyright: basic
# JAX gives primitives and partitioners no types.
"""A resize that CPU programs leave to the convention's own library, as one JAX operation.

It is chosen while a program is lowered for its platform. Other platforms, and images that the
library is not called for, take the passes of `dispatch.py`; so do all derivatives.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxsr.ops._resize.conventions import CONVENTIONS
from jaxsr.ops._resize.dispatch import run_passes

resize_p = cast(Any, Primitive("jaxsr_resize"))
"""Of an image; `axes`, `size`, `convention` and `options` as `resize` normalises them."""


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


@resize_p.def_abstract_eval
def _abstract(image: Any, *, axes: tuple[int, ...], size: tuple[int, ...], **_: Any) -> Any:
    extents = dict(zip(axes, size, strict=True))
    return image.update(shape=tuple(extents.get(i, n) for i, n in enumerate(image.shape)))


def _batched(operands: Any, batch_axes: Any, *, axes: tuple[int, ...], **static: Any) -> Any:
    image = jnp.moveaxis(operands[0], batch_axes[0], 0)
    return resize_p.bind(image, axes=tuple(axis + 1 for axis in axes), **static), 0


def _derivative(primals: Any, tangents: Any, **static: Any) -> Any:
    (image,), (tangent,) = primals, tangents
    out = resize_p.bind(image, **static)
    if isinstance(tangent, ad.Zero):
        return out, cast(Any, ad.Zero).from_primal_value(out)
    _, tangent = jax.jvp(lambda image: resize_in_jax(image, **static), (image,), (tangent,))
    return out, tangent


batching.primitive_batchers[resize_p] = _batched
ad.primitive_jvps[resize_p] = _derivative
mlir.register_lowering(resize_p, mlir.lower_fun(resize_in_jax, multiple_results=False))
mlir.register_lowering(resize_p, mlir.lower_fun(_on_cpu, multiple_results=False), platform="cpu")
# The rows are split among the devices, which the rule must know. JAX has no public way to say so.
prim_requires_devices_during_lowering.add(resize_p)


@resize_p.def_impl
def _computed_at_once(image: jax.Array, **static: Any) -> jax.Array:
    return jax.jit(resize_p.bind, static_argnames=tuple(static))(image, **static)

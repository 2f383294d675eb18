# pyright: basic
# JAX gives primitives no types.
"""JAX primitives that have a kernel of their own in programs for CPUs."""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir


def cpu_primitive(
    name: str,
    plain: Callable[..., jax.Array],
    on_cpu: Callable[..., jax.Array] | None = None,
    *,
    shape_of: Callable[..., tuple[int, ...]] | None = None,
    dtype: str | None = None,
) -> Any:
    """A primitive of one result, with every rule but those of differentiation.

    Args:
      name: for jaxprs.
      plain: computes it with JAX's own operations. All options are keywords.
      on_cpu: computes it in programs for CPUs. Default: `plain`.
      shape_of: the result's shape, from the operands' types and the options. Default: from a trace
        of `plain`.
      dtype: the result's. Default: that of the first operand.
    """
    primitive = cast(Any, Primitive(name))

    @primitive.def_abstract_eval
    def _(x: Any, *others: Any, **options: Any) -> Any:
        if shape_of is not None:
            shape = shape_of(x, *others, **options)
        else:
            structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in (x, *others)]
            shape = jax.eval_shape(functools.partial(plain, **options), *structs).shape
        return x.update(shape=shape, dtype=x.dtype if dtype is None else np.dtype(dtype))

    @primitive.def_impl
    def _(*operands: Any, **options: Any) -> Any:
        return jax.jit(primitive.bind, static_argnames=tuple(options))(*operands, **options)

    def batched(operands: Any, axes: Any, **options: Any) -> Any:
        return jax.vmap(functools.partial(plain, **options), axes)(*operands), 0

    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(plain, multiple_results=False))
    if on_cpu is not None:
        lowering = mlir.lower_fun(on_cpu, multiple_results=False)
        mlir.register_lowering(primitive, lowering, platform="cpu")
        # A rule that partitions by itself needs the devices. JAX has no public way to ask for them.
        prim_requires_devices_during_lowering.add(primitive)
    return primitive

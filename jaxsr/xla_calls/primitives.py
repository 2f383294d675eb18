# pyright: basic
# JAX gives primitives no types.
"""JAX primitives that have a kernel of their own in programs for CPUs."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxsr.xla_calls.calls import calls_compiled, xla_only
from jaxsr.xla_calls.promotion import own_promotion


def cpu_primitive(
    name: str,
    plain: Callable[..., Any],
    on_cpu: Callable[..., Any] | None = None,
    *,
    shape_of: Callable[..., tuple[int, ...]] | None = None,
    dtype: str | None = None,
    several: bool = False,
    calls: bool = True,
) -> Any:
    """A primitive with every rule but those of differentiation.

    Args:
      name: for jaxprs.
      plain: computes it with JAX's own operations. All options are keywords.
      on_cpu: computes it in programs for CPUs. Default: `plain`.
      shape_of: the result's shape, from the operands' types and the options. Default: from a trace
        of `plain`.
      dtype: the result's. Default: that of the first operand.
      several: whether `plain` gives a list of results; shapes and dtypes are then those of a
        trace.
      calls: whether `on_cpu` calls a library; JAX then lowers for known devices only.
    """
    plain = own_promotion(plain)  # lowered outside of the function that binds the primitive
    on_cpu = None if on_cpu is None else own_promotion(on_cpu)
    primitive = cast(Any, Primitive(name))
    primitive.multiple_results = several

    @primitive.def_abstract_eval
    def _(x: Any, *others: Any, **options: Any) -> Any:
        if shape_of is not None:
            shape = shape_of(x, *others, **options)
        else:
            structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in (x, *others)]
            results = jax.eval_shape(functools.partial(plain, **options), *structs)
            if several:
                return [x.update(shape=each.shape, dtype=each.dtype) for each in results]
            shape = results.shape
        return x.update(shape=shape, dtype=x.dtype if dtype is None else np.dtype(dtype))

    @primitive.def_impl
    def _(*operands: Any, **options: Any) -> Any:
        with jax.disable_jit(False):  # a kernel has no steps to run one by one
            return jax.jit(primitive.bind, static_argnames=tuple(options))(*operands, **options)

    def batched(operands: Any, axes: Any, **options: Any) -> Any:
        out = jax.vmap(functools.partial(plain, **options), axes)(*operands)
        return out, [0] * len(out) if several else 0

    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(plain, multiple_results=several))
    if on_cpu is not None:
        by_kernels = mlir.lower_fun(on_cpu, multiple_results=several)

        def lowering(context: Any, *operands: Any, **options: Any) -> Any:
            # An exported program runs in other processes, which have none of our kernels.
            leaves = context.module_context.lowering_parameters.for_export and not calls_compiled()
            with xla_only() if leaves else contextlib.nullcontext():
                return by_kernels(context, *operands, **options)

        mlir.register_lowering(primitive, lowering, platform="cpu")
        if calls:
            # A rule that partitions by itself needs the devices. JAX has no public way to ask for
            # them.
            prim_requires_devices_during_lowering.add(primitive)
    return primitive


def map_by_rows(primitive: Any, *, shared: int | None = None) -> None:
    """Lets `vmap` put its axis into the first one of all operands and results.

    Args:
      primitive: its operands have a row for each of the batch.
      shared: place of an operand that may have a single row for all of them.
    """

    def batched(operands: Any, axes: Any, **options: Any) -> Any:
        size = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
        batch = operands[0].shape[int(axes[0] == 0)]

        def rows_of(place: int, x: jax.Array, axis: int | None) -> jax.Array:
            if axis is None and place == shared and x.shape[0] == 1:
                return x
            x = x[None] if axis is None else jnp.moveaxis(x, axis, 0)
            rows = batch if place == shared else x.shape[1]
            return jnp.broadcast_to(x, (size, rows, *x.shape[2:])).reshape(
                size * rows, *x.shape[2:]
            )

        rows = [rows_of(i, *pair) for i, pair in enumerate(zip(operands, axes, strict=True))]
        results = primitive.bind(*rows, **options)
        unmapped = jax.tree.map(lambda out: out.reshape(size, batch, *out.shape[1:]), results)
        return unmapped, jax.tree.map(lambda _: 0, results)

    batching.primitive_batchers[primitive] = batched

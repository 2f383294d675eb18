"""JAX primitives that have a kernel of their own in programs for CPUs."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir


def cpu_primitive(
    name: str, plain: Callable[..., jax.Array], on_cpu: Callable[..., jax.Array] | None = None
) -> Primitive:
    """A primitive of one result, with every rule but those of differentiation.

    Args:
      name: for jaxprs.
      plain: computes it with JAX's own operations. All options are keywords; `shape` is that of the
        result.
      on_cpu: computes it in programs for CPUs. Default: `plain`.
    """
    primitive = Primitive(name)

    @primitive.def_abstract_eval
    def _(x: Any, *others: Any, **options: Any) -> Any:
        if "shape" in options:
            return x.update(shape=options["shape"])
        structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in (x, *others)]
        return x.update(shape=jax.eval_shape(functools.partial(plain, **options), *structs).shape)

    @primitive.def_impl
    def _(*operands: jax.Array, **options: Any) -> jax.Array:
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


def alike(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays in one dtype, varying over the same mesh axes inside `shard_map`."""
    dtype = jnp.result_type(*arrays)
    axes = frozenset[str]().union(*map(varying_axes, arrays))
    return [
        lax.pcast(each.astype(dtype), tuple(axes - varying_axes(each)), to="varying")
        for each in arrays
    ]


def varying_axes(array: jax.Array) -> frozenset[str]:
    """Mesh axes over which an array varies inside `shard_map`."""
    aval: Any = jax.typeof(array)
    return aval.vma if hasattr(aval, "vma") else aval.mat.varying

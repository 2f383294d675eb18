"""Operands on meshes with explicit axes, where JAX asks every operation for the sharding it makes.

`jax.make_mesh` has explicit axes by default in newer versions of JAX. The code of modules and of
image functions names no shardings, so its operations run with automatic axes. Results are sharded
by their leading axis as the inputs are, where they have as many rows, and replicated otherwise.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

PyTree = Any
_sharding: Any = jax.sharding  # untyped in JAX


def explicit_mesh(arrays: PyTree) -> AbstractMesh | None:
    """The mesh of the first array that lies on explicit axes; None if there is no such operand."""
    for x in jax.tree.leaves(arrays):
        if isinstance(x, jax.Array) and (mesh := jax.typeof(x).sharding.mesh).explicit_axes:
            return mesh
    return None


def with_automatic_axes(
    run: Callable[..., Any], mesh: AbstractMesh, state: PyTree, inputs: PyTree
) -> Any:
    """`run(state, inputs)`, its operations on automatic axes of the same mesh."""
    automatic = mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))
    batches = {
        (x.shape[0], jax.typeof(x).sharding.spec[0])
        for x in jax.tree.leaves(inputs)
        if isinstance(x, jax.Array) and x.ndim and jax.typeof(x).sharding.spec[0] is not None
    }

    def sharded(x: Any, over: AbstractMesh, spec: PartitionSpec) -> Any:
        # With its mesh: the code around, such as a gradient, may have set none.
        return _sharding.reshard(x, NamedSharding(over, spec)) if isinstance(x, jax.Array) else x

    def spec_of(x: Any) -> PartitionSpec:
        names = [name for rows, name in batches if getattr(x, "shape", ())[:1] == (rows,)]
        return PartitionSpec(*names[:1])

    def freed(x: Any) -> Any:
        return sharded(x, automatic, PartitionSpec())

    def as_before(x: Any) -> Any:
        return sharded(x, mesh, spec_of(x))

    with jax.sharding.use_abstract_mesh(automatic):
        out = run(*jax.tree.map(freed, (state, inputs)))
    return jax.tree.map(as_before, out)

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""Small arrays of a tree as one vector, for functions that compute each element by itself.

A network has hundreds of parameters, most of them small: scales of norms, biases, narrow kernels.
For each of them XLA compiles a dozen functions of an optimiser's update and of its norms, on a CPU
in more time than it takes for the network's own gradient. A vector of all of them needs a dozen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jaxsr.interop import mesh as meshes
from jaxsr.interop.annotations import PyTree
from jaxsr.xla_calls import calls as cpu_calls

_structure = cast(Callable[[PyTree], Any], jax.tree.structure)  # untyped in JAX

_MOST_ELEMENTS = 1 << 14
"""Limit of an array that is packed. The copies of larger ones cost more than is saved."""
_RUN = 1024
"""Squares that are added up in float32; their sums are in float64."""


class Packed(flax.struct.PyTreeNode):
    """A tree whose small arrays lie in one vector.

    Attributes:
      vector: the small ones, (elements,).
      others: the leaves that are not packed.
    """

    vector: jax.Array
    others: list[jax.Array]


@dataclass(frozen=True)
class Packing:
    """Which leaves of a tree are packed.

    packing = Packing.of(params, mesh)
    params = packing.unpack(jax.tree.map(f, packing.pack(params), packing.pack(gradients)))
    """

    structure: Any
    """Structure of the tree, as `jax.tree` has it."""
    small: dict[int, jax.ShapeDtypeStruct]
    """The packed leaves by number; if empty, nothing is packed."""

    @classmethod
    def of(cls, tree: PyTree, mesh: Mesh) -> "Packing":
        """The float32 leaves of few elements, where CPUs compute and each has them whole.

        Args:
          tree: of arrays.
          mesh: where the program runs.
        """
        structure = _structure(tree)
        leaves = jax.tree.leaves(tree)
        small = {
            number: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for number, leaf in enumerate(leaves)
            if leaf.dtype == jnp.float32 and 0 < leaf.size <= _MOST_ELEMENTS
        }
        on_cpus = mesh.devices.flat[0].platform == "cpu" and cpu_calls.enabled()
        packs = on_cpus and meshes.model_devices(mesh) == 1 and len(small) > 1
        return cls(structure, small if packs else {})

    def pack(self, tree: PyTree) -> PyTree:
        """A tree with each part of this structure packed: an optimiser's state has several."""

        def packed(part: PyTree) -> PyTree:
            if not self._fits(part):
                return part
            leaves = jax.tree.leaves(part)
            others = [leaf for number, leaf in enumerate(leaves) if number not in self.small]
            return Packed(vector=_concatenate([leaves[n] for n in self.small]), others=others)

        return self._map(packed, tree, self._fits)

    def unpack(self, tree: PyTree) -> PyTree:
        """The tree that `pack` was given."""

        def unpacked(part: PyTree) -> PyTree:
            if not isinstance(part, Packed):
                return part
            arrays = dict(zip(self.small, _split(part.vector, [*self.small.values()]), strict=True))
            others = iter(part.others)
            leaves = [
                arrays[number] if number in arrays else next(others)
                for number in range(self.structure.num_leaves)
            ]
            return jax.tree.unflatten(self.structure, leaves)

        return self._map(unpacked, tree, _is_packed)

    def _fits(self, part: PyTree) -> bool:
        return _structure(part) == self.structure

    def _map(
        self, function: Callable[[PyTree], PyTree], tree: PyTree, is_part: Callable[[PyTree], bool]
    ) -> PyTree:
        return jax.tree.map(function, tree, is_leaf=is_part) if self.small else tree


def _is_packed(part: PyTree) -> bool:
    return isinstance(part, Packed)


def norm(tree: PyTree) -> jax.Array:
    """Euclidean norm of all elements of a tree, packed or not: a scalar.

    Args:
      tree: of arrays.
    """
    if not isinstance(tree, Packed):
        return optax.tree.norm(tree)
    # XLA compiles four functions for each array's sum.
    return cpu_calls.call(_norm, jax.ShapeDtypeStruct((), jnp.float32), *jax.tree.leaves(tree))


@cpu_calls.kernel("jaxsr_norm")
def _norm(
    inputs: cpu_calls.Arrays, outputs: cpu_calls.Arrays, options: cpu_calls.Attributes
) -> None:
    squares = 0.0
    with np.errstate(all="ignore"):
        for array in inputs:
            values = array.ravel().astype(np.float32, copy=False)
            tail = values.size - values.size % _RUN
            for rows in (values[:tail].reshape(-1, _RUN), values[tail:].reshape(1, -1)):
                squares += np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64)
        outputs[0][...] = np.sqrt(squares)


@cpu_calls.kernel("jaxsr_concatenate")
def _concatenated(
    inputs: cpu_calls.Arrays, outputs: cpu_calls.Arrays, options: cpu_calls.Attributes
) -> None:
    np.concatenate([array.ravel() for array in inputs], out=outputs[0])


@cpu_calls.kernel("jaxsr_split")
def _parts(
    inputs: cpu_calls.Arrays, outputs: cpu_calls.Arrays, options: cpu_calls.Attributes
) -> None:
    begin = 0
    for array in outputs:
        array[...] = inputs[0][begin : begin + array.size].reshape(array.shape)
        begin += array.size


def _concatenate(arrays: Sequence[jax.Array]) -> jax.Array:
    # XLA compiles its own concatenation of hundreds of arrays for seconds.
    size = sum(array.size for array in arrays)
    return cpu_calls.call(_concatenated, jax.ShapeDtypeStruct((size,), arrays[0].dtype), *arrays)


def _split(vector: jax.Array, shapes: list[jax.ShapeDtypeStruct]) -> Sequence[jax.Array]:
    return cpu_calls.call(_parts, shapes, vector)

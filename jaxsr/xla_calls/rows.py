# pyright: basic
# JAX gives primitives and partitioners no types.
"""A custom call in a program for CPUs, each simulated device on its own rows of the batch."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jaxsr.xla_calls import calls as cpu_calls


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsCall:
    """A call of a kernel; all that it depends on except its arrays."""

    kernel: str
    """Name of a registered kernel."""
    shape: tuple[int, ...]
    """Shape of the result."""
    axes: tuple[str, ...]
    """For each operand and each result: letters of the first axes, or dots. Each index of a
    letter's axis can be computed by itself, on any device. n: rows of the batch. A result without
    rows is made of all of them."""
    channels_last: tuple[bool, ...]
    """For each operand and each result: whether axis 1 is the last one in memory."""
    options: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Attributes of the call."""
    dtype: str | None = None
    """Dtype of the result. Default: that of the first operand."""
    more: tuple[jax.ShapeDtypeStruct, ...] = ()
    """Further results. With any, the call gives a list."""
    in_place: bool = False
    """Whether the result takes the first operand's memory, and begins with its values."""
    elementwise: bool = False
    """Whether the kernel makes each element of the only operand's, so that any sharding is kept."""
    combine: Callable[[jax.Array, Any], jax.Array] = lax.psum
    """Makes a result without rows of those of each device's rows, over mesh axes."""

    def __call__(self, *operands: jax.Array) -> Any:
        """The result, or the list of results, by one call on each device."""
        # The partitioner's callback stands in the program as an address, which differs from process
        # to process and is not part of a kept program's key. The options are, as an operand.
        key = np.array([0, *(value for _, values in self.options for value in values)])
        ranks = tuple(operand.ndim for operand in operands)
        return _partitioned(self, ranks)(*operands, key)

    def run(self, *operands: jax.Array) -> Any:
        """The results of these operands, which may be a part of the rows."""
        extents = {
            letter: operand.shape[axis]
            for operand, letters in zip(operands, self.axes, strict=False)
            for axis, letter in enumerate(letters)
            if letter != "."
        }
        first = jax.ShapeDtypeStruct(self.shape, self.dtype or operands[0].dtype)
        results = [
            jax.ShapeDtypeStruct(
                (*map(extents.get, letters, each.shape), *each.shape[len(letters) :]), each.dtype
            )
            for each, letters in zip((first, *self.more), self.axes[len(operands) :], strict=True)
        ]
        return cpu_calls.call(
            self.kernel,
            results if self.more else results[0],
            *operands,
            channels_last=self.channels_last,
            in_place=self.in_place,
            **dict(self.options),
        )


@functools.cache
def _partitioned(call: RowsCall, ranks: tuple[int, ...]) -> Callable[..., Any]:
    of_operands, of_results = call.axes[: len(ranks)], call.axes[len(ranks) :]
    ranks = (*ranks, len(call.shape), *(len(each.shape) for each in call.more))
    function = custom_partitioning(lambda *arrays: call.run(*arrays[:-1]))

    def partition(mesh: Any, arrays: Any, results: Any) -> Any:
        replicated = NamedSharding(mesh, PartitionSpec())
        if call.elementwise:
            sharding = arrays[0].sharding
            return mesh, shard_of_elements, sharding, (sharding, replicated)
        placed = (*arrays[:-1], *jax.tree.leaves(results))
        names = _mesh_axes(mesh, call.axes, placed)

        def shard(*arrays: jax.Array) -> Any:
            is_part = "n" in names and "n" not in of_results[0]
            # A part has no sharding. From JAX 0.12 on, an explicit mesh would give it one.
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                out = call.run(*arrays[:-1])
                return call.combine(out, names["n"]) if is_part else out

        shardings = [
            NamedSharding(mesh, PartitionSpec(*(names.get(letter) for letter in letters)))
            for letters in call.axes
        ]
        result_shardings = shardings[len(of_operands) :]
        return (
            mesh, shard, result_shardings if call.more else result_shardings[0],
            (*shardings[: len(of_operands)], replicated),
        )  # fmt: skip

    def shard_of_elements(x: jax.Array, _: jax.Array) -> jax.Array:
        return dataclasses.replace(call, shape=x.shape).run(x)

    terms = [
        " ".join(
            letters[i] if letters[i : i + 1] not in ("", ".") else f"a{number}_{i}"
            for i in range(rank)
        )
        for number, (letters, rank) in enumerate(zip(call.axes, ranks, strict=True))
    ]
    result_terms = [terms[0]] if call.elementwise else terms[len(of_operands) :]
    rule = f"{', '.join(terms[: len(of_operands)])}, key -> {', '.join(result_terms)}"
    function.def_partition(partition=partition, sharding_rule=rule)
    return function


def _mesh_axes(mesh: Any, axes: tuple[str, ...], arrays: Any) -> dict[str, tuple[str, ...]]:
    """For each letter the mesh axes over which arrays are split, as the first array is that is.

    None where that is not even, or where another letter has them: rows come first.
    """
    names: dict[str, tuple[str, ...]] = {}
    for letter in sorted({*"".join(axes)} - {"."}, key=lambda each: (each != "n", each)):
        for letters, array in zip(axes, arrays, strict=True):
            # XLA's own shardings, of axes that it chose alone, have no names.
            spec, axis = getattr(array.sharding, "spec", ()), letters.find(letter)
            if not 0 <= axis < len(spec) or spec[axis] is None:
                continue
            of_axis = spec[axis] if isinstance(spec[axis], tuple) else (spec[axis],)
            parts = math.prod(mesh.shape[name] for name in of_axis)
            is_free = not {*of_axis} & {name for each in names.values() for name in each}
            if is_free and array.shape[axis] % parts == 0:
                names[letter] = of_axis
            break
    return names

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

from jaxsr.ops import _cpu_calls as cpu_calls


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsCall:
    """A call of a kernel; all that it depends on besides its arrays.

    Axis 0 of some arrays counts rows of the batch. What a kernel makes of each row it makes by
    itself; a result without rows is made of all of them.
    """

    kernel: str
    """Name of a registered kernel."""
    shape: tuple[int, ...]
    """Of the result."""
    has_rows: tuple[bool, ...]
    """Of each operand and the result."""
    channels_last: tuple[bool, ...]
    """Of each operand and the result: whether axis 1 is the last one in memory."""
    options: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Attributes of the call."""
    dtype: str | None = None
    """Of the result. Default: that of the first operand."""
    in_place: bool = False
    """Whether the result takes the first operand's memory, and begins with its values."""
    elementwise: bool = False
    """Whether the kernel makes each element of the only operand's, so that any sharding is kept."""
    combine: Callable[[jax.Array, Any], jax.Array] = lax.psum
    """Makes a result without rows of those of each device's rows, over mesh axes."""

    def __call__(self, *operands: jax.Array) -> jax.Array:
        """The result, by one call on each device."""
        # The partitioner's callback stands in the program as an address, which differs from process
        # to process and is no part of a kept program's key. The options are, as an operand.
        key = np.array([0, *(value for _, values in self.options for value in values)])
        ranks = tuple(operand.ndim for operand in operands)
        return _partitioned(self, ranks)(*operands, key)

    def run(self, *operands: jax.Array, rows: int | None = None) -> jax.Array:
        """The result of some rows."""
        shape = self.shape if rows is None else (rows, *self.shape[1:])
        result = jax.ShapeDtypeStruct(shape, self.dtype or operands[0].dtype)
        options = dict(self.options)
        return cpu_calls.call(
            self.kernel,
            result,
            *operands,
            channels_last=self.channels_last,
            in_place=self.in_place,
            **options,
        )


@functools.cache
def _partitioned(call: RowsCall, ranks: tuple[int, ...]) -> Callable[..., jax.Array]:
    *operands_have_rows, result_has_rows = call.has_rows
    function = custom_partitioning(lambda *arrays: call.run(*arrays[:-1]))

    def partition(mesh: Any, arrays: Any, result: Any) -> Any:
        if call.elementwise:
            sharding, replicated = arrays[0].sharding, NamedSharding(mesh, PartitionSpec())
            return mesh, shard_of_elements, sharding, (sharding, replicated)
        axis = _rows_axis(mesh, call.has_rows, (*arrays[:-1], result))
        replicated, by_row = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), (axis,)))

        def shard(*arrays: jax.Array) -> jax.Array:
            operands = arrays[:-1]
            if result_has_rows:
                rows = next(
                    a.shape[0] for a, r in zip(operands, operands_have_rows, strict=True) if r
                )
                return call.run(*operands, rows=rows)
            out = call.run(*operands)
            return out if axis is None else call.combine(out, axis)

        placed = [by_row if rows else replicated for rows in call.has_rows]
        return mesh, shard, placed[-1], (*placed[:-1], replicated)

    def shard_of_elements(x: jax.Array, _: jax.Array) -> jax.Array:
        return dataclasses.replace(call, shape=x.shape).run(x)

    terms = [
        " ".join(["n" if rows and i == 0 else f"a{number}_{i}" for i in range(rank)])
        for number, (rows, rank) in enumerate(
            zip(call.has_rows, (*ranks, len(call.shape)), strict=True)
        )
    ]
    result_terms = terms[0] if call.elementwise else terms[-1]
    rule = f"{', '.join(terms[:-1])}, key -> {result_terms}"
    function.def_partition(partition=partition, sharding_rule=rule)
    return function


def _rows_axis(mesh: Any, has_rows: tuple[bool, ...], arrays: tuple[Any, ...]) -> Any:
    """The mesh axes over which the rows are split; None where they are not, or not evenly."""
    for rows, array in zip(has_rows, arrays, strict=True):
        spec = array.sharding.spec
        if rows and len(spec) and spec[0] is not None:
            names = spec[0] if isinstance(spec[0], tuple) else (spec[0],)
            parts = math.prod(mesh.shape[name] for name in names)
            return spec[0] if array.shape[0] % parts == 0 else None
    return None

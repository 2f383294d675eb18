"""Prints how a run's parameters are split over a mesh, and the memory they take on each chip."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsr.interop.annotations import PyTree


@dataclass(frozen=True)
class ShardingRow:
    """Parameters that differ only in the numbers in their names."""

    name: str
    """Name, with `*` in the place of numbers."""
    count: int
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    """For each axis of the array, the mesh axis that splits it; empty for an axis that is not
    split."""
    chip_bytes: int
    """Bytes of all these parameters on one chip."""


def sharding_rows(arrays: Mapping[str, Any], shardings: Mapping[str, Any]) -> list[ShardingRow]:
    """Returns a row for each kind of parameter.

    Args:
      arrays: shapes and dtypes by name.
      shardings: the sharding of each.
    """
    groups: dict[tuple, list[int]] = {}
    for name, array in arrays.items():
        spec = tuple(shardings[name].spec)
        axes = tuple(str(a or "") for a in spec) + ("",) * (len(array.shape) - len(spec))
        key = re.sub(r"\d+", "*", name), tuple(array.shape), axes
        groups.setdefault(key, []).append(chip_bytes(array, shardings[name]))
    return [
        ShardingRow(name, len(sizes), shape, axes, sum(sizes))
        for (name, shape, axes), sizes in groups.items()
    ]


def chip_bytes(array: Any, sharding: Any) -> int:
    """Bytes of an array on one chip, without padding."""
    shape = sharding.shard_shape(tuple(array.shape))
    return int(np.prod(shape)) * np.dtype(array.dtype).itemsize


def show_sharding(state: PyTree, shardings: PyTree) -> None:
    """Prints the table, and the memory of the whole state on a chip.

    Args:
      state: a `TrainState` of shapes and dtypes.
      shardings: its shardings.
    """
    import jax
    from rich.table import Table

    from jaxsr.interop.plain_console import PlainConsole

    table = Table(title="parameters on the mesh")
    for title in ("name", "count", "shape", "split over", "MB a chip"):
        text = title in ("name", "split over")
        table.add_column(title, justify="left" if text else "right", overflow="fold")
    for row in sharding_rows(state.params, shardings.params):
        split = ", ".join(axis or "·" for axis in row.axes) if any(row.axes) else "whole"
        shape = "×".join(map(str, row.shape)) or "()"
        table.add_row(row.name, str(row.count), shape, split, f"{row.chip_bytes / 1e6:,.2f}")
    console = PlainConsole()
    console.print(table)
    totals = {
        name: sum(jax.tree.leaves(jax.tree.map(chip_bytes, getattr(state, name), where)))
        for name in ("params", "buffers", "optimizers", "ema")
        if jax.tree.leaves(where := getattr(shardings, name))
    }
    listed = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in totals.items())
    console.print(f"state on a chip: {listed}; {sum(totals.values()) / 1e6:,.1f} MB in all")

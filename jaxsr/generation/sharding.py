"""Tensor parallelism: which axis of each weight and of the cache is split over the devices.

Projections into heads and into the MLP are split by their outputs, those out of them by their
inputs, so that each block needs two all-reduces (Shoeybi et al. 2019, arXiv:1909.08053). Whatever
does not divide evenly stays whole on every device.

Where there are more devices than heads of keys, several share a head: each keeps its cache, and
computes some of the query heads that look it up.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsr.interop.mesh import first_devices, replicated
from jaxsr.interop.sharding_rules import Rules, tensor_axis

AXIS = "tensor"
_HEADS = "kv_heads"
_ALL = (_HEADS, AXIS)

__all__ = [
    "AXIS",
    "grouped_by_heads",
    "head_sharding",
    "replicated",
    "tensor_mesh",
    "weight_shardings",
]


def tensor_mesh(devices: int) -> Mesh:
    """A mesh of the first `devices` devices along the axis `tensor`.

    Raises:
      DeviceError: the machine has fewer.
    """
    return Mesh(np.array(first_devices(devices)), (AXIS,))


def grouped_by_heads(mesh: Mesh, heads: int) -> Mesh:
    """The devices along two axes, of which the first divides the heads of keys and values.

    Args:
      mesh: devices along `tensor`.
      heads: of keys and values.
    """
    groups = math.gcd(heads, mesh.size)
    return Mesh(mesh.devices.reshape(groups, -1), _ALL)


def weight_shardings(
    weights: Mapping[str, Any],
    rules: Rules,
    heads: Mapping[str, int],
    mesh: Mesh,
    *,
    turned: Collection[str] = (),
) -> dict[str, NamedSharding]:
    """Where each parameter and buffer lives, by torch name.

    Args:
      weights: arrays, or their shapes.
      rules: which are split, see `jaxsr.interop.sharding_rules`.
      heads: of the layers, by the last part of their names, that are not split within a head.
      mesh: of `grouped_by_heads`.
      turned: names of those that are transposed.
    """
    shardings = {}
    for name, array in weights.items():
        shape = np.shape(array)
        axis = tensor_axis(name, len(shape), rules)
        spec: list[tuple[str, ...] | None] = [None] * len(shape)
        if axis is not None:
            axis = len(shape) - 1 - axis if name in turned else axis
            axes = _axes_of(heads.get(name.split(".")[-2:][0], 0) or shape[axis], mesh)
            if axes and shape[axis] % math.prod(mesh.shape[name] for name in axes) == 0:
                spec[axis] = axes
        shardings[name] = NamedSharding(mesh, PartitionSpec(*spec))
    return shardings


def head_sharding(heads: int, mesh: Mesh) -> NamedSharding:
    """Sharding of keys and values, heads in axis 1: split by heads where they divide."""
    return NamedSharding(mesh, PartitionSpec(None, _axes_of(heads, mesh)))


def _axes_of(units: int, mesh: Mesh) -> tuple[str, ...] | None:
    """The axes of the mesh that this many units, such as heads, are split over."""
    if units % mesh.size == 0:
        return _ALL
    return (_HEADS,) if units % mesh.shape[_HEADS] == 0 else None

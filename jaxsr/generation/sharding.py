"""Tensor parallelism: which axis of each weight and of the cache is split over the devices.

Projections into heads and into the MLP are split by their outputs, those out of them by their
inputs, so that each block needs two all-reduces (Shoeybi et al. 2019, arXiv:1909.08053). Whatever
does not divide evenly stays whole on every device.

Where there are more devices than heads of keys, several share a head: each keeps its cache, and
computes some of the query heads that look it up.
"""

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsr.interop.mesh import first_devices, replicated
from jaxsr.interop.sharding_rules import Rules, tensor_axis
from jaxsr.models.llama.config import LlamaConfig

if TYPE_CHECKING:
    from jaxsr.models.hugging_face.network import LibraryConfig

AXIS = "tensor"
_HEADS = "kv_heads"
_ALL = (_HEADS, AXIS)

__all__ = [
    "AXIS",
    "grouped_by_heads",
    "head_sharding",
    "replicated",
    "ruled_shardings",
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
    config: LlamaConfig,
    mesh: Mesh,
    *,
    turned: Collection[str] = (),
) -> dict[str, NamedSharding]:
    """Where each parameter and buffer lives, by torch name; those in `turned` are transposed."""
    shardings = {}
    for name, array in weights.items():
        shape = np.shape(array)
        flip = slice(None, None, -1 if name in turned else 1)
        spec = _spec(name, shape[flip], config, mesh)
        axes = (*spec, *[None] * (len(shape) - len(spec)))
        shardings[name] = NamedSharding(mesh, PartitionSpec(*axes[flip]))
    return shardings


def ruled_shardings(
    weights: Mapping[str, Any],
    rules: Rules,
    config: "LibraryConfig",
    mesh: Mesh,
    *,
    turned: Collection[str] = (),
) -> dict[str, NamedSharding]:
    """`weight_shardings` by rules of names; see `jaxsr.interop.sharding_rules`."""
    shardings = {}
    for name, array in weights.items():
        shape = np.shape(array)
        axis = tensor_axis(name, len(shape), rules)
        spec: list[tuple[str, ...] | None] = [None] * len(shape)
        if axis is not None:
            axis = len(shape) - 1 - axis if name in turned else axis
            kind = name.split(".")[-2:][0]
            # A key's features, split, would have to be gathered from the cache for every token.
            heads = config.num_key_value_heads if kind in ("k_proj", "v_proj") else 0
            axes = _axes_of(heads or shape[axis], mesh)
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


def _spec(name: str, shape: tuple[int, ...], config: LlamaConfig, mesh: Mesh) -> PartitionSpec:
    module, _, leaf = name.rpartition(".")
    kind = module.rpartition(".")[2]
    # Heads are never cut in two: a split head would need its halves together for its rotation.
    units = {
        "q_proj": config.num_attention_heads,
        "k_proj": config.num_key_value_heads,
        "v_proj": config.num_key_value_heads,
        "o_proj": config.num_attention_heads,
    }.get(kind, mesh.size)
    axes = _axes_of(units, mesh)
    outputs = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head", "embed_tokens")
    if axes is None:
        return PartitionSpec()
    if kind in (*outputs, "rows"):  # the rows of an embedding in blocks
        axis = 0
    elif kind in ("o_proj", "down_proj") and leaf != "bias":
        axis = 1
    else:
        return PartitionSpec()
    if axis >= len(shape) or shape[axis] % math.prod(mesh.shape[name] for name in axes):
        return PartitionSpec()
    return PartitionSpec(*[None] * axis, axes)

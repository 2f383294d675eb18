# pyright: reportUnknownMemberType=false
"""Choosing a platform, building the device mesh, and placing arrays on it.

A mesh has three axes. Batches are split over `data` and `fsdp`. Parameters and optimiser state are
replicated over `data`; they are split over `fsdp` by size and over `tensor` by rules
(`jaxsr.interop.sharding_rules`), where these are above 1.
"""

import contextlib
import importlib.util
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import DeviceError, InputError
from jaxsr.interop.install import install_extra
from jaxsr.interop.mesh_shape import AXES, DATA_AXES, MeshShape
from jaxsr.interop.plugin_start import has_tpu, quiet_libtpu, skip_library_check
from jaxsr.interop.sharding_rules import Rules, tensor_axis

PLATFORMS = ("auto", "tpu", "cuda", "cpu")
# Below this a split costs more in latency than it saves in memory.
_SMALLEST_SPLIT = 1024


def select_platform(platform: str, *, simulated_devices: int = 1) -> str:
    """Fixes the platform JAX computes on; called once by a command, before any array exists.

    Args:
      platform: `auto` takes TPU, then CUDA, then CPU, whichever the machine has first.
      simulated_devices: CPU devices to simulate where the platform turns out to be the CPU.

    Returns:
      `tpu`, `cuda` or `cpu`.

    Raises:
      ValueError: the name is unknown.
      DeviceError: the machine has no such device, or JAX was built without it.
    """
    if platform not in PLATFORMS:
        raise InputError(f"platform must be one of {', '.join(PLATFORMS)}, got {platform!r}")
    if platform != "auto":
        jax.config.update("jax_platforms", platform)
    if simulated_devices > 1:
        # JAX refuses the change once its backends exist, as in a notebook; `make_mesh` then says
        # how many devices there are.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", simulated_devices)
    skip_library_check()
    # Without a TPU libtpu complains; with one, its messages may matter.
    silent = importlib.util.find_spec("libtpu") is not None and not has_tpu()
    try:
        with quiet_libtpu() if silent else contextlib.nullcontext():
            backend = jax.default_backend()
    # JAX asserts where it knows the platform but finds no device of it.
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).strip() or "JAX finds no such device.").splitlines()[0]
        if platform != "auto":
            way_out = "Use --platform auto or cpu, or install the extra for it: "
            way_out += install_extra(platform)
        elif chosen := os.environ.get("JAX_PLATFORMS"):
            way_out = f"JAX_PLATFORMS={chosen} asks for it: unset that, or use --platform cpu"
        else:
            way_out = "Use --platform cpu"
        raise DeviceError(
            f"platform {platform!r} is not usable here: {reason} {way_out}"
        ) from error
    return platform_name(backend)


def platform_name(backend: str) -> str:
    """The platform's name in jaxsr's options: JAX's, but `cuda` for `gpu`."""
    return "cuda" if backend == "gpu" else backend


def make_mesh(shape: MeshShape | int, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over the first `shape.devices` devices.

    Args:
      shape: sizes of the axes; a number means that many along `data`.
      devices: devices to use, those of a compile-only topology for example.
        Default: `jax.devices()`, over every process.

    Raises:
      DeviceError: fewer devices exist than the mesh needs.
    """
    shape = MeshShape(data=shape) if isinstance(shape, int) else shape
    devices = first_devices(shape.devices, devices)
    return Mesh(np.array(devices).reshape(shape.data, shape.fsdp, shape.tensor), AXES)


def first_devices(count: int, devices: Sequence[Any] | None = None) -> list[Any]:
    """The first `count` devices.

    Args:
      count: at least 1.
      devices: to take them from. Default: `jax.devices()`, over every process.

    Raises:
      DeviceError: fewer exist.
    """
    devices = list(cast(Sequence[Any], jax.devices()) if devices is None else devices)
    if len(devices) < count:
        platform = devices[0].platform
        raise DeviceError(
            f"mesh of {count} devices asked for, but this machine has {len(devices)} "
            f"{platform} device(s); use --mesh {len(devices)}"
            + (", or --platform cpu to simulate them" if platform != "cpu" else "")
        )
    return devices[:count]


def replicated(mesh: Mesh) -> NamedSharding:
    """The same array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The leading axis split over every device, in device order."""
    return NamedSharding(mesh, PartitionSpec(DATA_AXES))


def model_devices(mesh: Mesh) -> int:
    """Devices that share one replica of the parameters."""
    return mesh.shape["fsdp"] * mesh.shape.get("tensor", 1)


def split_activations(mesh: Mesh, batch: PyTree) -> AbstractContextManager[None]:
    """Around the tracing of a module: its activations are split as the batch's rows are.

    Stated only where the mesh has a `tensor` axis: without one XLA splits them so by itself.

    Args:
      mesh: where the program will run.
      batch: arrays whose leading axis holds the rows.
    """
    if mesh.shape.get("tensor", 1) == 1:
        return contextlib.nullcontext()
    # Here, for it needs torch, which much else in this file does not.
    from jaxsr.interop._core.activation_sharding import split_rows

    rows = [leaf.shape[0] for leaf in jax.tree.leaves(batch) if leaf.ndim]
    return split_rows(mesh, DATA_AXES, rows[0]) if rows else contextlib.nullcontext()


def parameter_sharding(leaf: object, mesh: Mesh, *, tensor: int | None = None) -> NamedSharding:
    """Where one leaf of the training state lives.

    Its axis `tensor` is split over the mesh's, if it divides; of the others, the longest that
    divides is split over `fsdp`. Small leaves are replicated.

    Args:
      leaf: anything with a shape.
      mesh: where.
      tensor: axis of the leaf, by the rules.
    """
    shape = tuple(getattr(leaf, "shape", ()))
    spec: list[str | None] = [None] * len(shape)
    if int(np.prod(shape)) < _SMALLEST_SPLIT:
        return replicated(mesh)
    parts = mesh.shape.get("tensor", 1)
    if parts > 1 and tensor is not None and shape[tensor] % parts == 0:
        spec[tensor] = "tensor"
    parts = mesh.shape["fsdp"]
    if parts > 1:
        for axis in sorted(range(len(shape)), key=lambda a: -shape[a]):
            if spec[axis] is None and shape[axis] % parts == 0:
                spec[axis] = "fsdp"
                break
    while spec and spec[-1] is None:
        spec.pop()
    return NamedSharding(mesh, PartitionSpec(*spec))


def tree_shardings(tree: PyTree, mesh: Mesh, rules: Rules | None = None) -> PyTree:
    """`parameter_sharding` of every leaf.

    Args:
      tree: leaves in dictionaries by torch name, however deep.
      mesh: where.
      rules: how weights are split over `tensor`, by pattern of their names.
    """

    def one(path: Sequence[object], leaf: object) -> NamedSharding:
        name = str(getattr(path[-1], "key", "")) if path else ""
        axis = tensor_axis(name, len(getattr(leaf, "shape", ())), rules or {})
        return parameter_sharding(leaf, mesh, tensor=axis)

    return cast(Any, jax.tree_util).tree_map_with_path(one, tree)


def place(tree: PyTree, shardings: PyTree) -> PyTree:
    """Puts host arrays, equal on every process, where `shardings` says.

    Works across processes, where `jax.device_put` onto another host's devices does not.
    """

    def one(leaf: ArrayLike, sharding: NamedSharding) -> jax.Array:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.device_put(leaf, sharding)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(one, tree, shardings)


def place_batch(batch: PyTree, mesh: Mesh) -> PyTree:
    """Joins each process's rows into one global array per leaf, split over the mesh.

    Args:
      batch: arrays whose leading axis holds this process's share of the batch.
    """
    sharding = batch_sharding(mesh)
    return jax.tree.map(partial(jax.make_array_from_process_local_data, sharding), batch)

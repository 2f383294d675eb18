"""Devices to compile for, by name, without them: `v5e:2x4`, `h100:8`.

libtpu, which is on PyPI, describes and compiles for TPUs (`chips.py`); JAX's CUDA plugin does for
NVIDIA GPUs (`gpus.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxsr.interop.aot.chips import CHIPS, chip_of, tpu_devices
from jaxsr.interop.aot.gpus import GPUS, Gpu, gpu_devices, passes, peak_flops, usable_bytes
from jaxsr.interop.errors import InputError

# Passes of bfloat16 products that the TPU makes for one float32 product, by JAX's precision.
_TPU_PASSES = {"f32 highest": 6.0, "f32 high": 3.0}


@dataclass(frozen=True, kw_only=True)
class Device:
    """One JAX device: a GPU, a TPU chip, or on tpu7x one of a chip's two cores."""

    platform: str
    """`tpu` or `cuda`."""
    kind: str
    """As JAX names it."""
    memory_bytes: int
    """That a program may use."""
    memory_bytes_per_s: float
    """Memory bandwidth."""
    flops_per_s: float
    """Peak of bfloat16 products, a multiplication and an addition counting as two."""
    link_bytes_per_s: float
    """Bandwidth to other devices, both directions of all links together."""
    passes: Mapping[str, float] = field(default_factory=dict[str, float])
    """Times that a product takes as long as one of bfloat16, by its type and precision; else 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Topology:
    """Devices to compile for."""

    name: str
    """`v5e:2x4` and the like."""
    devices: Sequence[Any]
    """JAX's compile-only devices, for a mesh."""
    device: Device
    """Abilities of each of them."""

    @property
    def chips(self) -> int:
        """TPU chips, or GPUs."""
        if self.device.platform != "tpu":
            return len(self.devices)
        return len({tuple(device.coords) for device in self.devices})


def load_topology(name: str) -> Topology:
    """The topology of this name.

    Raises:
      InputError: the device or size does not exist, or its compiler is not installed.
    """
    generation = name.partition(":")[0]
    if ":" in name and generation in GPUS:
        gpu, devices, hosts = gpu_devices(name)
        return Topology(name=name, devices=devices, device=_describe_gpu(gpu, hosts))
    if ":" in name and generation in CHIPS:
        devices = tpu_devices(name)
        return Topology(name=name, devices=devices, device=_describe_tpu(devices[0]))
    raise InputError(
        f"no topology {name!r}; write a TPU as CHIP:SIZE ({', '.join(CHIPS)}; v5e:2x4), or a GPU "
        f"as NAME:COUNT or NAME:HOSTSxCOUNT ({', '.join(GPUS)}; h100:8). The tables are CHIPS in "
        "interop/aot/chips.py and GPUS in interop/aot/gpus.py"
    )


def _describe_gpu(gpu: Gpu, hosts: int) -> Device:
    # In a ring over all GPUs the slowest link counts.
    link_gbps = gpu.link_gbps if hosts == 1 else min(gpu.link_gbps, gpu.network_gbps)
    return Device(
        platform="cuda",
        kind=gpu.kind,
        memory_bytes=usable_bytes(gpu),
        memory_bytes_per_s=gpu.memory_gbps * 1e9,
        flops_per_s=peak_flops(gpu),
        link_bytes_per_s=link_gbps * 1e9,
        passes=passes(gpu),
    )


def _describe_tpu(device: Any) -> Device:
    from jax.experimental.pallas import tpu as pallas_tpu

    chip = chip_of(device.device_kind)
    if chip is None:
        raise InputError(
            f"no figures for {device.device_kind!r}; add it to CHIPS in interop/aot/chips.py"
        )
    version = pallas_tpu.ChipVersion[chip.pallas]
    core = pallas_tpu.get_tpu_info_for_chip(version, device.num_cores)
    return Device(
        platform="tpu",
        kind=device.device_kind,
        memory_bytes=int(chip.hbm_gib * 2**30),
        memory_bytes_per_s=core.mem_bw_bytes_per_second * device.num_cores,
        flops_per_s=core.bf16_ops_per_second * device.num_cores,
        link_bytes_per_s=chip.link_gbps * 1e9 / 8,
        passes=_TPU_PASSES,
    )

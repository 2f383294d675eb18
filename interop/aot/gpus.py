# pyright: reportUnknownMemberType=false
"""NVIDIA GPUs by name, without a GPU.

`h100:8` is one host with eight GPUs, `h100:2x8` two such hosts. XLA compiles for a description of
the device (`GpuTargetConfigProto` of its stream_executor); the descriptions here are written from
the table `GPUS`.
"""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxsr.interop.errors import InputError
from jaxsr.interop.fields import whole_number
from jaxsr.interop.install import install_extra
from jaxsr.interop.plugin_start import skip_library_check

_TERA = 1e12
_MEMORY_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_MOST_GPUS = 4096


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """An NVIDIA GPU. To add one: an entry in `GPUS`.

    Memory, cores, caches and clocks are those of XLA's descriptions where it has the GPU, else of
    NVIDIA's data sheets and architecture papers; so are the peak rates (dense, without sparsity).
    """

    name: str
    """As topologies name it."""
    kind: str
    """As `jax.Device.device_kind` names it."""
    capability: tuple[int, int]
    """CUDA compute capability."""
    cores: int
    """Streaming multiprocessors."""
    float32_units: int
    """Units of each core."""
    clock_ghz: float
    memory_bytes: int
    memory_gbps: float
    """Memory bandwidth in gigabytes per second."""
    l2_bytes: int
    core_shared_bytes: int
    """Shared memory of a core."""
    core_threads: int
    bfloat16_tflops: float
    """Peak of products; 0 where the GPU has no such units, and float32 units compute them."""
    tf32_tflops: float
    """Peak of float32 products at JAX's default precision; 0 likewise."""
    float32_tflops: float
    link_gbps: float
    """To the GPUs of a host, both directions: NVLink, otherwise PCI Express."""
    network_gbps: float
    """Rate of one GPU to other hosts, both directions, as NVIDIA's own servers are built."""
    links: int = 0
    """NVLinks."""


_A100 = Gpu(
    name="a100",
    kind="NVIDIA A100-SXM4-80GB",
    capability=(8, 0),
    cores=108,
    float32_units=64,
    clock_ghz=1.41,
    memory_bytes=85_100_068_864,
    memory_gbps=2039.04,
    l2_bytes=41_943_040,
    core_shared_bytes=167_936,
    core_threads=2048,
    bfloat16_tflops=312,
    tf32_tflops=156,
    float32_tflops=19.5,
    link_gbps=600,
    network_gbps=50,
    links=12,
)
_H100 = Gpu(
    name="h100",
    kind="NVIDIA H100 80GB HBM3",
    capability=(9, 0),
    cores=132,
    float32_units=128,
    clock_ghz=1.98,
    memory_bytes=84_942_979_072,
    memory_gbps=3352.32,
    l2_bytes=52_428_800,
    core_shared_bytes=233_472,
    core_threads=2048,
    bfloat16_tflops=989.4,
    tf32_tflops=494.7,
    float32_tflops=66.9,
    link_gbps=900,
    network_gbps=100,
    links=18,
)
_ada = partial(
    Gpu,
    capability=(8, 9),
    float32_units=128,
    core_shared_bytes=102_400,
    core_threads=1536,
    link_gbps=64,
)

GPUS = {
    gpu.name: gpu
    for gpu in (
        _A100,
        replace(
            _A100,
            name="a100-40",
            kind="NVIDIA A100-SXM4-40GB",
            memory_bytes=42_331_013_120,
            memory_gbps=1555.2,
        ),
        _H100,
        replace(
            _H100,
            name="h200",
            kind="NVIDIA H200",
            memory_bytes=151_397_597_184,
            memory_gbps=4800,
        ),
        replace(
            _H100,
            name="b200",
            kind="NVIDIA B200",
            capability=(10, 0),
            cores=148,
            clock_ghz=1.965,
            memory_bytes=191_514_411_008,
            memory_gbps=7672.32,
            l2_bytes=132_644_864,
            bfloat16_tflops=2250,
            tf32_tflops=1125,
            float32_tflops=74.4,
            link_gbps=1800,
        ),
        _ada(
            name="l4",
            kind="NVIDIA L4",
            cores=58,
            clock_ghz=2.04,
            memory_bytes=23_798_087_680,
            memory_gbps=300,
            l2_bytes=50_331_648,
            bfloat16_tflops=121,
            tf32_tflops=60,
            float32_tflops=30.3,
            network_gbps=25,
        ),
        _ada(
            name="l40s",
            kind="NVIDIA L40S",
            cores=142,
            clock_ghz=2.52,
            memory_bytes=47_810_936_832,
            memory_gbps=864,
            l2_bytes=100_663_296,
            bfloat16_tflops=362,
            tf32_tflops=183,
            float32_tflops=91.6,
            network_gbps=50,
        ),
        _ada(
            name="rtx4090",
            kind="NVIDIA GeForce RTX 4090",
            cores=128,
            clock_ghz=2.52,
            memory_bytes=25_393_692_672,
            memory_gbps=1008,
            l2_bytes=75_497_472,
            bfloat16_tflops=165.2,
            tf32_tflops=82.6,
            float32_tflops=82.6,
            network_gbps=25,
        ),
        Gpu(
            name="t4",
            kind="Tesla T4",
            capability=(7, 5),
            cores=40,
            float32_units=64,
            clock_ghz=1.59,
            memory_bytes=15_637_086_208,
            memory_gbps=320,
            l2_bytes=4_194_304,
            core_shared_bytes=65_536,
            core_threads=1024,
            bfloat16_tflops=0,
            tf32_tflops=0,
            float32_tflops=8.1,
            link_gbps=32,
            network_gbps=12.5,
        ),
    )
}
"""Every GPU that jaxsr compiles for without it, by name."""


def gpu_devices(name: str) -> tuple[Gpu, Sequence[Any], int]:
    """The GPU of `h100:8` or `h100:2x8`, JAX's compile-only devices, and the hosts.

    Raises:
      InputError: the size is not valid, or JAX's CUDA plugin is missing or of another version.
    """
    gpu = GPUS[name.partition(":")[0]]
    sides = [whole_number(side) or 0 for side in name.partition(":")[2].split("x")]
    if len(sides) > 2 or not all(sides):
        raise InputError(
            f"no GPU topology {name!r}; write {gpu.name}:8 for 8 GPUs, or {gpu.name}:2x8 for two "
            "hosts with 8 each"
        )
    hosts, per_host = [1] * (2 - len(sides)) + sides
    if hosts * per_host > _MOST_GPUS:
        raise InputError(f"topology {name} has {hosts * per_host} GPUs; choose up to {_MOST_GPUS}")
    from jax.experimental import topologies

    skip_library_check()
    try:
        description: Any = topologies.get_topology_desc(
            name, "cuda", topology=f"1x{hosts}x{per_host}", target_config=target_config(gpu)
        )
    except Exception as error:
        raise InputError(_why_no_topology(name, error)) from error
    return gpu, description.devices, hosts


def _why_no_topology(name: str, error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    install = install_extra("aot-gpu")
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        return f"compiling for {name} needs JAX's CUDA plugin, which is not installed; {install}"
    if isinstance(error, NotImplementedError):
        return (
            f"compiling for {name} needs JAX's CUDA plugin, which did not load when JAX started; "
            "call load_topology before JAX computes, or set JAX_PLATFORMS=cpu"
        )
    return (
        f"JAX's CUDA plugin cannot compile for {name} here ({text}); its version must be jaxlib's: "
        f"{install}"
    )


def usable_bytes(gpu: Gpu) -> int:
    """Memory that JAX allocates: XLA_PYTHON_CLIENT_MEM_FRACTION of it, 0.75 by default."""
    value = os.environ.get(_MEMORY_FRACTION, "0.75")
    try:
        fraction = float(value)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction <= 1:
        raise InputError(f"{_MEMORY_FRACTION} must lie in (0, 1], got {value!r}")
    return int(fraction * gpu.memory_bytes)


def target_config(gpu: Gpu) -> str:
    """The description that XLA compiles for, a GpuTargetConfigProto in text form."""
    major, minor = gpu.capability
    accelerated = "ACCELERATED_FEATURES" if major in (9, 10) else "NONE"
    return f"""gpu_device_info {{
  name: "{gpu.kind}" device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{
    major: {major} minor: {minor} feature_extension: {accelerated}
  }}
  core_count: {gpu.cores} fpus_per_core: {gpu.float32_units} clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {gpu.memory_bytes} memory_bandwidth: {int(gpu.memory_gbps * 1e9)}
  l2_cache_size: {gpu.l2_bytes} device_address_bits: 64 ecc_enabled: true
  shared_memory_per_core: {gpu.core_shared_bytes} shared_memory_per_block: 49152
  shared_memory_per_block_optin: {gpu.core_shared_bytes - (1024 if major >= 8 else 0)}
  threads_per_core_limit: {gpu.core_threads} threads_per_block_limit: 1024 threads_per_warp: 32
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  pcie_bandwidth: 34359738368 device_interconnect_info {{ active_links: {gpu.links} }}
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{gpu.kind}"
"""


def passes(gpu: Gpu) -> dict[str, float]:
    """How many times a bfloat16 product's time one of another type takes, by type and precision."""
    peak = peak_flops(gpu)
    full = peak / (gpu.float32_tflops * _TERA)
    return {
        "f32": peak / (gpu.tf32_tflops * _TERA) if gpu.tf32_tflops else full,
        "f32 high": full,
        "f32 highest": full,
    }


def peak_flops(gpu: Gpu) -> float:
    """Peak rate of bfloat16 products, an addition and a multiplication counting as two."""
    return (gpu.bfloat16_tflops or gpu.float32_tflops) * _TERA

"""TPU topologies by name, and what one of their devices can do, on a machine that has no TPU.

`v5e:2x4` is eight v5e chips in a 2 × 4 grid. libtpu, which is on PyPI, describes and compiles for
it. Peak rates are those that JAX itself uses for its Pallas kernels; usable memory is what the
compiler allows a program; link rates are Google Cloud's published ones.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxsr.interop.errors import InputError

GENERATIONS = {
    "v4": "2x2x1 … 4x4x4",
    "v5e": "1x1 … 16x16",
    "v5p": "1x1x1 … 4x4x4",
    "v6e": "1x1 … 16x16",
    "tpu7x": "1x1x1, 2x2x1, 2x2x2",
}
"""Chips, and the sizes that libtpu accepts."""

_MOST_CHIPS = 256


@dataclass(frozen=True, kw_only=True)
class Device:
    """One JAX device of a TPU: a chip, or on tpu7x one of a chip's two cores."""

    kind: str
    """As JAX names it."""
    hbm_bytes: int
    """Memory that a program may use; the compiler refuses one that needs more."""
    hbm_bytes_per_s: float
    """Memory bandwidth."""
    flops_per_s: float
    """Peak of bfloat16 products, a multiplication and an addition counting as two."""
    link_bytes_per_s: float
    """Bandwidth to other chips, both directions of all links together."""


def _gib(value: float) -> int:
    return int(value * 2**30)


# Memory: the limit in libtpu 0.0.52's own refusal ("exceeds available HBM (15.75G)"). Links: the
# system architecture pages of Google Cloud, in Gbit/s per chip.
_LIMITS = {
    "TPU v4": (_gib(30.75), 2400),
    "TPU v5 lite": (_gib(15.75), 1600),
    "TPU v5": (_gib(95.73), 4800),
    "TPU v6 lite": (_gib(31.24), 3584),
    "TPU7x": (_gib(94.74), 9600 / 2),  # a core has half of its chip's links
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Topology:
    """Devices to compile for."""

    name: str
    """`v5e:2x4` and the like."""
    devices: Sequence[Any]
    """JAX's compile-only devices, for a mesh."""
    device: Device
    """What each of them can do."""

    @property
    def chips(self) -> int:
        return len({tuple(device.coords) for device in self.devices})


def load_topology(name: str) -> Topology:
    """The topology of this name.

    Raises:
      ValueError: libtpu is not installed, or knows no such topology.
    """
    generation, colon, size = name.partition(":")
    sides = size.split("x")
    known = "; ".join(f"{chip}:{sizes}" for chip, sizes in GENERATIONS.items())
    if generation not in GENERATIONS or not colon or not all(side.isdigit() for side in sides):
        raise InputError(f"no TPU topology {name!r}; write CHIP:SIZE, where there are {known}")
    chips = 1
    for side in sides:
        chips *= int(side)
    if not 1 <= chips <= _MOST_CHIPS:
        raise InputError(f"topology {name} has {chips} chips; choose 1 to {_MOST_CHIPS}")
    from jax.experimental import topologies

    # A v4 chip's two cores act as one device on Cloud TPUs; libtpu's own default splits them.
    options = {"chip_config_name": "megacore"} if generation == "v4" else {}
    with quiet_libtpu():
        try:
            found = topologies.get_topology_desc(name, "tpu", **options)
        except Exception as error:
            raise InputError(_why_no_topology(name, known, error)) from error
    return Topology(name=name, devices=found.devices, device=_describe(found.devices[0]))


def _why_no_topology(name: str, known: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if importlib.util.find_spec("libtpu") is None:
        return f"compiling for {name} needs libtpu, which is not installed; pip install -e '.[aot]'"
    if "libtpu" in text.lower() and "layout" not in text:
        return (
            f"compiling for {name} needs libtpu, which does not load here ({text[:200]}); "
            "pip install -e '.[aot]'"
        )
    return f"libtpu has no topology {name!r} ({text[:200]}); there are {known}"


def _describe(device: Any) -> Device:
    from jax.experimental.pallas import tpu as pallas_tpu

    version = pallas_tpu.ChipVersion
    chip = {
        "TPU v4": version.TPU_V4,
        "TPU v5 lite": version.TPU_V5E,
        "TPU v5": version.TPU_V5P,
        "TPU v6 lite": version.TPU_V6E,
        "TPU7x": version.TPU_7X,
    }[device.device_kind]
    core = pallas_tpu.get_tpu_info_for_chip(chip, device.num_cores)
    hbm_bytes, link_gbits = _LIMITS[device.device_kind]
    return Device(
        kind=device.device_kind,
        hbm_bytes=hbm_bytes,
        hbm_bytes_per_s=core.mem_bw_bytes_per_second * device.num_cores,
        flops_per_s=core.bf16_ops_per_second * device.num_cores,
        link_bytes_per_s=link_gbits * 1e9 / 8,
    )


@contextlib.contextmanager
def quiet_libtpu() -> Iterator[None]:
    """Keeps libtpu from asking for a Cloud machine's description, and from saying it found none.

    Several processes may compile at once. The environment is libtpu's only interface; it reads it
    when it is first loaded.
    """
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_LIBRARY_PATH", _library() or "")
    sys.stderr.flush()
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)


def _library() -> str | None:
    import importlib.util

    found = importlib.util.find_spec("libtpu")
    if found is None or not found.submodule_search_locations:
        return None
    return os.path.join(found.submodule_search_locations[0], "libtpu.so")

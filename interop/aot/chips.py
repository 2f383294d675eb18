# pyright: reportUnknownMemberType=false
"""TPU chips and topologies by name, without a TPU.

`v5e:2x4` is eight v5e chips in a 2 × 4 grid. libtpu, which is on PyPI, describes and compiles for
it. Peak rates are those that JAX uses for its Pallas kernels.
"""

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxsr.interop.errors import InputError
from jaxsr.interop.fields import whole_number
from jaxsr.interop.install import install_extra
from jaxsr.interop.plugin_start import quiet_libtpu


@dataclass(frozen=True)
class Chip:
    """A TPU generation. To add one: a line in `CHIPS`, and its folds in `folding/table.py`."""

    name: str
    """As topologies and `folding/table.py` name it."""
    kinds: tuple[str, ...]
    """As `jax.Device.device_kind` names it."""
    sizes: str
    """Topologies that libtpu accepts."""
    hbm_gib: float
    """Memory a device may use: the limit in libtpu 0.0.52's own refusal."""
    link_gbps: float
    """Links of a device, both directions together: Google Cloud's system architecture pages."""

    @property
    def pallas(self) -> str:
        """Member of Pallas's `ChipVersion`, which holds the peak rates."""
        return f"TPU_{self.name.removeprefix('tpu').upper()}"


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", ("TPU v4",), "2x2x1 … 4x4x4", hbm_gib=30.75, link_gbps=2400),
        Chip("v5e", ("TPU v5 lite", "TPU v5e"), "1x1 … 16x16", hbm_gib=15.75, link_gbps=1600),
        Chip("v5p", ("TPU v5", "TPU v5p"), "1x1x1 … 4x4x4", hbm_gib=95.73, link_gbps=4800),
        Chip("v6e", ("TPU v6 lite", "TPU v6e"), "1x1 … 16x16", hbm_gib=31.24, link_gbps=3584),
        # One JAX device is one of the chip's two cores and has half of its links.
        Chip("tpu7x", ("TPU7x",), "1x1x1, 2x2x1, 2x2x2", hbm_gib=94.74, link_gbps=9600 / 2),
    )
}
"""Every chip that jaxsr knows, by name: topologies, reports and lane folding read this table."""

_MOST_CHIPS = 256


def chip_of(device_kind: str) -> Chip | None:
    """The chip that JAX calls `device_kind`, or None."""
    return next((chip for chip in CHIPS.values() if device_kind in chip.kinds), None)


def tpu_devices(name: str) -> Sequence[Any]:
    """JAX's compile-only devices of `v5e:2x4` and the like.

    Raises:
      InputError: libtpu is not installed, or knows no such topology.
    """
    generation, _, size = name.partition(":")
    sides = [whole_number(side) or 0 for side in size.split("x")]
    known = "; ".join(f"{chip.name}:{chip.sizes}" for chip in CHIPS.values())
    if not all(sides):
        raise InputError(f"no TPU topology {name!r}; there are {known}")
    chips = math.prod(sides)
    if not 1 <= chips <= _MOST_CHIPS:
        raise InputError(f"topology {name} has {chips} chips; choose 1 to {_MOST_CHIPS}")
    from jax.experimental import topologies

    # A v4 chip's two cores act as one device on Cloud TPUs; libtpu's own default splits them.
    options = {"chip_config_name": "megacore"} if generation == "v4" else {}
    with quiet_libtpu():
        try:
            description: Any = topologies.get_topology_desc(name, "tpu", **options)
        except Exception as error:
            raise InputError(_why_no_topology(name, known, error)) from error
    return description.devices


def _why_no_topology(name: str, known: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if importlib.util.find_spec("libtpu") is None:
        missing = "which is not installed"
        return f"compiling for {name} needs libtpu, {missing}; {install_extra('aot')}"
    if "libtpu" in text.lower() and "layout" not in text:
        return (
            f"compiling for {name} needs libtpu, which does not load here ({text[:200]}); "
            f"{install_extra('aot')}"
        )
    return f"libtpu has no topology {name!r} ({text[:200]}); there are {known}"

"""The sizes of a device mesh's axes, which options name before JAX is imported."""

import re
from dataclasses import dataclass

from jaxsr.interop.errors import InputError

AXES = ("data", "fsdp", "tensor")
DATA_AXES = ("data", "fsdp")
"""Axes that the rows of a batch are split over."""


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """How many devices each axis takes."""

    data: int = 1
    """Devices that each hold a whole replica and a part of the batch."""
    fsdp: int = 1
    """Devices that share one replica: parameters and optimiser state are split over them."""
    tensor: int = 1
    """Devices that compute the same rows together: weights are split over them by rules."""

    def __post_init__(self) -> None:
        for axis in AXES:
            if getattr(self, axis) < 1:
                raise InputError(f"mesh axis {axis} must be at least 1, got {getattr(self, axis)}")

    @property
    def devices(self) -> int:
        return self.row_devices * self.tensor

    @property
    def row_devices(self) -> int:
        """Devices that the rows of a batch are split over."""
        return self.data * self.fsdp

    @classmethod
    def parse(cls, text: str | int) -> "MeshShape":
        """Reads `8` (eight along `data`) or `data=2,fsdp=2,tensor=2`.

        Raises:
          ValueError: the text is neither, or a size is below 1.
        """
        text = str(text).strip()
        if re.fullmatch(r"-?\d+", text):
            return cls(data=int(text))
        pairs = [part.partition("=") for part in text.split(",")]
        names = [name.strip() for name, _, _ in pairs]
        sizes = [value.strip() for _, _, value in pairs]
        known = all(n in AXES for n in names) and len(set(names)) == len(names)
        if not known or not all(re.fullmatch(r"-?\d+", s) for s in sizes):
            raise InputError(
                f"mesh {text!r} is neither a number of devices nor axes with sizes; "
                "write 8, or data=4,fsdp=2"
            )
        return cls(**dict(zip(names, map(int, sizes), strict=True)))

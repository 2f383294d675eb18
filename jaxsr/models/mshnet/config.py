"""The configuration of MSHNet: one network that marks small targets in infrared images.

Defaults are the network of "Infrared Small Target Detection with Scale and Location Sensitivity"
(CVPR 2024, arXiv:2403.19366). Presets that train it: `jaxsr/training/presets/mshnet.py`.
"""

from dataclasses import dataclass
from typing import Literal

from jaxsr.errors import InputError
from jaxsr.interop.fields import check_fields, number


@dataclass(frozen=True, kw_only=True)
class MSHNetConfig:
    """The network and its loss; checked when built, before any device is touched."""

    channels: int = number(3, least=1, most=2**10)
    """Image channels; gray images are repeated over three, so that published weights fit."""
    widths: tuple[int, ...] = number((16, 32, 64, 128, 256), most=2**12)
    """Feature channels of each resolution, the finest first; each resolution is half the previous
    one."""
    blocks: tuple[int, ...] = number((1, 2, 2, 2, 2), least=1, most=2**10)
    """Residual blocks at each resolution, the same number in encoder and decoder."""
    attention_ratio: int = number(16, most=2**12)
    """Channels of a block divided by the hidden channels of its channel attention."""
    loss: Literal["paper", "corrected"] = "corrected"
    """SLS loss as published, or with its defects corrected (see losses/sls.py)."""

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.widths) < 2 or len(self.widths) != len(self.blocks):
            raise InputError(
                f"widths and blocks must name the same resolutions, two or more; got {self.widths} "
                f"and {self.blocks}"
            )
        if self.attention_ratio < 1 or min(self.widths) < self.attention_ratio:
            raise InputError(
                f"attention_ratio must be between 1 and the least width {min(self.widths)}, "
                f"got {self.attention_ratio}"
            )

    @property
    def scales(self) -> int:
        """Heads of the network, one for each resolution but the coarsest."""
        return len(self.widths) - 1

    @property
    def multiple(self) -> int:
        """Image sides must be multiples of this many pixels."""
        return 2**self.scales

"""The network to restore with, and its input format.

A network takes and returns images, (batch, channels, height, width), of one channel or three, in
the intensities of its `value_range`.
"""

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jaxsr.errors import InputError
from jaxsr.interop.module_copy import copy_module
from jaxsr.models.load import load_model
from jaxsr.models.registry import LoadedModel
from jaxsr.restoration.network_digest import network_digest
from jaxsr.restoration.receptive_field import Reach, measure_reach


@dataclass(frozen=True, kw_only=True, eq=False)
class RestorationModel(LoadedModel):
    """A network that restores images."""

    channels: int  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    """1 (luma or gray) or 3 (RGB)."""

    @functools.cached_property
    def reach(self) -> Reach:
        """Scale and tile margin."""
        return measure_reach(
            self.network,
            channels=self.channels,
            least_side=self.least_side,
            side_multiple=self.side_multiple,
        )

    @functools.cached_property
    def digest(self) -> str:
        """Tells models apart: classes, weights, and a file's statements on their use."""
        # A file's metadata come in another order in each process.
        metadata = json.dumps(self.metadata, sort_keys=True, default=repr)
        uses = (metadata, repr(self.value_range), str(self.channels))
        return network_digest(self.network, *uses)

    @property
    def states_its_margin(self) -> bool:
        """Whether it is of a family of jaxsr's, whose sizes state the margin that is measured."""
        stated = getattr(getattr(self.network, "config", None), "receptive_radius", None)
        own = type(self.network).__module__.startswith("jaxsr.models.")
        return own and stated == self.reach.margin

    @property
    def scale(self) -> int:
        return self.reach.scale


def find_model(
    model: str | Path | nn.Module | None = None,
    *,
    weights: Path | None = None,
    options: Mapping[str, Any] | None = None,
    trust_builder: bool = False,
    channels: int | None = None,
    value_range: tuple[float, float] | None = None,
) -> RestorationModel:
    """The network that a user names.

    Args:
      model, weights, options, trust_builder: see `jaxsr.models.load.load_model`.
      channels: of the network's input. Default: from its first convolution.
      value_range: intensities of black and white. Default: the family's, else 0 and 1.

    Raises:
      FileNotFoundError, ValueError: see `load_model`; or the network takes no images of 1 or 3
        channels.
    """
    loaded = load_model(
        model, kind="restorer", weights=weights, options=options, trust_builder=trust_builder
    )
    return restoration_model(loaded, channels=channels, value_range=value_range)


def restoration_model(
    loaded: LoadedModel,
    *,
    channels: int | None = None,
    value_range: tuple[float, float] | None = None,
) -> RestorationModel:
    """A loaded network as one that restores images, in float32; see `find_model`."""
    network = loaded.network
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in network.parameters()):
        network = copy_module(network).float()
    if channels is None:
        channels = loaded.channels or _input_channels(network)
    if channels not in (1, 3):
        raise InputError(
            f"{loaded.name} takes images of {channels} channels; restoring works with 1 (luma, "
            "gray) and 3 (RGB): wrap the network in a module that takes one of these"
        )
    pair = loaded.value_range if value_range is None else value_range
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    if not (is_pair and pair[0] < pair[1] and math.isfinite(pair[1] - pair[0])):
        raise InputError(
            "value_range must be (black, white), finite numbers with black below white, got "
            f"{', '.join(map(str, pair)) if is_pair else pair}"
        )
    changes = {"network": network, "value_range": tuple(pair), "channels": channels}
    return RestorationModel(**{**vars(loaded), **changes})


def _input_channels(network: nn.Module) -> int:
    """Channels that the network accepts, from its first convolution or a trial."""
    first = next((m for m in network.modules() if isinstance(m, nn.Conv2d)), None)
    guesses = [first.in_channels] if first is not None else []
    for channels in dict.fromkeys([*guesses, 3, 1]):
        try:
            with torch.no_grad():
                network.eval()(torch.zeros(1, channels, 64, 64))
            return channels
        except (RuntimeError, ValueError):  # raised for a wrong number of channels
            continue
    raise InputError(
        f"{type(network).__name__} takes neither (1, 3, 64, 64) nor (1, 1, 64, 64); wrap it in a "
        "module that takes images (batch, channels, height, width)"
    )

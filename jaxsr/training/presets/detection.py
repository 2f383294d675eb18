"""Options and presets of a user's network that marks targets."""

from dataclasses import dataclass
from typing import Literal

from jaxsr.errors import InputError
from jaxsr.interop.fields import number
from jaxsr.interop.json_text import json_object
from jaxsr.models.losses.weights import MASK_LOSS_NAMES, parse_weights
from jaxsr.training.presets import detectors
from jaxsr.training.presets.detectors import DetectorRun
from jaxsr.training.presets.networks import NetworkOptions
from jaxsr.training.task_config import TaskOptions


@dataclass(frozen=True, kw_only=True)
class DetectionRun(NetworkOptions, DetectorRun):
    """Options of a run of a network that gives logit maps, (n, 1, h, w)."""

    multiple: int = number(32, least=1, most=2**12)
    """The sides of the network's input must be multiples of this many pixels."""
    loss: str = "bce=1,iou=1"
    """Losses and weights, as bce=1,dice=1: bce, dice, iou, focal, sls, or your own
    package.module:function, which takes (logits, mask) and returns a scalar."""
    scale_weights: tuple[float, ...] | None = None
    """Weights of the network's logit maps in their order, if it returns several. Default: equal."""

    def __post_init__(self) -> None:
        json_object("network_args", self.network_args)
        _ = self.loss_weights  # Constructing it checks the loss.
        weights = self.scale_weights
        if weights is not None and not (weights and min(weights) >= 0 and sum(weights) > 0):
            raise InputError(
                f"scale_weights must be numbers from 0, one above 0, got {weights}; give one for "
                "each logit map"
            )
        super().__post_init__()

    @property
    def loss_weights(self) -> dict[str, float]:
        """Returns the weights of the losses by name."""
        return parse_weights(self.loss, names=MASK_LOSS_NAMES, option="--loss")

    @property
    def side_multiple(self) -> int:
        return self.multiple

    @property
    def input_channels(self) -> Literal[1, 3]:
        return self.channels


TOOLBOX = DetectionRun(epochs=400, **detectors.TOOLBOX)
QUICK = DetectionRun(epochs=25, **detectors.QUICK)


class DetectionPresets(TaskOptions):
    """Options and presets of a user's network that marks targets."""

    Config = DetectionRun
    presets = {"quick": QUICK, "toolbox": TOOLBOX}  # noqa: RUF012
    default_presets = ("quick", "toolbox")

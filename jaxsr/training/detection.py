"""Training a network of the user's that marks targets in infrared images.

Data and validation are those of every detector, `detector_task.py`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jaxsr.errors import InputError
from jaxsr.fields import number
from jaxsr.interop.annotations import JsonObject
from jaxsr.models.losses.masks import MASK_LOSSES
from jaxsr.models.losses.terms import make_terms, parse_weights
from jaxsr.models.mask_objective import MaskObjective
from jaxsr.runtime.options import parse_json_object
from jaxsr.training import detector_task
from jaxsr.training.detector_task import DetectorRun, DetectorTask
from jaxsr.training.network_options import (
    NetworkOptions,
    check_in_jax,
    check_side,
    random_pictures,
    try_losses,
    try_network,
)

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class DetectionRun(NetworkOptions, DetectorRun):
    """Options of a run of a network that gives logit maps, (n, 1, h, w)."""

    multiple: int = number(32, most=2**12)
    """The sides of the network's input must be multiples of so many pixels."""
    loss: str = "bce=1,iou=1"
    """Losses and weights, as bce=1,dice=1: bce, dice, iou, focal, sls, or package.module:function
    of your own, which takes (logits, mask) and returns a scalar."""
    scale_weights: tuple[float, ...] | None = None
    """Weights of the network's logit maps, in its order, where it gives several. Default: equal."""

    def __post_init__(self) -> None:
        self.check_at_least(1, "multiple")
        parse_json_object(self.network_args, "network_args")
        _ = self.loss_weights  # checks itself
        weights = self.scale_weights
        if weights is not None and not (weights and min(weights) >= 0 and sum(weights) > 0):
            raise InputError(
                f"scale_weights must be numbers from 0, one above 0, got {weights}; give one for "
                "each logit map"
            )
        super().__post_init__()

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses by name."""
        return parse_weights(self.loss, names=MASK_LOSSES, option="--loss")

    @property
    def side_multiple(self) -> int:
        return self.multiple

    @property
    def input_channels(self) -> Literal[1, 3]:
        return self.channels


TOOLBOX = DetectionRun(epochs=400, **detector_task.TOOLBOX)
QUICK = DetectionRun(epochs=25, **detector_task.QUICK)


class DetectionTask(DetectorTask):
    """A network of the user's that gives logit maps, (n, 1, h, w)."""

    Config = DetectionRun
    presets = {"quick": QUICK, "toolbox": TOOLBOX}  # noqa: RUF012
    default_presets = ("quick", "toolbox")
    config: DetectionRun

    @property
    def title(self) -> str:
        return str(self.config.network)

    @property
    def loss_in_words(self) -> str:
        return self.config.loss

    def objective(self) -> MaskObjective:
        """The network and its losses, tried on random pictures.

        Raises:
          InputError: the network or a loss cannot be used.
        """
        config = self.config
        network = config.build()
        option = f"--network {config.network}"
        _try(config, network, option)
        terms = make_terms(config.loss_weights, MASK_LOSSES, option="--loss")
        objective = MaskObjective(network, terms, scale_weights=config.scale_weights)
        side = config.crop_size
        mask = (random_pictures(2, 1, side, side) > 0.99).float()
        batch = {"image": random_pictures(2, config.channels, side, side), "mask": mask}
        try_losses(objective, batch, option=option)
        if config.check:
            small = check_side(config.multiple)
            picture = random_pictures(2, config.channels, small, small)
            check_in_jax(network, picture, config=config, option=option)
        return objective

    def builder(self) -> JsonObject:
        return self.config.describe("detection")


def _try(config: DetectionRun, network: "nn.Module", option: str) -> None:
    """Runs the network on crops as in training, and on a picture of other sides.

    Raises:
      InputError: it fails, or gives no logit map of the picture's size.
    """
    multiple = config.multiple
    odd = multiple * max(2, 48 // multiple)
    for height, width in ((config.crop_size, config.crop_size), (odd, odd + multiple)):
        try_network(
            network,
            random_pictures(1, config.channels, height, width),
            option=option,
            expected=(1, 1, height, width),
            mend="one logit map {}; end it with one channel, or give --multiple",
        )

"""Training a user's network that marks targets in infrared images.

Data and validation are those of every detector, see `detector_task.py`.
"""

from typing import TYPE_CHECKING

from jaxsr.interop.annotations import JsonObject
from jaxsr.models.losses.masks import MASK_LOSSES
from jaxsr.models.losses.terms import make_terms
from jaxsr.models.mask_objective import MaskObjective
from jaxsr.training.detector_task import DetectorTask
from jaxsr.training.network_options import (
    build,
    check_in_jax,
    check_side,
    random_pictures,
    try_losses,
    try_network,
)
from jaxsr.training.presets.detection import DetectionPresets, DetectionRun

if TYPE_CHECKING:
    from torch import nn


class DetectionTask(DetectionPresets, DetectorTask):
    """A user's network that returns logit maps, (n, 1, h, w)."""

    config: DetectionRun

    @property
    def title(self) -> str:
        return str(self.config.network)

    @property
    def loss_in_words(self) -> str:
        return self.config.loss

    def objective(self) -> MaskObjective:
        """Builds the network and its losses, and tries them on random images.

        Raises:
          InputError: the network or a loss cannot be used.
        """
        config = self.config
        network = build(config)
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
    """Runs the network on crops as in training, and on an image of other sides.

    Raises:
      InputError: it fails, or does not return a logit map of the image's size.
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

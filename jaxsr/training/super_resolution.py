"""Training a user's network that enlarges images, or restores them at scale 1.

Data and validation are those of every super-resolution family, see `photo_task.py`.
"""

import torch

from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.json_text import json_object
from jaxsr.models.build import build_network
from jaxsr.models.losses.pictures import PICTURE_LOSSES
from jaxsr.models.losses.terms import Loss, make_terms
from jaxsr.models.losses.weights import ADVERSARIAL, NETWORK_LOSS_NAMES
from jaxsr.models.perceptual import network_loss
from jaxsr.models.picture_objective import PictureObjective
from jaxsr.training.network_options import (
    build,
    check_in_jax,
    check_side,
    random_pictures,
    try_losses,
    try_network,
)
from jaxsr.training.photo_task import PhotoTask
from jaxsr.training.presets.super_resolution import SuperResolutionPresets, SuperResolutionRun

_LABELS = {"label_real": (1.0, 1.0), "label_fake": (0.0, 0.0), "label_generator": (1.0, 1.0)}


class SuperResolutionTask(SuperResolutionPresets, PhotoTask):
    """A user's network that enlarges images, or restores them at scale 1."""

    labels = _LABELS
    config: SuperResolutionRun

    @property
    def title(self) -> str:
        return str(self.config.network)

    def networks(self) -> PictureObjective:
        """Builds the network, its discriminator and losses, and tries them on random images.

        Raises:
          InputError: the network, a loss or the discriminator cannot be used.
        """
        config = self.config
        network = build(config)
        option = f"--network {config.network}"
        _try(config, network, option)
        losses = _losses(config)
        phases = [name for name, _ in config.phases]
        discriminator = None
        if "adversarial" in phases:
            assert config.discriminator is not None
            discriminator = build_network(
                config.discriminator,
                json_object("discriminator_args", config.discriminator_args),
                option="--discriminator",
            ).float()
        weights = {"pretrain": config.pretrain_weights, "adversarial": config.loss_weights}
        terms = {
            phase: make_terms(weights[phase], losses, option="--loss") if phase in phases else ()
            for phase in weights
        }
        objective = PictureObjective(
            network, **terms, discriminator=discriminator, value_range=config.value_range
        )
        try_losses(objective, _example_batch(config), option=option)
        if config.check:
            side = check_side(config.multiple)
            picture = _in_range(config, random_pictures(2, config.channels, side, side))
            check_in_jax(network, picture, config=config, option=option)
        return objective

    def builder(self) -> JsonObject:
        config = self.config
        return {
            **config.describe("super-resolution"),
            "scale": config.scale,
            "channels": config.channels,
            "value_range": list(config.value_range),
            "multiple": config.multiple,
        }


def _losses(config: SuperResolutionRun) -> dict[str, Loss | None]:
    losses: dict[str, Loss | None] = {**PICTURE_LOSSES, ADVERSARIAL: None}
    for name in NETWORK_LOSS_NAMES:
        losses[name] = None
        if name in {**config.loss_weights, **config.pretrain_weights}:
            losses[name] = network_loss(
                name, config.perceptual_weights, untrained=config.aot is not None
            )
    return losses


def _try(config: SuperResolutionRun, network: torch.nn.Module, option: str) -> None:
    """Runs the network on crops as in training, and on an image of other sides.

    Raises:
      InputError: it fails, or its output is not such an image.
    """
    scale, multiple = config.scale, config.multiple
    side = config.crop // scale
    odd = multiple * (24 // multiple + 1 - 24 // multiple % 2)
    for height, width in ((side, side), (odd, odd + multiple)):
        try_network(
            network,
            _in_range(config, random_pictures(1, config.channels, height, width)),
            option=option,
            expected=(1, config.channels, scale * height, scale * width),
            mend=f"{{}}, {scale} times as large; give --scale, --channels or --multiple",
        )


def _example_batch(config: SuperResolutionRun) -> dict[str, torch.Tensor]:
    size = (2, config.channels)
    side = config.crop // config.scale
    batch = {
        "low": _in_range(config, random_pictures(*size, side, side)),
        "high": _in_range(config, random_pictures(*size, config.crop, config.crop, seed=1)),
    }
    return batch | {name: torch.ones(2, 1, 1, 1) for name in _LABELS}


def _in_range(config: SuperResolutionRun, pictures: torch.Tensor) -> torch.Tensor:
    low, high = config.value_range
    return low + (high - low) * pictures

"""Training a network of the user's that enlarges pictures, or at scale 1 restores them.

Data and validation are those of every super-resolution family, `photo_task.py`.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from jaxsr.errors import InputError
from jaxsr.fields import number
from jaxsr.interop.annotations import JsonObject
from jaxsr.models.build import build_network
from jaxsr.models.losses.pictures import PICTURE_LOSSES
from jaxsr.models.losses.terms import ADVERSARIAL, Loss, make_terms, parse_weights
from jaxsr.models.perceptual import perceptual_loss
from jaxsr.models.picture_objective import PictureObjective
from jaxsr.runtime.options import parse_json_object
from jaxsr.training import photo_task
from jaxsr.training.adversarial import AdversarialRun
from jaxsr.training.network_options import (
    NetworkOptions,
    check_in_jax,
    check_side,
    random_pictures,
    try_losses,
    try_network,
)
from jaxsr.training.photo_task import PhotoTask

_NAMES = (*PICTURE_LOSSES, "perceptual", ADVERSARIAL)
_LABELS = {"label_real": (1.0, 1.0), "label_fake": (0.0, 0.0), "label_generator": (1.0, 1.0)}


@dataclass(frozen=True, kw_only=True)
class SuperResolutionRun(NetworkOptions, AdversarialRun):
    """Options of a run of a network that enlarges pictures."""

    scale: int = number(4, most=64)
    """Enlargement per side; 1 restores detail without changing the size."""
    value_range: tuple[float, float] = (0.0, 1.0)
    """Black and white in the network's pictures: 0 1, as most published networks, or -1 1."""
    multiple: int = number(1, most=2**12)
    """The sides of the network's input must be multiples of so many pixels."""
    loss: str = "l1"
    """Losses and weights, as l1=1,ssim=0.1: l1, smooth_l1, charbonnier, mse, ssim, perceptual,
    adversarial (needs a discriminator), or package.module:function of your own, which takes
    (prediction, target) with pictures in 0…1 and returns a scalar."""
    pretrain_loss: str | None = None
    """Losses of the phase before the adversarial one. Default: those of loss but adversarial."""
    discriminator: str | None = None
    """The discriminator, named as network is: pictures in the network's value_range to logits, one
    a picture or a map."""
    discriminator_args: str = "{}"
    """Keyword arguments of the discriminator, as a JSON object."""
    adversarial_share: float = 0.5
    """With an adversarial loss: part of the steps that its phase gets, at the end of the run."""

    def __post_init__(self) -> None:
        self.check_at_least(1, "scale", "multiple")
        parse_json_object(self.network_args, "network_args")
        parse_json_object(self.discriminator_args, "discriminator_args")
        low, high = self.value_range
        if not low < high:
            raise InputError(
                f"value_range must be black and white with black below white, got {low} {high}"
            )
        adversarial = ADVERSARIAL in self.loss_weights
        if adversarial != (self.discriminator is not None):
            raise InputError(
                f"the loss {self.loss!r} and discriminator={self.discriminator} do not go "
                "together: an adversarial loss needs --discriminator package.module:Class, and a "
                "discriminator a loss such as l1=1,adversarial=0.01"
            )
        if not adversarial and (self.adversarial_steps or self.pretrain_loss):
            raise InputError(
                "adversarial_steps and pretrain_loss are for runs with an adversarial loss; add it "
                "to --loss, or leave them out"
            )
        if ADVERSARIAL in (pretrain := self.pretrain_weights) or not pretrain:
            raise InputError(
                "the phase before the adversarial one needs losses of its own, without "
                f"adversarial, got pretrain_loss={self.pretrain_loss} and loss={self.loss}; give "
                "--pretrain-loss l1=1"
            )
        super().__post_init__()
        if self.crop % (self.scale * self.multiple):
            raise InputError(
                f"crop={self.crop} must be a multiple of scale={self.scale} times "
                f"multiple={self.multiple}"
            )

    @property
    def picture(self) -> Any:
        return self

    @property
    def intensities(self) -> tuple[float, float]:
        return self.value_range

    @property
    def side_multiple(self) -> int:
        return self.multiple

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses by name."""
        return parse_weights(self.loss, names=_NAMES, option="--loss")

    @property
    def pretrain_weights(self) -> dict[str, float]:
        """Weights of the first phase's losses by name."""
        if self.pretrain_loss is not None:
            return parse_weights(self.pretrain_loss, names=_NAMES, option="--pretrain-loss")
        return {name: w for name, w in self.loss_weights.items() if name != ADVERSARIAL}

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        """Both phases with an adversarial loss, else the one without."""
        if ADVERSARIAL not in self.loss_weights:
            return (("pretrain", self.total_steps),)
        return super().phases


QUICK = SuperResolutionRun(bicubic="matlab", lr=1e-3, **photo_task.QUICK)

# The options that published networks of this kind train with, for a data set.
LONG = dataclasses.replace(
    QUICK,
    steps=100_000,
    crop=192,
    crops_per_photo=16,
    lr=5e-4,
    warmup_steps=500,
    ema=0.999,
    log_every=100,
    validate_every=5_000,
    save_every=1_000,
)


class SuperResolutionTask(PhotoTask):
    """A network of the user's that enlarges pictures, or at scale 1 restores them."""

    Config = SuperResolutionRun
    presets = {"quick": QUICK, "long": LONG}  # noqa: RUF012
    default_presets = ("quick", "long")
    labels = _LABELS
    config: SuperResolutionRun

    @property
    def title(self) -> str:
        return str(self.config.network)

    def networks(self) -> PictureObjective:
        """The network, its discriminator and losses, tried on random pictures.

        Raises:
          InputError: the network, a loss or the discriminator cannot be used.
        """
        config = self.config
        network = config.build()
        option = f"--network {config.network}"
        _try(config, network, option)
        losses = _losses(config)
        phases = [name for name, _ in config.phases]
        discriminator = None
        if "adversarial" in phases:
            assert config.discriminator is not None
            discriminator = build_network(
                config.discriminator,
                parse_json_object(config.discriminator_args, "discriminator_args"),
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
    losses: dict[str, Loss | None] = {**PICTURE_LOSSES, "perceptual": None, ADVERSARIAL: None}
    if "perceptual" in {**config.loss_weights, **config.pretrain_weights}:
        losses["perceptual"] = perceptual_loss(
            config.perceptual_weights, untrained=config.aot is not None, value_range=(0.0, 1.0)
        )
    return losses


def _try(config: SuperResolutionRun, network: torch.nn.Module, option: str) -> None:
    """Runs the network on crops as in training, and on a picture of other sides.

    Raises:
      InputError: it fails, or its output is no such picture.
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

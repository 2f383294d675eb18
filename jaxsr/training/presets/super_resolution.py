"""Options and presets of a user's network that enlarges images."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from jaxsr.errors import InputError
from jaxsr.interop.fields import number
from jaxsr.interop.json_text import json_object
from jaxsr.models.losses.weights import (
    ADVERSARIAL,
    NETWORK_LOSS_NAMES,
    PICTURE_LOSS_NAMES,
    parse_weights,
)
from jaxsr.training.presets import photos
from jaxsr.training.presets.networks import NetworkOptions
from jaxsr.training.presets.photos import AdversarialRun
from jaxsr.training.task_config import TaskOptions

_NAMES = (*PICTURE_LOSS_NAMES, *NETWORK_LOSS_NAMES, ADVERSARIAL)


@dataclass(frozen=True, kw_only=True)
class SuperResolutionRun(NetworkOptions, AdversarialRun):
    """Options of a run of a network that enlarges images."""

    scale: int = number(4, least=1, most=64)
    """Enlargement per side; 1 restores detail without changing the size."""
    value_range: tuple[float, float] = (0.0, 1.0)
    """Black and white in the network's images: 0 1, as in most published networks, or -1 1."""
    multiple: int = number(1, least=1, most=2**12)
    """The sides of the network's input must be multiples of this many pixels."""
    loss: str = "l1"
    """Losses and weights, as l1=1,ssim=0.1: l1, smooth_l1, charbonnier, mse, ssim, ms_ssim,
    focal_frequency, perceptual, lpips, dists, adversarial (needs a discriminator), or your own
    package.module:function, which takes (prediction, target) with images in 0…1 and returns a
    scalar."""
    pretrain_loss: str | None = None
    """Losses of the phase before the adversarial one. Default: those of --loss without
    adversarial."""
    discriminator: str | None = None
    """The discriminator, named as in --network. It takes images in --value-range and returns
    logits, one per image or a map."""
    discriminator_args: str = "{}"
    """Keyword arguments of the discriminator, as a JSON object."""
    adversarial_share: float = 0.5
    """With an adversarial loss: share of the steps for its phase, which ends the run."""

    def __post_init__(self) -> None:
        json_object("network_args", self.network_args)
        json_object("discriminator_args", self.discriminator_args)
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
        """Returns the weights of the losses by name."""
        return parse_weights(self.loss, names=_NAMES, option="--loss")

    @property
    def pretrain_weights(self) -> dict[str, float]:
        """Returns the weights of the first phase's losses by name."""
        if self.pretrain_loss is not None:
            return parse_weights(self.pretrain_loss, names=_NAMES, option="--pretrain-loss")
        return {name: w for name, w in self.loss_weights.items() if name != ADVERSARIAL}

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        """Returns both phases with an adversarial loss, otherwise the first one alone."""
        if ADVERSARIAL not in self.loss_weights:
            return (("pretrain", self.total_steps),)
        return super().phases


QUICK = SuperResolutionRun(bicubic="matlab", lr=1e-3, **photos.QUICK)

# Options for a data set, as published networks of this kind are trained.
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


class SuperResolutionPresets(TaskOptions):
    """Options and presets of a user's network that enlarges images."""

    Config = SuperResolutionRun
    presets = {"quick": QUICK, "long": LONG}  # noqa: RUF012
    default_presets = ("quick", "long")

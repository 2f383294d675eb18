"""Options of every detector's run."""

from dataclasses import dataclass
from typing import Any, Literal

from jaxsr.errors import InputError
from jaxsr.interop.fields import number
from jaxsr.interop.json_text import json_object
from jaxsr.training.config import PictureRunConfig


@dataclass(frozen=True, kw_only=True)
class DetectorRun(PictureRunConfig):
    """Options of every detector's run."""

    base_size: int = number(256, most=2**14)
    """Side in pixels to which images are scaled in training, up to a random factor, and in
    evaluation with --evaluate base."""
    crop_size: int = number(256, most=2**14)
    """Side in pixels of the square that the network trains on."""
    augment: Literal["scale", "patch"] = "scale"
    """scale: the paper's rescaling, flip and blur. patch: crops of the unscaled image, rotated."""
    zoom: float = number(1.0, least=1, most=4)
    """With --augment patch: each image is scaled by a factor between 1/zoom and zoom."""
    contrast: float = number(0.0, least=0, most=0.99)
    """Contrast changes by up to this share, and brightness by half as much."""
    policy: str = ""
    """Steps of jaxsr.ops.augment for each crop and its mask, as a JSON object of their names and
    arguments: {"RandomAffine": {"degrees": 10}, "RandomNoise": {}}."""
    normalise: Literal["imagenet", "dataset"] = "imagenet"
    """Mean and standard deviation of the input: ImageNet's, or those of the training images."""
    evaluate: Literal["base", "native"] = "base"
    """Validate at --base-size, or each image at its own size."""
    val_split: float = 0.1
    """Fraction of the training list to validate on, unless --val names another list."""
    lists: str | None = None
    """Folder of the split lists within the data set, if it has several."""
    mask_threshold: int | None = None
    """Gray level above which a mask pixel belongs to a target. Default: masks must be binary."""
    cache: Literal["auto", "device", "host", "off"] = "auto"
    """Place of decoded images; auto: on the device if they fit --resident-gb, else in host
    memory."""
    scenes: int = number(256, least=4, most=2**20)
    """Synthetic scenes to train on if there is no data; a quarter as many validate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        json_object("policy", self.policy)
        for name in ("base_size", "crop_size"):
            value, multiple = getattr(self, name), self.side_multiple
            if value < 1 or value % multiple:
                raise InputError(f"{name} must be a positive multiple of {multiple}, got {value}")
        if self.val is not None and self.data is None:
            raise InputError(
                f"val={self.val} is a list of a data set: give --data, or leave it out for scenes"
            )
        if self.on_bad_file == "skip":
            raise InputError(
                "on_bad_file=skip leaves photos out; a detector's images are those of its list, so "
                "take the names out of it"
            )
        if self.zoom > 1 and self.augment != "patch":
            raise InputError(
                f"zoom={self.zoom:g} goes with augment=patch; augment={self.augment} scales "
                "images by itself"
            )

    @property
    def side_multiple(self) -> int:
        """Number of which the sides of the network's input must be multiples."""
        return 16

    @property
    def input_channels(self) -> Literal[1, 3]:
        """Channels of the network's input; gray images are repeated over three."""
        return 3

    def phases(self, samples: int) -> tuple[tuple[str, int], ...]:
        """Returns the phases with their steps, for epochs of `samples` images."""
        return (("main", self.total_steps),)


TOOLBOX: dict[str, Any] = {
    "batch": 16,
    "optimizer": "adam",
    "lr": 5e-4,
    "augment": "patch",
    "normalise": "dataset",
    "evaluate": "native",
}
"""Options as in the BasicIRSTD toolbox, whose runs take 400 epochs."""

QUICK = TOOLBOX | {
    "batch": 8,
    "lr": 1e-3,
    "schedule": "cosine",
    "evaluate": "base",
    "base_size": 128,
    "crop_size": 128,
    "scenes": 128,
}
"""Options for minutes on two CPU cores, on synthetic scenes."""

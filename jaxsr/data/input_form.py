"""How a detector's images are prepared: in the form that its network was trained on.

Images are uint8 (height, width, 3), logits float32 (height, width), in one of two forms:

- `base`: the image resized to base × base (Pillow's bilinear, as the papers evaluate), the logits
  of that size;
- `native`: the image as it is, black added at the right and bottom up to a multiple of 32 pixels
  (`multiple`) and cut off again, as BasicIRSTD does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Shaped, UInt8
from PIL import Image

from jaxsr.data.batch_plan import Size
from jaxsr.data.infrared import to_gray
from jaxsr.errors import InputError
from jaxsr.field_values import from_values
from jaxsr.interop.fields import check_fields, number

Form = Literal["base", "native"]

_LARGEST_BASE = 2**12
"""Pixels; a file may not ask for more."""
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of each channel, of an image in 0…1."""


@dataclass(frozen=True, kw_only=True)
class InputForm:
    """Form of the input that a network was trained on."""

    mean: tuple[float, ...] = IMAGENET[0]
    """Mean of each channel, of images in 0…1."""
    deviation: tuple[float, ...] = IMAGENET[1]
    """Standard deviation of each channel."""
    gray: bool = False
    """Whether colours become luma first, in all three channels."""
    base: int = number(256, least=16, most=2**14)
    """Side in pixels that images are resized to."""
    evaluate: Form = "base"
    """Whether images are resized, or taken as they are."""
    channels: Literal[1, 3] = 3
    """Channels of the network's input; 1 is luma, normalised as the first of the three."""
    multiple: int = number(32, least=1, most=2**10)
    """Pixels that the sides of native images are padded to multiples of."""

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.mean) != 3 or len(self.deviation) != 3:
            raise InputError(
                f"mean and deviation need 3 channels, got {self.mean} and {self.deviation}"
            )
        if not all(value > 0 for value in self.deviation):
            raise InputError(f"deviation must be positive, got {self.deviation}")
        if self.base % 16:
            raise InputError(f"base must be a positive multiple of 16 px, got {self.base}")

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "InputForm":
        """The form in a weights file's metadata; by default, the paper's.

        Raises:
          InputError: it has a field of another name, type or range.
        """
        values = description.get("input", {})
        if not isinstance(values, Mapping):
            raise InputError(
                f"the file's metadata have the input {values!r:.80}, which is not a mapping of "
                "fields; get the file again"
            )
        form = from_values(cls, values, prefix="the file's input.")
        if form.base > _LARGEST_BASE:
            raise InputError(
                f"the file's input.base is {form.base} px, more than {_LARGEST_BASE}; get the file "
                "again"
            )
        return form

    def prepare(self, image: UInt8[np.ndarray, "h w 3"]) -> Float32[np.ndarray, "c H W"]:
        """An image as the network wants it."""
        height, width = image.shape[:2]
        if self.gray or self.channels == 1:
            image = np.repeat(to_gray(image)[..., None], 3, axis=-1)
        if self.evaluate == "base":
            image = resize(image, (self.base, self.base))
        levels = image.astype(np.float32) / 255
        levels = (levels - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)
        planes = np.ascontiguousarray(levels.transpose(2, 0, 1)[: self.channels])
        rows, columns = self.size((height, width))
        if planes.shape[1:] == (rows, columns):
            return planes
        return np.pad(planes, ((0, 0), (0, rows - height), (0, columns - width)))

    def size(self, size: Size) -> Size:
        """Height and width that `prepare` gives an image of this size."""
        if self.evaluate == "base":
            return self.base, self.base
        return size[0] + -size[0] % self.multiple, size[1] + -size[1] % self.multiple

    def at(self, scale: float) -> "InputForm":
        """The form of images at another scale; native ones are resized before."""
        return replace(self, base=max(round(self.base * scale / 16), 1) * 16)

    def mask(self, mask: UInt8[np.ndarray, "h w"]) -> UInt8[np.ndarray, "H W"]:
        """A mask at the size of the logits: nearest where images are resized."""
        if self.evaluate == "native":
            return mask
        nearest = Image.Resampling.NEAREST
        return np.asarray(Image.fromarray(mask).resize((self.base, self.base), nearest))

    def probability(
        self, image: UInt8[np.ndarray, "h w 3"], logits: Float32[np.ndarray, "H W"]
    ) -> Float32[np.ndarray, "h w"]:
        """Probability of a target at each of an image's own pixels, from its logits."""
        likely = probability_of(logits)
        return resize(likely, image.shape[:2]) if self.evaluate == "base" else likely


def probability_of(logits: Float32[np.ndarray, "h w"]) -> Float32[np.ndarray, "h w"]:
    """The probability of each logit."""
    # Half of the hyperbolic tangent does not overflow as an exponential does.
    return (0.5 + 0.5 * np.tanh(0.5 * logits)).astype(np.float32)


def scaled(size: Size, scale: float) -> Size:
    """Height and width times a factor, a pixel at least."""
    return max(round(size[0] * scale), 1), max(round(size[1] * scale), 1)


def resize(image: Shaped[np.ndarray, "h w *c"], size: Size) -> Shaped[np.ndarray, "H W *c"]:
    """Pillow's bilinear resize of an image, or of float32 values, to (height, width)."""
    if image.shape[:2] == size:
        return image
    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BILINEAR))

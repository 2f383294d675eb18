"""Names and weights of losses as options give them: `l1=1,ssim=0.1,my_losses:edges=0.5`.

A name without a weight has 1. `terms` finds the functions.
"""

import math
from collections.abc import Iterable

from jaxsr.errors import InputError

PICTURE_LOSS_NAMES = (
    "l1",
    "smooth_l1",
    "mse",
    "charbonnier",
    "ssim",
    "ms_ssim",
    "focal_frequency",
)
"""Losses between images, which `pictures` computes."""
NETWORK_LOSS_NAMES = ("perceptual", "lpips", "dists")
"""Losses on a trained network's features of images, which `jaxsr.models.perceptual` computes."""
MASK_LOSS_NAMES = ("bce", "dice", "iou", "focal", "sls")
"""Losses of target masks, which `masks` computes."""
ADVERSARIAL = "adversarial"
"""The term that a discriminator gives; it has no function of its own."""


def parse_weights(text: str, *, names: Iterable[str], option: str) -> dict[str, float]:
    """Weights by the loss's name, in the text's order.

    Args:
      text: as the module's docstring shows it.
      names: losses that need no module.
      option: whose text it is, for errors.

    Raises:
      InputError: an unknown loss, one twice, or a weight that is not a number above 0.
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        if name not in (known := [*names]) and ":" not in name:
            raise InputError(
                f"{option} {text!r}: no loss {name!r}; there are {', '.join(known)}, and "
                "package.module:function of your own"
            )
        if name in weights:
            raise InputError(f"{option} {text!r} names {name} twice; give one weight")
        try:
            weights[name] = float(number) if equals else 1.0
        except ValueError:
            weights[name] = math.nan
        if not 0 < weights[name] < math.inf:
            raise InputError(
                f"{option} {text!r}: {name} has the weight {number!r}; give a number above 0, as "
                f"{name}=0.5"
            )
    return weights

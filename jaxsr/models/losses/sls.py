"""The scale and location sensitive (SLS) loss of MSHNet, as published and corrected.

Logits and masks are (B, 1, H, W), masks 0 or 1; every loss is the mean over the batch of a value
per image, in float32 whatever the inputs are. Source: "Infrared Small Target Detection with Scale
and Location Sensitivity" (CVPR 2024, arXiv:2403.19366).

With p the sigmoid of the logit and per image P = Σp, G = Σmask, I = Σp·mask:

- scale: 1 − α·IoU, where IoU = I / (P + G − I), d = ((P − G) / 2)² and
  α = (min(P, G) + d) / (max(P, G) + d);
- location, between centroids in polar coordinates about the top left corner:
  1 − min(l_p, l_g) / max(l_p, l_g) + (4/π²)·(θ_p − θ_g)².

`paper` is that text to the letter, with three defects. `corrected` mends them:

1. The paper's centroid is a mean over all pixels, not over the mask's own. For a target of 9 px in
   256² its length is below the smoothing, so that the length term says little below 10 px. Here the
   centroid is divided by its mass, and pixel coordinates are those of their centres.
2. Without a target G = I = 0: the IoU is 0 whatever P is, and has no gradient. Here a pixel's worth
   is added to both sides of each quotient, so that less prediction is a smaller loss, and 0 if
   there is none; there is no location to be sensitive to, so that term is 0.
3. If the sigmoid also underflows, 0/0 is NaN. Here every quotient has a positive denominator; the
   centroid of a prediction of no mass is the middle of the image.

Several targets have one common centroid in both forms: telling them apart needs components.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from jaxsr.errors import InputError

Form = Literal["paper", "corrected"]

ONE_PIXEL = 1.0
"""Added to both sides of the corrected form's quotients."""
CENTRE_MASS = 1e-2
"""Pixels' worth of mass at the image's middle in the corrected centroid, so that it stands still
where a prediction vanishes, instead of 0/0. It moves that of a 1-px target by under 1 %."""
_SMOOTHING = 1e-8  # of the published location term


def warmup_loss(logits_B1HW: Tensor, mask_B1HW: Tensor, *, form: Form) -> Tensor:
    """1 − IoU, the loss of the first epochs, on the finest head alone."""
    predicted, mask = checked_pair(logits_B1HW, mask_B1HW)
    P, G, both = mass_and_overlap(predicted, mask)
    return 1 - _iou(P, G, both, form).mean()


def sls_loss(logits_B1HW: Tensor, mask_B1HW: Tensor, *, form: Form) -> tuple[Tensor, Tensor]:
    """The scale and the location term of one head; the loss is their sum."""
    predicted, mask = checked_pair(logits_B1HW, mask_B1HW)
    P, G, both = mass_and_overlap(predicted, mask)
    smooth = ONE_PIXEL if form == "corrected" else 0.0
    distance = ((P - G) / 2) ** 2
    alpha = (torch.minimum(P, G) + distance + smooth) / (torch.maximum(P, G) + distance + smooth)
    scale = 1 - (alpha * _iou(P, G, both, form)).mean()
    if form == "paper":
        return scale, _published_location(predicted, mask).mean()
    return scale, (_location(predicted, P, mask, G) * (G > 0)).mean()


def deep_supervision(
    logits: Sequence[Tensor], mask_B1HW: Tensor, *, form: Form
) -> dict[str, Tensor]:
    """The mean over the outputs of `MSHNet(heads="all")`, each against the mask at its own size.

    Args:
      logits: the final output and the heads', each half the size of the one before it but the
        first two, which are full size.
      mask_B1HW: the mask at full size; max-pooled by 2 for each smaller head.

    Returns:
      `loss`, and its parts `scale` and `location`.
    """
    scales: list[Tensor] = []
    locations: list[Tensor] = []
    for index, output in enumerate(logits):
        if index > 1:
            mask_B1HW = F.max_pool2d(mask_B1HW, 2)
        scale, location = sls_loss(output, mask_B1HW, form=form)
        scales.append(scale)
        locations.append(location)
    mean_scale, mean_location = torch.stack(scales).mean(), torch.stack(locations).mean()
    return {
        "loss": mean_scale + mean_location,
        "scale": mean_scale,
        "location": mean_location,
    }


def checked_pair(logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and mask in float32.

    Raises:
      ValueError: they are not both (B, 1, H, W) of one size.
    """
    if logits.shape != mask.shape or logits.ndim != 4 or logits.shape[1] != 1:
        raise InputError(
            f"logits {tuple(logits.shape)} and mask {tuple(mask.shape)} must both be "
            "(batch, 1, height, width); the mask needs one channel and the head's size"
        )
    # Sums over 65,536 pixels: bfloat16 would lose every target.
    return torch.sigmoid(logits.float()), mask.float()


def mass_and_overlap(predicted: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """P, G and I of each image, (B,)."""
    axes = (1, 2, 3)
    return predicted.sum(dim=axes), mask.sum(dim=axes), (predicted * mask).sum(dim=axes)


def _iou(P: Tensor, G: Tensor, both: Tensor, form: Form) -> Tensor:
    smooth = ONE_PIXEL if form == "corrected" else 0.0
    return (both + smooth) / (P + G - both + smooth)


def _published_location(predicted: Tensor, mask: Tensor) -> Tensor:
    """Equation 5 to the letter: centroids are means over all pixels of position · probability."""
    height, width = mask.shape[2:]
    x = torch.arange(width, dtype=torch.float32, device=mask.device) / width
    y = torch.arange(height, dtype=torch.float32, device=mask.device) / height

    def polar(weight: Tensor) -> tuple[Tensor, Tensor]:
        cx = (weight * x).mean(dim=(1, 2, 3))
        cy = (weight * y[:, None]).mean(dim=(1, 2, 3))
        length = torch.sqrt(cx**2 + cy**2 + _SMOOTHING)
        return length, torch.atan(cy / (cx + _SMOOTHING))

    (length_p, angle_p), (length_g, angle_g) = polar(predicted), polar(mask)
    longer = torch.maximum(length_p, length_g) + _SMOOTHING
    return 1 - torch.minimum(length_p, length_g) / longer + _angle_term(angle_p, angle_g)


def _location(predicted: Tensor, P: Tensor, mask: Tensor, G: Tensor) -> Tensor:
    height, width = mask.shape[2:]
    x = (torch.arange(width, dtype=torch.float32, device=mask.device) + 0.5) / width
    y = (torch.arange(height, dtype=torch.float32, device=mask.device) + 0.5) / height

    def polar(weight: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        cx = ((weight * x).sum(dim=(1, 2, 3)) + CENTRE_MASS / 2) / (mass + CENTRE_MASS)
        cy = ((weight * y[:, None]).sum(dim=(1, 2, 3)) + CENTRE_MASS / 2) / (mass + CENTRE_MASS)
        # Both are at least half a pixel: neither the root nor the quotient needs smoothing.
        return torch.sqrt(cx**2 + cy**2), torch.atan(cy / cx)

    (length_p, angle_p), (length_g, angle_g) = polar(predicted, P), polar(mask, G)
    shorter, longer = torch.minimum(length_p, length_g), torch.maximum(length_p, length_g)
    return 1 - shorter / longer + _angle_term(angle_p, angle_g)


def _angle_term(angle_p: Tensor, angle_g: Tensor) -> Tensor:
    return 4 / math.pi**2 * (angle_p - angle_g) ** 2

"""Losses between logits and masks: the mean over the batch of a value per image, in float32.

Logits and masks are (B, 1, H, W), masks 0 or 1. With p the sigmoid of the logit, P = Σp,
G = Σmask and I = Σp·mask over an image; quotients have a pixel's worth added on both sides, so that
an image without a target is learnt from as well.
"""

import torch.nn.functional as F
from torch import Tensor

from jaxsr.models.losses.sls import ONE_PIXEL, checked_pair, mass_and_overlap, sls_loss, warmup_loss

_FOCAL_ALPHA, _FOCAL_GAMMA = 0.25, 2.0  # Lin et al. 2017, arXiv:1708.02002, section 5.1


def bce(logits: Tensor, mask: Tensor) -> Tensor:
    """Binary cross-entropy of every pixel."""
    checked_pair(logits, mask)
    return F.binary_cross_entropy_with_logits(logits.float(), mask.float())


def focal(logits: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy that pixels already right have little part in: α = 0.25, γ = 2."""
    predicted, mask = checked_pair(logits, mask)
    entropy = F.binary_cross_entropy_with_logits(logits.float(), mask, reduction="none")
    miss = predicted + mask - 2 * predicted * mask  # 1 − the probability of the true class
    alpha = _FOCAL_ALPHA * mask + (1 - _FOCAL_ALPHA) * (1 - mask)
    return (alpha * miss**_FOCAL_GAMMA * entropy).mean()


def dice(logits: Tensor, mask: Tensor) -> Tensor:
    """1 − (2I + 1) / (P + G + 1)."""
    P, G, both = mass_and_overlap(*checked_pair(logits, mask))
    return 1 - ((2 * both + ONE_PIXEL) / (P + G + ONE_PIXEL)).mean()


def iou(logits: Tensor, mask: Tensor) -> Tensor:
    """Soft IoU: 1 − (I + 1) / (P + G − I + 1)."""
    return warmup_loss(logits, mask, form="corrected")


def sls(logits: Tensor, mask: Tensor) -> Tensor:
    """MSHNet's scale and location sensitive loss, in its corrected form."""
    scale, location = sls_loss(logits, mask, form="corrected")
    return scale + location


MASK_LOSSES = {"bce": bce, "dice": dice, "iou": iou, "focal": focal, "sls": sls}
"""The losses by the name that options give them."""

"""Losses of the Fast-SRGAN family: between pixels, and of the two players.

Images and logits are NCHW; every loss is the mean over all its elements, in the inputs' dtype.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from jaxsr.errors import InputError


def pixel_loss(image: Tensor, target: Tensor, *, kind: Literal["smooth_l1", "l1"]) -> Tensor:
    """Mean distance between two image batches of one shape.

    Raises:
      ValueError: the shapes differ, which torch would broadcast.
    """
    if image.shape != target.shape:
        raise InputError(
            f"the output is {tuple(image.shape)} and the truth {tuple(target.shape)}; the high "
            "images must be exactly `scale` times the low ones, with the same channels"
        )
    return F.l1_loss(image, target) if kind == "l1" else F.smooth_l1_loss(image, target)


def logit_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean binary cross-entropy of patch logits (B, 1, h, w) with soft labels.

    Args:
      logits: what the discriminator says of each patch.
      labels: a target per patch, in the logits' shape, or per image, (B, 1, 1, 1).

    Raises:
      ValueError: the labels have neither shape.
    """
    if tuple(labels.shape) not in (tuple(logits.shape), (logits.shape[0], 1, 1, 1)):
        raise InputError(
            f"labels are {tuple(labels.shape)} for logits {tuple(logits.shape)}; draw them in the "
            f"logits' shape (`config.label_shape(crop=…)`) or as ({logits.shape[0]}, 1, 1, 1)"
        )
    return F.binary_cross_entropy_with_logits(logits, labels.expand_as(logits))

"""The loss of a discriminator's logits. It is the mean over all logits, in their dtype."""

import torch.nn.functional as F
from torch import Tensor

from jaxsr.errors import InputError


def logit_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean binary cross-entropy of patch logits (B, 1, h, w) with soft labels.

    Args:
      logits: the discriminator's output for each patch.
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

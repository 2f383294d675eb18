"""A detector's one phase: logit maps, one or at several scales, against a mask.

A batch holds `image` (B, C, H, W), normalised, and `mask` (B, 1, H, W), 0 or 1. Maps smaller than
the image are compared with the mask max-pooled to their size, so that no target vanishes.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.interop.train.objective import Batch, Objective, Phase, Player
from jaxsr.models.losses.terms import Term, register_losses, weighted_sum
from jaxsr.models.outputs import tensors_of


class MaskObjective(Objective):
    """The network and its losses."""

    phases = (Phase(name="main", players=(Player(network="network", loss="main_loss"),)),)

    def __init__(
        self,
        network: nn.Module,
        terms: Sequence[Term],
        *,
        scale_weights: Sequence[float] | None = None,
    ) -> None:
        """Args:
        network: gives one logit map (B, 1, H, W), or several, each an integer times smaller.
        terms: losses of a map and the mask of its size.
        scale_weights: of each map's loss, in the network's order. Default: equal ones.
        """
        super().__init__()
        self.network = network
        self._terms = tuple(terms)
        self._scale_weights = None if scale_weights is None else tuple(scale_weights)
        register_losses(self, terms)

    def share(self, batch: Batch) -> dict[str, Tensor]:
        """The network's maps: `logits_0`, `logits_1`, …"""
        maps = tensors_of(self.network(batch["image"]))
        return {f"logits_{index}": one for index, one in enumerate(maps)}

    def main_loss(self, shared: Batch, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of the losses, averaged over the maps by their weights."""
        maps = [shared[f"logits_{index}"] for index in range(len(shared))]
        weights = self._scale_weights or (1.0,) * len(maps)
        if len(weights) != len(maps):
            raise InputError(
                f"scale_weights={weights} are {len(weights)} for the network's {len(maps)} logit "
                f"maps; give {len(maps)}"
            )
        masks = [pooled_mask(batch["mask"], one) for one in maps]
        shares = [weight / sum(weights) for weight in weights]
        metrics = {
            term.name: weighted_sum(
                (share, term.value(one, mask))
                for share, one, mask in zip(shares, maps, masks, strict=True)
            )
            for term in self._terms
        }
        return weighted_sum((term.weight, metrics[term.name]) for term in self._terms), metrics


def pooled_mask(mask_B1HW: Tensor, logits: Tensor) -> Tensor:
    """The mask at the size of a logit map: a pixel is target where any that it covers is.

    Raises:
      ValueError: the map is not (B, 1, h, w), or its sides are not integer times smaller.
    """
    if logits.ndim != 4 or logits.shape[:2] != mask_B1HW.shape[:2]:
        raise InputError(
            f"the network gave {tuple(logits.shape)} for masks {tuple(mask_B1HW.shape)}; a logit "
            "map must be (batch, 1, height, width)"
        )
    size, smaller = mask_B1HW.shape[2:], logits.shape[2:]
    factors = [side // small for side, small in zip(size, smaller, strict=True)]
    if any(s * f != side or not f for s, f, side in zip(smaller, factors, size, strict=True)):
        raise InputError(
            f"the network gave a logit map of {smaller[0]}×{smaller[1]} px for images of "
            f"{size[0]}×{size[1]} px; each side must be the image's, or an integer times smaller"
        )
    return mask_B1HW if max(factors) == 1 else F.max_pool2d(mask_B1HW, factors)

"""MSHNet's two phases: the finest head alone, then all heads and their fusion.

A batch holds `image` (B, C, H, W), normalised, and `mask` (B, 1, H, W), 0 or 1. The phase `warmup`
covers the first epochs, `main` the rest; `MSHNetObjective.logits` is what each of them has trained
to answer with, for validation.
"""

from torch import Tensor, nn

from jaxsr.interop.train.objective import Batch, Objective, Phase, Player
from jaxsr.models.losses.sls import deep_supervision, warmup_loss
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.network import MSHNet

PHASES = (
    Phase(
        name="warmup",
        share="share_warmup",
        players=(Player(network="network", loss="warmup_loss"),),
    ),
    Phase(name="main", players=(Player(network="network", loss="main_loss"),)),
)

Terms = tuple[Tensor, dict[str, Tensor]]


class MSHNetObjective(Objective):
    """The network and its losses."""

    phases = PHASES

    def __init__(self, config: MSHNetConfig | None = None, *, network: nn.Module | None = None):
        """Args:
        config: the network and which form of the loss.
        network: takes the place of `MSHNet(config)`, with the same `forward`.
        """
        super().__init__()
        self.config = config or MSHNetConfig()
        self.network = MSHNet(self.config) if network is None else network

    def share_warmup(self, batch: Batch) -> dict[str, Tensor]:
        """The finest head's logits."""
        return {"head_0": self.network(batch["image"], "warmup")}

    def share(self, batch: Batch) -> dict[str, Tensor]:
        """The logits of the fusion (`final`) and of each head (`head_0`, …)."""
        final, *heads = self.network(batch["image"], "all")
        return {"final": final, **{f"head_{k}": head for k, head in enumerate(heads)}}

    def warmup_loss(self, shared: Batch, batch: Batch) -> Terms:
        """1 − IoU of the finest head."""
        loss = warmup_loss(shared["head_0"], batch["mask"], form=self.config.loss)
        return loss, {}

    def main_loss(self, shared: Batch, batch: Batch) -> Terms:
        """The SLS loss, averaged over the fusion and the heads."""
        outputs = [shared["final"]] + [shared[f"head_{k}"] for k in range(len(shared) - 1)]
        terms = deep_supervision(outputs, batch["mask"], form=self.config.loss)
        return terms.pop("loss"), terms

    def logits(self, image: Tensor) -> Tensor:
        """What a network trained past the warm-up answers: (B, 1, H, W)."""
        return self.network(image, "final")

    def warmup_logits(self, image: Tensor) -> Tensor:
        """What a network still in its warm-up answers: its fusion is not trained yet."""
        return self.network(image, "warmup")

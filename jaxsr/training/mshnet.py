"""Training MSHNet: a warm-up of the finest head alone, then all heads and their fusion.

Data and validation are those of every detector, see `detector_task.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict

from torch import Tensor

from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.train.objective import Batch, Objective, Phase, Player
from jaxsr.models.losses.sls import deep_supervision, warmup_loss
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.network import MSHNet
from jaxsr.training.detector_task import DetectorTask
from jaxsr.training.presets.mshnet import MSHNetPresets, MSHNetRun

Terms = tuple[Tensor, dict[str, Tensor]]


class MSHNetObjective(Objective):
    """The network and its losses, for `image` (B, C, H, W), normalised, and `mask` (B, 1, H, W)."""

    phases = (
        Phase(
            name="warmup",
            share="share_warmup",
            players=(Player(network="network", loss="warmup_loss"),),
        ),
        Phase(name="main", players=(Player(network="network", loss="main_loss"),)),
    )

    def __init__(self, config: MSHNetConfig | None = None) -> None:
        super().__init__()
        self.config = config or MSHNetConfig()
        self.network = MSHNet(self.config)

    def share_warmup(self, batch: Batch) -> dict[str, Tensor]:
        """Returns the finest head's logits."""
        return {"head_0": self.network(batch["image"], "warmup")}

    def share(self, batch: Batch) -> dict[str, Tensor]:
        """Returns the logits of the fusion (`final`) and of each head (`head_0`, …)."""
        final, *heads = self.network(batch["image"], "all")
        return {"final": final, **{f"head_{k}": head for k, head in enumerate(heads)}}

    def warmup_loss(self, shared: Batch, batch: Batch) -> Terms:
        """Returns 1 − IoU of the finest head."""
        loss = warmup_loss(shared["head_0"], batch["mask"], form=self.config.loss)
        return loss, {}

    def main_loss(self, shared: Batch, batch: Batch) -> Terms:
        """Returns the SLS loss, averaged over the fusion and the heads."""
        outputs = [shared["final"]] + [shared[f"head_{k}"] for k in range(len(shared) - 1)]
        terms = deep_supervision(outputs, batch["mask"], form=self.config.loss)
        return terms.pop("loss"), terms


class MSHNetTask(MSHNetPresets, DetectorTask):
    """MSHNet on infrared images, or on synthetic scenes if there are none."""

    config: MSHNetRun
    title = "mshnet"

    @property
    def loss_in_words(self) -> str:
        return self.config.model.loss

    @property
    def remat_blocks(self) -> Sequence[str]:
        levels = range(self.config.model.scales)
        return [f"{way}coder_{level}.*" for way in ("en", "de") for level in levels]

    def objective(self) -> MSHNetObjective:
        return MSHNetObjective(self.config.model)

    def inputs(self, phase: str) -> tuple:
        # The fusion of the heads is not trained before the main phase.
        return ("warmup",) if phase == "warmup" else ("final",)

    def builder(self) -> JsonObject:
        return {"family": "mshnet", "config": asdict(self.config.model)}

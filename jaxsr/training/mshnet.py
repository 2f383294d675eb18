"""Training MSHNet: a warm-up of the finest head alone, then all heads and their fusion.

Data and validation are those of every detector, `detector_task.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from torch import Tensor

from jaxsr.errors import InputError
from jaxsr.fields import number
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.train.objective import Batch, Objective, Phase, Player
from jaxsr.models.losses.sls import deep_supervision, warmup_loss
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.network import MSHNet
from jaxsr.training import detector_task
from jaxsr.training.detector_task import DetectorRun, DetectorTask

Terms = tuple[Tensor, dict[str, Tensor]]


class MSHNetObjective(Objective):
    """The network and its losses, of `image` (B, C, H, W), normalised, and `mask` (B, 1, H, W)."""

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


@dataclass(frozen=True, kw_only=True)
class MSHNetRun(DetectorRun):
    """Options of an MSHNet run."""

    model: MSHNetConfig = field(default_factory=MSHNetConfig)
    """The network and the form of its loss."""
    warmup_epochs: float = number(5, most=1e6)
    """Epochs that train the finest head alone, before the main phase."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_epochs < 0:
            raise InputError(f"warmup_epochs must not be negative, got {self.warmup_epochs}")

    @property
    def side_multiple(self) -> int:
        return self.model.multiple

    def phases(self, samples: int) -> tuple[tuple[str, int], ...]:
        """Both phases in steps, an epoch being of `samples` images.

        Raises:
          ValueError: the warm-up leaves no step to the main phase.
        """
        if self.warmup_epochs == 0:
            return (("main", self.total_steps),)
        # At least one, where a batch holds more than these epochs' images.
        warmup = max(round(self.warmup_epochs * samples / self.batch), 1)
        if warmup >= self.total_steps:
            raise InputError(
                f"warmup_epochs={self.warmup_epochs:g} takes {warmup} steps for {samples} images "
                f"and leaves none of steps={self.total_steps} to the main phase; give the run "
                "more steps, or a smaller warmup_epochs (0: no warm-up)"
            )
        return (("warmup", warmup), ("main", self.total_steps - warmup))


# The paper's recipe: the defaults above are its augmentation, sizes and warm-up.
PAPER = MSHNetRun(
    model=MSHNetConfig(loss="paper"),
    epochs=400,
    batch=4,
    optimizer="adagrad",
    lr=0.05,
)

# The toolbox takes the same DNA-Net from 87 to 94 IoU on NUDT-SIRST.
TOOLBOX = MSHNetRun(
    model=MSHNetConfig(loss="corrected"),
    epochs=400,
    **detector_task.TOOLBOX,
)

# Shows that training works, and no more.
QUICK = MSHNetRun(
    model=MSHNetConfig(loss="corrected"),
    epochs=6,
    warmup_epochs=1,
    **detector_task.QUICK,
)


class MSHNetTask(DetectorTask):
    """MSHNet on infrared images; synthetic scenes where there are none."""

    Config = MSHNetRun
    presets = {"quick": QUICK, "mshnet-paper": PAPER, "mshnet-toolbox": TOOLBOX}  # noqa: RUF012
    default_presets = ("quick", "mshnet-paper")
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

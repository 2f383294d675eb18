"""Training MSHNet: a warm-up of the finest head alone, then all heads and their fusion.

Data and validation are those of every detector, `segmentation.py`.
"""

import dataclasses
from dataclasses import dataclass, field

from jaxsr.errors import InputError
from jaxsr.fields import number
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.objective import MSHNetObjective
from jaxsr.training.networks import Networks
from jaxsr.training.segmentation import Segmentation, SegmentationRun


@dataclass(frozen=True, kw_only=True)
class MSHNetRun(SegmentationRun):
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


CONFIG = MSHNetRun


# The paper's recipe: the defaults above are its augmentation, sizes and warm-up.
PAPER = MSHNetRun(
    model=MSHNetConfig(loss="paper"),
    epochs=400,
    batch=4,
    optimizer="adagrad",
    lr=0.05,
)

# In the manner of the BasicIRSTD toolbox, which takes the same DNA-Net from 87 to 94 IoU on
# NUDT-SIRST.
TOOLBOX = MSHNetRun(
    model=MSHNetConfig(loss="corrected"),
    epochs=400,
    batch=16,
    optimizer="adam",
    lr=5e-4,
    augment="patch",
    normalise="dataset",
    evaluate="native",
)

# Minutes on two CPU cores, on synthetic scenes: shows that training works, and no more.
QUICK = dataclasses.replace(
    TOOLBOX,
    epochs=6,
    warmup_epochs=1,
    batch=8,
    base_size=128,
    crop_size=128,
    evaluate="base",
    scenes=128,
    schedule="cosine",
    lr=1e-3,
)

PRESET_RUNS = {"quick": QUICK, "mshnet-paper": PAPER, "mshnet-toolbox": TOOLBOX}
"""The presets by the name that the command line knows."""
DEFAULT_PRESETS = ("quick", "mshnet-paper")
"""`quick` for the synthetic scenes, the paper's recipe for a data set."""


def build(config: MSHNetRun) -> Segmentation:
    """The task of a run."""
    return Segmentation(config, "mshnet", _networks)


def _networks(config: MSHNetRun) -> Networks:
    objective = MSHNetObjective(config.model)
    stages = [name for name, _ in objective.network.named_children()]
    return Networks(
        objective=objective,
        blocks=[f"network.{n}.*" for n in stages if n.startswith(("encoder", "decoder"))],
        title="mshnet",
        loss=config.model.loss,
        description={"family": "mshnet", "config": dataclasses.asdict(config.model)},
        # The fusion of the heads is not trained before the main phase.
        extra_inputs={"warmup": ("warmup",), "main": ("final",)},
    )

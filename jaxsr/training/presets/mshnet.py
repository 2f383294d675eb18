"""Options and presets of MSHNet."""

from dataclasses import dataclass, field

from jaxsr.errors import InputError
from jaxsr.interop.fields import number
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.training.presets import detectors
from jaxsr.training.presets.detectors import DetectorRun
from jaxsr.training.task_config import TaskOptions


@dataclass(frozen=True, kw_only=True)
class MSHNetRun(DetectorRun):
    """Options of an MSHNet run."""

    model: MSHNetConfig = field(default_factory=MSHNetConfig)
    """The network and the form of its loss."""
    warmup_epochs: float = number(5, least=0, most=1e6)
    """Epochs that train only the finest head, before the main phase."""

    @property
    def side_multiple(self) -> int:
        return self.model.multiple

    def phases(self, samples: int) -> tuple[tuple[str, int], ...]:
        """Returns both phases in steps, for epochs of `samples` images.

        Raises:
          ValueError: the warm-up leaves no steps for the main phase.
        """
        if self.warmup_epochs == 0:
            return (("main", self.total_steps),)
        # At least one step, if a batch has more images than these epochs.
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

# In the toolbox it takes the same DNA-Net from 87 to 94 IoU on NUDT-SIRST.
TOOLBOX = MSHNetRun(
    model=MSHNetConfig(loss="corrected"),
    epochs=400,
    **detectors.TOOLBOX,
)

# Only shows that training works.
QUICK = MSHNetRun(
    model=MSHNetConfig(loss="corrected"),
    epochs=6,
    warmup_epochs=1,
    **detectors.QUICK,
)


class MSHNetPresets(TaskOptions):
    """Options and presets of MSHNet."""

    Config = MSHNetRun
    presets = {"quick": QUICK, "mshnet-paper": PAPER, "mshnet-toolbox": TOOLBOX}  # noqa: RUF012
    default_presets = ("quick", "mshnet-paper")

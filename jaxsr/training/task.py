"""A task of the user's own: its network, its loss in torch code, and its data.

    class Denoising(jaxsr.Task):
        class Config(jaxsr.TaskConfig):
            lr = 3e-3
            width: int = 16

        def network(self):
            return Denoiser(self.config.width)

        def loss(self, network, batch):
            return F.mse_loss(network(batch["noisy"]), batch["clean"])

        def train_data(self):
            return NoisyPictures(self.config.data)

`python -m jaxsr.train my_file:Denoising` trains it. docs/own-task.md has the whole protocol.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.interop.train.objective import Objective, Phase, Player
from jaxsr.training.config_file import ConfigFile
from jaxsr.training.task_config import TaskOptions
from jaxsr.training.task_guards import (
    Batch,
    naming_batch,
    refusal,
    refusing_state,
    with_long_integers,
)
from jaxsr.training.validation import Network, ValidationResult

if TYPE_CHECKING:
    import jax
    import optax

    from jaxsr.interop.train.optimizers import OptimizerConfig

Loss = Tensor | tuple[Tensor, Mapping[str, Tensor]]


class Task(TaskOptions):
    """Base of users' tasks: `network`, `loss` and `train_data` are needed, all else is optional.

    The object itself holds what the data and the losses need; the network is passed to each method,
    because the engines run it with their own arrays.
    """

    metric: ClassVar[str] = "loss"
    """Validation figure that ranks checkpoints."""
    best: ClassVar[Literal["max", "min"]] = "min"
    """Which way the metric is better."""
    item_names: ClassVar[Sequence[str]] = ("x", "y")
    """Names in the batch for the parts of items that are tuples."""
    remat_blocks: Sequence[str] = ()
    """Submodules of the network that `--remat` recomputes, `fnmatch` patterns. Default: see
    `jaxsr.training.remat`."""
    sharding_rules: ClassVar[Mapping[str, str]] = {}
    """How `--mesh tensor=N` splits parameters: pattern of the module's name -> `colwise`,
    `rowwise` or `replicate`. Default: what transformers' configuration plans, if it is one."""
    exported: ClassVar[str] = "network"
    """The objective's network that is validated and exported."""
    sample_name: ClassVar[str] = "samples"
    """Name of samples in the rate: `images`, `rows`."""
    metadata: ClassVar[Mapping[str, Any]] = {}
    """Metadata of the exported file for `restore` and `detect`: `channels`, `value_range`,
    `multiple` of the sides of images; `input` as a detector's run folder has it."""

    def __init__(self, config: Any) -> None:
        """Keeps the options; a subclass that needs more calls this first."""
        self.config = config

    def network(self) -> nn.Module:
        """The network with its initial weights; the run's seed is set."""
        raise self._lacks("network")

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        """A scalar, the mean over the batch's samples; with it, scalars to log, by name.

        Random numbers that it draws differ from step to step, and repeat after a restart.
        """
        raise self._lacks("loss")

    def train_data(self) -> Any:
        """A dataset, a table, an iterable, or a function of the step number."""
        raise self._lacks("train_data")

    def validation_data(self) -> Any:
        """Data to validate on, None for no validation. A function of the step is none."""
        return None

    def metrics(self, network: nn.Module, batch: Batch) -> Mapping[str, Any]:
        """Figures on a validation batch, beside the loss: the mean over its samples, or a pair.

        A pair (numerator, denominator) is summed over all batches, then divided.
        """
        return {}

    def pictures(self, network: nn.Module, batch: Batch) -> Tensor | None:
        """Images (n, 1 or 3, h, w) in [0, 1] of the first validation batch, to look at."""
        return None

    def collate(self, items: list) -> Mapping[str, Any]:
        """A batch from items, with the samples along the first axis. Default: fields are stacked.

        On several hosts each collates its own rows.
        """
        raise self._lacks("collate")

    def objective(self) -> Objective:
        """The networks and losses. Default: `network` and `loss`; several networks need their own,
        see `jaxsr.interop.train.objective`.
        """
        return SingleNetwork(self)

    def phases(self, objective: Objective) -> Sequence[tuple[str, int]]:
        """Names of the objective's phases and the steps each takes, which add up to the run's."""
        names = [phase.name for phase in objective.phases]
        if len(names) != 1:
            raise InputError(
                f"the objective of {type(self).__name__} has the phases {', '.join(names)}; "
                "define phases, which says how many steps each takes"
            )
        return ((names[0], self.config.total_steps),)

    def prepare(self, batch: Mapping[str, Any], key: "jax.Array") -> Mapping[str, Any]:
        """The losses' batch from the data's, on the device: JAX code, compiled into the step.

        Crops, damage and augmentation go here, with `jaxsr.ops` for example. Validation data do not
        pass through it, but through `prepare_validation`.

        Args:
          batch: JAX arrays by name: of the data, of `constants`, and `sample`, int32, the number of
            each sample in the run.
          key: of random numbers; another for each step, the same after a restart and on any mesh.
        """
        return batch

    def prepare_validation(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """The batch of `loss` and `metrics` from that of the validation data: JAX code, compiled.

        `batch` has arrays of the data, and of `constants`.
        """
        return batch

    def constants(self) -> Mapping[str, Any]:
        """Arrays, or trees of them, that lie on every device and are in each batch of `prepare`."""
        return {}

    def optimizer(self, network: str) -> "OptimizerConfig | optax.GradientTransformation":
        """The optimiser of one of the objective's networks. Default: as the options say.

        An `OptimizerConfig` works on both engines, for instance
        `dataclasses.replace(self.config.optimizer_config, lr=1e-3)`; a transformation of optax,
        with a learning rate of its own, on JAX.
        """
        return self.config.optimizer_config

    def inputs(self, phase: str) -> tuple:
        """Further arguments of the exported network, after the images, in this phase."""
        return ()

    def validate(self, network: Network) -> ValidationResult:
        """Figures of the network on data that it never trained on.

        Default: the means of `loss` and `metrics` over `validation_data`.
        """
        raise self._lacks("validate")

    def files(self) -> Mapping[str, str]:
        """Samples of training and validation, by name: compared between hosts, and on resuming."""
        raise self._lacks("files")

    def describe(self) -> Mapping[str, Any]:
        """Metadata of the exported weights: what builds the network. Default: this task."""
        raise self._lacks("describe")

    def summary(self, objective: Objective) -> Sequence[str]:
        """Lines that tell a person what the run is, printed once at its start."""
        raise self._lacks("summary")

    @classmethod
    def defines(cls, *methods: str) -> bool:
        """Whether one of these methods is a subclass's own."""
        return any(getattr(cls, name) is not getattr(Task, name) for name in methods)

    @classmethod
    def untrained_network(cls, options: Mapping[str, Any]) -> nn.Module:
        """The exported network of a run with these options, before its weights are loaded."""
        config = ConfigFile(family=cls.__name__, options=options).run_config(cls.Config)
        task = cls(config)
        return task.objective().get_submodule(task.exported)

    def _lacks(self, method: str) -> InputError:
        return refusal(f"{type(self).__name__} defines no {method}; docs/own-task.md shows one")


class SingleNetwork(Objective):
    """One network and its loss."""

    phases = (
        Phase(
            name="train",
            players=(Player(network="network", loss="loss", through_shared=False),),
        ),
    )

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network = task.network()
        if not isinstance(self.network, nn.Module):
            raise InputError(
                f"{type(task).__name__}.network returned a {type(self.network).__name__}, not a "
                "torch module; return an object such as nn.Linear(3, 1)"
            )
        self._name = f"{type(task).__name__}.loss"
        # A function, which copies of the module share: the task holds the data.
        self._loss = lambda network, batch: loss_and_metrics(task, network, batch)

    def share(self, batch: Batch) -> Mapping[str, Tensor]:
        """Nothing: there is one player."""
        return {}

    def loss(self, shared: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The task's loss.

        Raises:
          InputError: it depends on no parameter that is trained.
        """
        loss, metrics = self._loss(self.network, batch)
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise refusal(
                f"{self._name} depends on no parameter that is trained; compute it from what "
                "network(...) returns, without detach(), no_grad() or item()"
            )
        return loss, metrics


def loss_and_metrics(
    task: Task, network: nn.Module, batch: Batch
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch, checked.

    Raises:
      InputError: it is not a scalar of floats, or the task's numbers changed.
    """
    name = f"{type(task).__name__}.loss"
    with refusing_state(task, "loss"), naming_batch(batch):
        result: Any = task.loss(network, with_long_integers(batch))
    loss, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(loss, Tensor) or not isinstance(metrics, Mapping):
        raise refusal(
            f"{name} returned {type(result).__name__}; return a scalar tensor, or one and a "
            "dictionary of scalars to log"
        )
    if loss.ndim or not loss.is_floating_point():
        raise refusal(
            f"{name} returned a tensor of shape {tuple(loss.shape)}, {loss.dtype}; return one "
            "float, the mean over the batch: loss.mean()"
        )
    for metric, value in metrics.items():
        if not isinstance(value, Tensor) or value.ndim:
            raise refusal(f"{name} returned {metric!r} that is not a scalar tensor")
    return loss, {metric: value.float() for metric, value in metrics.items()}

"""A user's own task: its network, its loss in torch code, and its data.

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

`python -m jaxsr.train my_file:Denoising` trains it. docs/own-task.md describes every method.
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
    """Base class of users' tasks. `network`, `loss` and `train_data` are required.

    The task keeps what the data and the losses need. Each method receives the network as an
    argument, because the engines run it with their own arrays.
    """

    metric: ClassVar[str] = "loss"
    """Validation figure that ranks checkpoints."""
    best: ClassVar[Literal["max", "min"]] = "min"
    """Whether the largest or the smallest value of the metric is best."""
    item_names: ClassVar[Sequence[str]] = ("x", "y")
    """Names in the batch for the parts of an item that is a tuple."""
    remat_blocks: Sequence[str] = ()
    """Submodules of the network that `--remat` recomputes, as `fnmatch` patterns. Default: see
    `jaxsr.training.remat`."""
    sharding_rules: ClassVar[Mapping[str, str]] = {}
    """How `--mesh tensor=N` splits parameters: pattern of the module's name -> `colwise`, `rowwise`
    or `replicate`. Default: the plan in the network's configuration, if transformers provides
    one."""
    exported: ClassVar[str] = "network"
    """The network of the objective that is validated and exported."""
    sample_name: ClassVar[str] = "samples"
    """Unit of the rate in the log: `images`, `rows`."""
    metadata: ClassVar[Mapping[str, Any]] = {}
    """Metadata of the exported file for `restore` and `detect`: `channels`, `value_range`, the
    `multiple` that the sides of images must have, and a detector's `input`."""

    def __init__(self, config: Any) -> None:
        """Stores the options; a subclass that needs more calls this first."""
        self.config = config

    def network(self) -> nn.Module:
        """Returns the network with its initial weights; the run's seed is set before the call."""
        raise self._lacks("network")

    def loss(self, network: nn.Module, batch: Batch) -> Loss:
        """Returns the loss, a scalar mean over the samples; may add a dictionary of scalars to log.

        Its random numbers differ from step to step and repeat after a restart.
        """
        raise self._lacks("loss")

    def train_data(self) -> Any:
        """Returns a dataset, a table, an iterable, or a function of the step number."""
        raise self._lacks("train_data")

    def validation_data(self) -> Any:
        """Returns data to validate on, but no function of the step, or None to skip validation."""
        return None

    def metrics(self, network: nn.Module, batch: Batch) -> Mapping[str, Any]:
        """Returns further figures on a validation batch, each a mean over its samples or a pair.

        A pair (numerator, denominator) is summed over all batches, then divided.
        """
        return {}

    def pictures(self, network: nn.Module, batch: Batch) -> Tensor | None:
        """Returns images (n, 1 or 3, h, w) in [0, 1] that show the first validation batch."""
        return None

    def collate(self, items: list) -> Mapping[str, Any]:
        """Joins items into a batch, samples along the first axis. Default: stacks each field.

        On several hosts each host collates its own rows.
        """
        raise self._lacks("collate")

    def objective(self) -> Objective:
        """Returns the networks and losses. Default: `network` and `loss`.

        Override it to train several networks, see `jaxsr.interop.train.objective`.
        """
        return SingleNetwork(self)

    def phases(self, objective: Objective) -> Sequence[tuple[str, int]]:
        """Returns the objective's phases and the steps of each, which must add up to the run's."""
        names = [phase.name for phase in objective.phases]
        if len(names) != 1:
            raise InputError(
                f"the objective of {type(self).__name__} has the phases {', '.join(names)}; "
                "define phases, which says how many steps each takes"
            )
        return ((names[0], self.config.total_steps),)

    def prepare(self, batch: Mapping[str, Any], key: "jax.Array") -> Mapping[str, Any]:
        """Turns a batch of the data into the batch of the losses: JAX code, compiled into the step.

        Crops, degradation and augmentation belong here, for example with `jaxsr.ops`. Validation
        data go through `prepare_validation` instead.

        Args:
          batch: JAX arrays by name: those of the data, those of `constants`, and `sample`, int32,
            the number of each sample in the run.
          key: random key; it differs at each step, and is the same after a restart and on any mesh.
        """
        return batch

    def prepare_validation(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turns a batch of the validation data into that of `loss` and `metrics`.

        This is JAX code, and is compiled. `batch` has the arrays of the data and those of
        `constants`.
        """
        return batch

    def constants(self) -> Mapping[str, Any]:
        """Returns arrays, or trees of arrays, that stay on every device for each `prepare`."""
        return {}

    def optimizer(self, network: str) -> "OptimizerConfig | optax.GradientTransformation":
        """Returns the optimiser of one of the objective's networks. Default: set by the options.

        An `OptimizerConfig` works on both engines, for instance
        `dataclasses.replace(self.config.optimizer_config, lr=1e-3)`. A transformation of optax,
        with a learning rate of its own, works on JAX alone.
        """
        return self.config.optimizer_config

    def inputs(self, phase: str) -> tuple:
        """Returns the exported network's arguments after the images, in this phase."""
        return ()

    def validate(self, network: Network) -> ValidationResult:
        """Measures the network on data that it was not trained on.

        Default: the means of `loss` and `metrics` over `validation_data`.
        """
        raise self._lacks("validate")

    def files(self) -> Mapping[str, str]:
        """Returns the names of all samples, which hosts and resumed runs compare."""
        raise self._lacks("files")

    def describe(self) -> Mapping[str, Any]:
        """Returns the metadata of the exported weights, which rebuild it. Default: this task."""
        raise self._lacks("describe")

    def summary(self, objective: Objective) -> Sequence[str]:
        """Returns lines that describe the run, printed once at its start."""
        raise self._lacks("summary")

    @classmethod
    def defines(cls, *methods: str) -> bool:
        """Whether a subclass overrides one of these methods."""
        return any(getattr(cls, name) is not getattr(Task, name) for name in methods)

    @classmethod
    def untrained_network(cls, options: Mapping[str, Any]) -> nn.Module:
        """Returns the exported network of a run with these options, before weights are loaded."""
        config = ConfigFile(family=cls.__name__, options=options).run_config(cls.Config)
        task = cls(config)
        return task.objective().get_submodule(task.exported)

    def _lacks(self, method: str) -> InputError:
        return refusal(
            f"{type(self).__name__} does not define {method}; docs/own-task.md shows how"
        )


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
        # A function, which copies of the module share: the task may hold the data.
        self._loss = lambda network, batch: loss_and_metrics(task, network, batch)

    def share(self, batch: Batch) -> Mapping[str, Tensor]:
        """Returns an empty dictionary: there is only one player."""
        return {}

    def loss(self, shared: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the task's loss.

        Raises:
          InputError: the loss depends on no parameter that is trained.
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
    """Computes and checks the loss of a batch.

    Raises:
      InputError: the loss is not a floating-point scalar, or the method changes the task's numbers.
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

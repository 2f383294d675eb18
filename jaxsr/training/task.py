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

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, dataclass_transform

import torch
from torch import Tensor, nn

from jaxsr.data.photos import available_cpus
from jaxsr.errors import InputError
from jaxsr.fields import number
from jaxsr.interop.train.objective import Objective, Phase, Player
from jaxsr.training.config import CacheOptions, RunConfig
from jaxsr.training.config_file import ConfigFile
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


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class TaskConfig(CacheOptions, RunConfig):
    """Options of a task; a subclass adds its own, and needs no decorator.

    `lr = 3e-3` in a subclass gives an option of the base another default; a name without a type
    that no base has is refused.
    """

    batch: int = 16
    """Samples per step, over the whole mesh and all hosts."""
    data: Path | None = None
    """Where the data to train on is; the task decides how it is read."""
    val: Path | None = None
    """Where the data to validate on is; the task decides how it is read."""
    steps: int | None = 1000
    """Optimiser steps of the whole run; either these or epochs."""
    shuffle: bool = True
    """Each epoch is a fresh permutation of the data; off: the data's own order."""
    workers: int = 0
    """Processes that load data ahead; 0 loads in this process between steps."""
    cache: Literal["off", "auto", "device", "host"] = "off"
    """Where items stay, once they are read, if they are the same each time: on the device, in host
    memory, or auto: on the device if they fit resident_gb. A thread then reads ahead."""
    prefetch: int | None = number(None, least=0, most=1024)
    """Batches that a thread makes ahead of the step, of data that draw no random numbers from
    generators of the process. Default: 4 where cache keeps items, else 0."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        types = {field.name: field.type for field in dataclasses.fields(cls)}
        stated = inspect.get_annotations(cls)
        for name, value in vars(cls).items():
            is_value = isinstance(value, int | float | str | tuple | list | Path | None)
            if is_value and not (name in types or name in stated or name.startswith("_")):
                raise InputError(
                    f"{cls.__qualname__}.{name} = {value!r} is no option that every run has; give "
                    f"one of your own a type ({name}: {type(value).__name__} = {value!r}), or "
                    "correct the name"
                )
        # A plain `lr = 3e-3` would not reach the field that it names.
        cls.__annotations__ = {n: types[n] for n in vars(cls) if n in types} | stated
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(0, "workers")
        processors = available_cpus()
        if self.workers > 2 * processors:
            raise InputError(
                f"workers must be at most {2 * processors}, twice the processors that this process "
                f"may use, got {self.workers}: more only wait for one another"
            )
        if self.workers and (self.cache != "off" or self.prefetch):
            raise InputError(
                f"workers={self.workers} are processes that load ahead, each without what another "
                f"has; leave them out, or cache={self.cache} and prefetch={self.prefetch}"
            )


class Task:
    """Base of users' tasks: `network`, `loss` and `train_data` are needed, all else is optional.

    The object itself holds what the data and the losses need; the network is passed to each method,
    because the engines run it with their own arrays.
    """

    Config: ClassVar[type[RunConfig]] = TaskConfig
    """Options of the run, read from the command line."""
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
    """What samples are called in the rate: `images`, `rows`."""
    metadata: ClassVar[Mapping[str, Any]] = {}
    """What the exported file tells `restore` and `detect`: `channels`, `value_range`, `multiple`
    of the sides of pictures; `input` as a detector's run folder has it."""
    presets: ClassVar[Mapping[str, RunConfig]] = {}
    """Options by the name that `--preset` takes. Default: one, `default`."""
    default_presets: ClassVar[tuple[str, str]] = ("default", "default")
    """The preset without `--data`, and with it."""

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
        """What updates one of the objective's networks. Default: as the options say.

        An `OptimizerConfig` works on both engines, for instance
        `dataclasses.replace(self.config.optimizer_config, lr=1e-3)`; a transformation of optax,
        with a learning rate of its own, on JAX.
        """
        return self.config.optimizer_config

    def inputs(self, phase: str) -> tuple:
        """What the exported network takes after the images, to answer in this phase."""
        return ()

    def validate(self, network: Network) -> ValidationResult:
        """Figures of the network on data that it never trained on.

        Default: the means of `loss` and `metrics` over `validation_data`.
        """
        raise self._lacks("validate")

    def files(self) -> Mapping[str, str]:
        """What is trained and validated on, by name: compared between hosts, and on resuming."""
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

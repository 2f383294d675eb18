"""What the loop asks of a model family, and the families there are."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from jaxsr.errors import InputError, printable
from jaxsr.interop.annotations import JsonObject, PyTree
from jaxsr.models.registry import find_family, trainable_families
from jaxsr.training.config import RunConfig

if TYPE_CHECKING:
    import jax
    from torch import nn


class Network(Protocol):
    """The exported network in evaluation mode."""

    def __call__(self, images: np.ndarray, **named: np.ndarray) -> np.ndarray:
        """Float32 NCHW in, float32 NCHW out; on one device.

        Arrays given by keyword go to the torch module's `forward` under that name.
        """
        ...

    def run(
        self, module: "nn.Module", method: str, batch: Mapping[str, np.ndarray], *, seed: int
    ) -> PyTree:
        """A method of a torch module that holds this network, on a batch split over the mesh.

        Args:
          module: its attribute `network` is the exported network, and it has no other parameters.
          method: takes the batch.
          batch: all rows, equal on all hosts.
          seed: of the random numbers that the method draws.

        Returns:
          The method's result with NumPy arrays for tensors.
        """
        ...


HostBatches = AbstractContextManager[Iterator[dict[str, np.ndarray]]]


@dataclass(frozen=True)
class ValidationResult:
    """What a validation found."""

    metrics: Mapping[str, float]
    """Figures by name, the convention in the name where there are several."""
    picture: np.ndarray | None
    """uint8 (h, w, 3) for a person to look at."""


class Trainable(Protocol):
    """One run's data, objective and validation, built from its configuration."""

    @property
    def family(self) -> str: ...

    @property
    def config(self) -> RunConfig:
        """The run's configuration, epochs turned into steps."""
        ...

    @property
    def objective(self) -> Any:
        """The networks and losses, see `jaxsr.interop.train.objective`."""
        ...

    @property
    def exported(self) -> str:
        """The network that is validated and exported."""
        ...

    @property
    def metric(self) -> str | None:
        """Validation figure that ranks checkpoints; None where nothing is validated."""
        ...

    @property
    def best(self) -> Literal["max", "min"]:
        """Which way the metric is better."""
        ...

    @property
    def phases(self) -> Sequence[tuple[str, int]]:
        """Names of the phases and the steps each takes, in order."""
        ...

    @property
    def blocks(self) -> Sequence[str]:
        """Names of the objective's submodules that `remat` recomputes."""
        ...

    @property
    def sample_name(self) -> str:
        """What samples are called, in the plural."""
        ...

    def prepare(self, batch: Mapping[str, PyTree], key: "jax.Array") -> Mapping[str, PyTree]:
        """The objective's batch from the host's, under `jit`; `key` is the run's."""
        ...

    def constants(self, sharding: "jax.sharding.Sharding | None") -> Mapping[str, PyTree]:
        """Trees of arrays that every batch carries unchanged, put once where `sharding` says."""
        ...

    def batches(self, start_step: int, *, host: int, hosts: int) -> HostBatches:
        """This host's rows of the batches of `start_step` and all later steps."""
        ...

    def extra_inputs(self, phase: str) -> tuple:
        """What the exported network's `forward` takes after the images, to answer in this phase."""
        ...

    def validate(self, network: Network) -> ValidationResult:
        """Figures of the network on data that it never trained on."""
        ...

    def files(self) -> dict[str, str]:
        """The size of every file that is trained or validated on, by name: equal on all hosts."""
        ...

    def describe(self) -> JsonObject:
        """The model as JSON: what a weights file must say for another program to build it."""
        ...

    def summary(self) -> Sequence[str]:
        """Lines that tell a person what the run is, printed once at its start."""
        ...


CUSTOM = {
    "super-resolution": "jaxsr.training.custom_super_resolution",
    "detection": "jaxsr.training.custom_detection",
}
"""Module that trains a network of the user's, by the name that stands for a family's."""


def load_family(name: str) -> Any:
    """What trains a family: `CONFIG` (a subclass of `RunConfig`), `PRESET_RUNS`,
    `DEFAULT_PRESETS` (without data and with it) and `build`.

    Args:
      name: of a family, or `package.module:Class` for a user's task.

    Raises:
      ValueError: there is no such family or task, or nothing trains it.
    """
    if name in CUSTOM:
        return import_module(CUSTOM[name])
    if ":" in name:
        from jaxsr.training.task_run import TaskFamily

        return TaskFamily(name)
    if name not in (trainable := trainable_families()):
        raise InputError(
            f"no model family {name!r} to train; there are {', '.join(trainable)}, with --network "
            f"{' and '.join(CUSTOM)}, and a task of your own is module:Class, for instance "
            f"{printable(name, 80)}:MyTask"
        )
    module = find_family(name).training
    assert module is not None
    return import_module(module)


def phase_at(phases: Sequence[tuple[str, int]], step: int) -> str:
    """The phase that a step belongs to, steps counted from 0."""
    end = 0
    for name, steps in phases:
        end += steps
        if step < end:
            return name
    raise InputError(f"step {step} lies beyond the phases, which end at {end}")


def check_phases(phases: Sequence[tuple[str, int]], steps: int) -> None:
    """Refuses phases that don't fill the run.

    Raises:
      ValueError: a phase has no step, or the phases don't add up to the run's steps.
    """
    listed = ", ".join(f"{name} {length}" for name, length in phases)
    for name, length in phases:
        if length < 1:
            raise InputError(
                f"the {name} phase would get {length} of steps={steps} ({listed}); "
                "give the run more steps, or the other phases fewer"
            )
    total = sum(length for _, length in phases)
    if total != steps:
        raise InputError(
            f"the phases ({listed}) take {total} steps, but the run has steps={steps}; "
            "make them equal"
        )

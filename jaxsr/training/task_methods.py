"""A task's methods as modules that both engines run, and checks of these methods."""

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.module import Arrays, to_jax
from jaxsr.interop.train.objective import Objective, Phase, checked_loss
from jaxsr.training.task import Task, loss_and_metrics
from jaxsr.training.task_guards import (
    Batch,
    naming_batch,
    refusal,
    refusing_state,
    with_long_integers,
)


def check_methods(task: Task) -> None:
    """Refuses methods with wrong parameters, and a `best` that is neither `max` nor `min`.

    Raises:
      InputError: a method or `best` is wrong; the message has the right form.
    """
    name = type(task).__name__
    arguments = dict.fromkeys(("loss", "metrics", "pictures"), ("network", "batch"))
    arguments |= {
        "prepare": ("batch", "key"),
        "prepare_validation": ("batch",),
        "optimizer": ("network",),
    }
    for method, taken in arguments.items():
        try:
            inspect.signature(getattr(task, method)).bind(*taken)
        except TypeError as error:
            raise InputError(
                f"{name}.{method} takes other arguments than (self, {', '.join(taken)}): {error}"
            ) from error
    if task.best not in ("max", "min"):
        raise InputError(f"{name}.best must be 'max' or 'min', got {task.best!r}")


class ValidationMethods(nn.Module):
    """Computations on a validation batch, as methods of a module that contains the network."""

    def __init__(self, task: Task, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._task = lambda: task  # a function, which copies of the module share

    def measure(self, batch: Batch) -> dict[str, Tensor | tuple]:
        """Returns every figure, a scalar or a pair."""
        task = self._task()
        figures: dict[str, Tensor | tuple] = {}
        if task.defines("loss"):
            loss, reported = loss_and_metrics(task, self.network, batch)
            figures |= {"loss": loss, **reported}
        with refusing_state(task, "metrics"), naming_batch(batch):
            measured: Any = task.metrics(self.network, with_long_integers(batch))
        if not isinstance(measured, Mapping):
            raise refusal(
                f"{type(task).__name__}.metrics returned {type(measured).__name__}; return a "
                "dictionary of scalars, or of pairs of a numerator and a denominator"
            )
        return figures | dict(measured)

    def picture(self, batch: Batch) -> Tensor:
        """Returns the task's images."""
        task = self._task()
        with naming_batch(batch):
            pictures: Any = task.pictures(self.network, with_long_integers(batch))
        shape = tuple(getattr(pictures, "shape", ()))
        if len(shape) != 4 or shape[1] not in (1, 3):
            form = f"shape {shape}" if shape else type(pictures).__name__
            raise refusal(
                f"{type(task).__name__}.pictures returned {form}; return images (n, 1 or 3, h, w) "
                "in [0, 1]"
            )
        return pictures


class PhaseTrial(nn.Module):
    """One phase of an objective as a method that takes the batch."""

    def __init__(self, objective: Objective, phase: Phase) -> None:
        super().__init__()
        self.objective, self._phase = objective, phase

    def losses(self, batch: Batch) -> list[Tensor]:
        """Returns the loss of each player."""
        shared = getattr(self.objective, self._phase.share)(batch)
        players = self._phase.players
        return [
            checked_loss(getattr(self.objective, p.loss)(shared, batch), p.loss)[0] for p in players
        ]


def traced_result(
    module: nn.Module, method: str, batch: Mapping[str, np.ndarray], *, train: bool = False
) -> PyTree:
    """Traces a torch module's method for a batch; returns shapes and dtypes without computing."""
    model = to_jax(module)

    def run(params: Arrays, buffers: Arrays, batch: Arrays) -> PyTree:
        key = jax.random.key(0)
        return model.apply(params, buffers, batch, rng=key, train=train, method=method)[0]

    return jax.eval_shape(run, model.params, model.buffers, dict(batch))

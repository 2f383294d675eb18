"""A task's methods as modules that both engines run, and what is refused of them."""

import inspect
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from jaxsr.data.prefetch import filling_paused
from jaxsr.errors import InputError, UserError
from jaxsr.interop.hooks import holds_inputs
from jaxsr.interop.python_state import Snapshot, kept_change
from jaxsr.interop.train.objective import Objective, Phase, Player, checked_loss
from jaxsr.training.task_data import generator_states

if TYPE_CHECKING:
    from jaxsr.training.task import Task

Batch = Mapping[str, Tensor]


def check_methods(task: "Task") -> None:
    """Refuses methods that do not take what they get, and a `best` that is neither.

    Raises:
      InputError: as said, with what each takes.
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


class SingleNetwork(Objective):
    """One network and its loss."""

    phases = (
        Phase(
            name="train",
            players=(Player(network="network", loss="loss", through_shared=False),),
        ),
    )

    def __init__(self, task: "Task") -> None:
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


class Evaluation(nn.Module):
    """What is computed on a validation batch, as methods of a module that holds the network."""

    def __init__(self, task: "Task", network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._task = lambda: task  # a function, which copies of the module share

    def measure(self, batch: Batch) -> dict[str, Tensor | tuple]:
        """Every figure, a scalar or a pair."""
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
        """The task's pictures."""
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
    """What one phase of an objective computes, as a method of the batch."""

    def __init__(self, objective: Objective, phase: Phase) -> None:
        super().__init__()
        self.objective, self._phase = objective, phase

    def losses(self, batch: Batch) -> list[Tensor]:
        """The loss of each player."""
        shared = getattr(self.objective, self._phase.share)(batch)
        players = self._phase.players
        return [
            checked_loss(getattr(self.objective, p.loss)(shared, batch), p.loss)[0] for p in players
        ]


def refusal(message: str) -> InputError:
    """An error that says where it is from: tracing puts no place in front of it."""
    error = InputError(message)
    error.located = True  # pyright: ignore[reportAttributeAccessIssue]
    return error


@contextmanager
def refusing_state(task: "Task", method: str) -> Generator[None]:
    """Refuses a method that counts or keeps something that it reaches in Python.

    What changes, a list that grows, and a tensor that follows from the batch are state. What is
    made once and kept, such as a kernel, is not.

    Raises:
      InputError: as said, with what it changes.
    """
    with filling_paused():
        state = Snapshot(task)
        yield
        change = kept_change(state)
    changed = None if change is None else change.path
    if changed is None:
        kept = (key for key, value in vars(task).items() if holds_inputs(value))
        changed = next((f"self.{key}" for key in kept), None)
    if changed is not None:
        raise refusal(
            f"{type(task).__name__}.{method} changes {changed}, which a compiled step does once "
            "and a resumed run begins anew; keep it in a buffer of the network instead"
        )


@contextmanager
def refusing_draws(task: "Task", method: str) -> Generator[None]:
    """Refuses JAX code that draws from the generators of Python, NumPy or torch.

    Raises:
      InputError: it did.
    """

    before = generator_states()
    yield
    if generator_states() != before:
        raise refusal(
            f"{type(task).__name__}.{method} draws from random, numpy.random or torch, and a "
            "compiled step would keep that one number; draw from its key, with jax.random"
        )


@contextmanager
def naming_batch(batch: Batch) -> Generator[None]:
    """Adds the names and shapes of a batch's fields to errors of the task's code.

    Torch's own messages about shapes know no field.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if len(error.args) == 1:  # of torch and Python; others format their text themselves
            fields = ", ".join(
                f"{name} {str(rows.dtype).removeprefix('torch.')}{list(rows.shape)}"
                for name, rows in batch.items()
            )
            text = repr(error.args[0]) if isinstance(error, KeyError) else error.args[0]
            error.args = (f"{text} (the batch has {fields})",)
        raise


def loss_and_metrics(
    task: "Task", network: nn.Module, batch: Batch
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


def with_long_integers(batch: Batch) -> dict[str, Tensor]:
    """The batch with torch's default integers, which its losses and indexing ask for."""
    return {n: t.long() if t.dtype == torch.int32 else t for n, t in batch.items()}

"""Objectives of training: players, their phases and their losses.

An objective is a torch module that holds every network of its family (each as an attribute) and
the losses as methods. Both engines run it as it stands: the JAX engine as pure functions of its
parameters and buffers, the torch engine directly. It imports torch only.

One step of a phase, in both engines:

1. `shared = getattr(objective, phase.share)(batch)` runs once. It computes the common part of the
   players' losses, usually the generator's output.
2. Each player in turn: `loss, metrics = getattr(objective, player.loss)(shared, batch)`, then one
   optimiser step on the parameters of `player.network` alone. A player that does not learn through
   `shared` sees it detached; later players see the earlier ones' updated parameters.

`batch` is a dictionary of tensors, images NCHW float32. Anything random comes in through it, drawn
by the data pipeline, so that both engines see the same numbers.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from jaxsr.interop.errors import InputError

Batch = Mapping[str, Tensor]

STEP_METRICS = ("loss", "grad_norm", "param_norm", "update_norm", "lr")
"""Metrics that a step reports of each player, in addition to its loss's."""
DECISIVE = STEP_METRICS[:2]
"""Those that fail a step where they are not finite."""


@dataclass(frozen=True, kw_only=True)
class Player:
    """One network and the loss that moves it."""

    network: str
    """Attribute of the objective that holds the network; prefix of its parameters' names."""
    loss: str
    """Method `(shared, batch) -> (scalar loss, {name: scalar})`, or the loss alone; means are over
    the whole batch."""
    through_shared: bool = True
    """Whether the loss reaches the network through `shared` (False for a discriminator)."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of training in which the same players move."""

    name: str
    players: tuple[Player, ...]
    share: str = "share"
    """Method `(batch) -> {name: tensor}` computed once a step."""


class Objective(nn.Module):
    """Base of every family's objective; subclasses set `phases` and define the methods it names."""

    phases: tuple[Phase, ...] = ()

    def phase(self, name: str) -> Phase:
        """The phase of that name.

        Raises:
          ValueError: the objective has no such phase.
        """
        for phase in self.phases:
            if phase.name == name:
                return phase
        names = ", ".join(p.name for p in self.phases)
        raise InputError(f"no phase {name!r} in {type(self).__name__}; it has {names}")


def check_objective(objective: Objective) -> None:
    """Refuses phases that name networks or methods which the objective does not have.

    Raises:
      InputError: as said, or a network has no parameter that is trained.
    """
    kind = type(objective).__name__
    for phase in objective.phases:
        if not phase.players:
            raise InputError(f"the phase {phase.name!r} of {kind} has no player; give it one")
        methods = [(phase.share, ("batch",))]
        methods += [(player.loss, ("shared", "batch")) for player in phase.players]
        for method, arguments in methods:
            try:
                inspect.signature(getattr(objective, method)).bind(*arguments)
            except (AttributeError, TypeError) as error:
                raise InputError(
                    f"the phase {phase.name!r} of {kind} needs a method "
                    f"{method}(self, {', '.join(arguments)}): {error}"
                ) from error
        for player in phase.players:
            try:
                network = objective.get_submodule(player.network)
            except AttributeError as error:
                names = ", ".join(name for name, _ in objective.named_children())
                raise InputError(
                    f"the phase {phase.name!r} of {kind} trains {player.network!r}, which {kind} "
                    f"does not have; its networks are {names or 'none'}"
                ) from error
            if not any(p.requires_grad for p in network.parameters()):
                raise InputError(
                    f"the phase {phase.name!r} trains {player.network!r}, but "
                    f"{type(network).__name__} has no parameter to train; make them nn.Parameter "
                    "(or layers) in attributes or nn.ModuleList, with requires_grad"
                )


def refuse_write(objective: object, method: str, name: str | None) -> None:
    """Refuses a method that wrote into tensors that a later method of the step reads.

    Args:
      objective: the objective, for the error.
      method: the method that ran.
      name: the tensor of its arguments that it wrote into, if it did.

    Raises:
      InputError: it did.
    """
    if name is not None:
        raise InputError(
            f"{method} of {type(objective).__name__} changes {name} of its arguments, which a "
            "later loss of the step reads; make a new tensor, and return it from share"
        )


INDEX = "index: "
"""Begins the names of metrics of operations that take indices, before the rule that they break."""


def index_rule(metric: str) -> str | None:
    """The rule that an operation's indices break, from its metric (`network/index: …`); else None.

    The step fails where such a metric is not 0: it is an index that is out of range.
    """
    _, separator, rule = metric.partition(f"/{INDEX}")
    return rule if separator else None


def decides_failure(metric: str) -> bool:
    """Whether a step fails where this metric (`network/name`) is not sound.

    Others may be NaN or infinite: a recall without positives, a norm whose squares overflow.
    """
    return index_rule(metric) is not None or metric.rpartition("/")[2] in DECISIVE


def uncut_names(batch: Mapping[str, Any], constants: Mapping[str, Any]) -> set[str]:
    """Names of the arrays of an objective's batch that are not cut into slices or over devices.

    Args:
      batch: of the objective: arrays with a row for each sample, constants and scalars, or trees of
        them.
      constants: of the host's batch. Those that the batch has as the same objects are not cut.

    Raises:
      InputError: a constant was changed, or the other arrays differ in their number of rows.
    """
    known = {id(array) for array in pytree.tree_leaves(dict(constants))}
    leaves = {name: pytree.tree_leaves(value) for name, value in batch.items()}
    cut = {
        name: [array for array in arrays if id(array) not in known and np.ndim(array)]
        for name, arrays in leaves.items()
    }
    uncut = {name for name, arrays in cut.items() if not arrays}
    if changed := next((name for name in cut if name in constants and cut[name]), None):
        raise InputError(
            f"prepare changed the constant {changed}, and this run cuts the batch into parts; hand "
            "it on as it is, or call it otherwise if it has a row for each sample"
        )
    rows = {name: len(array) for name, arrays in cut.items() for array in arrays}
    first = next(iter(rows), "")
    for name, number in rows.items():
        if number != rows[first]:
            raise InputError(
                f"the objective's batch has {rows[first]} rows of {first} and {number} of {name}, "
                "and this run cuts the rows into parts; hand on arrays of `constants` as they are, "
                "or leave --accumulate and --batch-norm out"
            )
    return uncut


def check_slices(rows: int, slices: int) -> None:
    """Refuses a batch that cannot be cut into slices of one size.

    Raises:
      InputError: the rows are not a multiple of the slices.
    """
    if rows % slices:
        raise InputError(
            f"a batch of {rows} rows cannot be cut into accumulate={slices} slices; use a divisor "
            "of the rows"
        )


def checked_loss(result: Any, method: str) -> tuple[Any, dict[str, Any]]:
    """A player's loss and its metrics, of either engine.

    Args:
      result: of the player's method.
      method: its name, for the error.

    Raises:
      InputError: the loss is not a scalar of floats, or something reported is not a scalar.
    """
    is_pair = isinstance(result, tuple) and len(cast(tuple[Any, ...], result)) == 2
    loss, reported = cast(tuple[Any, Any], result if is_pair else (result, {}))
    if getattr(loss, "ndim", None) != 0 or "float" not in str(loss.dtype):
        form = f"shape {tuple(loss.shape)}, {loss.dtype}" if hasattr(loss, "dtype") else repr(loss)
        raise InputError(
            f"{method} of the objective returned {form}; return a scalar of floats, the mean over "
            "the batch, or that and a dictionary of scalars to log"
        )
    if not isinstance(reported, Mapping):
        raise InputError(
            f"{method} of the objective returned {type(reported).__name__} with the loss; return a "
            "dictionary of scalars to log"
        )
    figures = dict(cast(Mapping[str, Any], reported))
    if taken := [name for name in STEP_METRICS if name in figures]:
        raise InputError(
            f"{method} of the objective reports {taken[0]!r}, a name that the step's own figure "
            "has; choose another"
        )
    for name, value in figures.items():
        if getattr(value, "ndim", None) != 0:
            raise InputError(
                f"{method} of the objective reports {name!r}, which is not a scalar tensor; report "
                "its mean"
            )
    return loss, figures

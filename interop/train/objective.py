"""What a model family tells the training loop: its players, their phases and their losses.

An objective is a torch module that holds every network of its family (each as an attribute) and
the losses as methods. Both engines run it as it stands: the JAX engine as pure functions of its
parameters and buffers, the torch engine directly. It imports torch only.

One step of a phase, in both engines:

1. `shared = getattr(objective, phase.share)(batch)` runs once. It is what the players' losses have
   in common, usually the generator's output.
2. Each player in turn: `loss, metrics = getattr(objective, player.loss)(shared, batch)`, then one
   optimiser step on the parameters of `player.network` alone. A player that does not learn through
   `shared` sees it detached; later players see the earlier ones' updated parameters.

`batch` is a dictionary of tensors, images NCHW float32. Anything random comes in through it, drawn
by the data pipeline, so that both engines see the same numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from jaxsr.interop.errors import InputError

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Player:
    """One network and the loss that moves it."""

    network: str
    """Attribute of the objective that holds the network; prefix of its parameters' names."""
    loss: str
    """Method `(shared, batch) -> (scalar loss, {name: scalar})`; means are over the whole batch."""
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

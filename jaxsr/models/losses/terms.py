"""The weighted sum of losses that an option names: `l1=1,ssim=0.1,my_losses:edges=0.5`.

A name without a weight has 1. `package.module:function` is a function of (prediction, target) that
returns a scalar, or a class without arguments whose objects are called so (`torch.nn:HuberLoss`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.interop.python_state import Snapshot, kept_change
from jaxsr.models.build import import_attribute

Loss = Callable[[Tensor, Tensor], Tensor]


class Term(NamedTuple):
    """One loss of a sum."""

    name: str
    weight: float
    function: Loss | None = None
    """None for `ADVERSARIAL`."""

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss without its weight.

        Raises:
          InputError: it is not a scalar tensor, gives the prediction no gradient, or counts in a
            global.
        """
        assert self.function is not None
        state = Snapshot(self.function, self.name)
        value = self.function(prediction, target)
        if (change := kept_change(state)) is not None:
            raise InputError(
                f"the loss {self.name} changes {change.path}, which a compiled step does once and "
                "a resumed run begins anew; make the loss an nn.Module, and count in a buffer"
            )
        if not isinstance(value, Tensor) or value.ndim:
            is_tensor = isinstance(value, Tensor)
            kind = tuple(value.shape) if is_tensor else type(value).__name__
            mend = "end it with .mean()" if is_tensor else "return one, without .item()"
            raise InputError(f"the loss {self.name} gave {kind}, not a scalar tensor; {mend}")
        if torch.is_grad_enabled() and prediction.requires_grad and not value.requires_grad:
            raise InputError(
                f"the loss {self.name} gives the network no gradient; leave out detach(), "
                "no_grad(), rounding and comparisons"
            )
        return value


def make_terms(
    weights: Mapping[str, float], functions: Mapping[str, Loss | None], *, option: str
) -> tuple[Term, ...]:
    """The losses of these weights.

    Args:
      weights: result of `parse_weights`.
      functions: losses by name; others are imported.
      option: for errors.

    Raises:
      InputError: a module cannot be imported, or holds no such function.
    """
    return tuple(
        Term(name, weight, functions[name] if name in functions else _imported(name, option))
        for name, weight in weights.items()
    )


def _imported(name: str, option: str) -> Loss:
    loss: Any = import_attribute(name, option=option)
    if isinstance(loss, type):
        try:
            loss = loss()
        except TypeError as error:
            raise InputError(
                f"{option} {name} is a class that needs arguments ({error}); write a function "
                "that calls it"
            ) from error
    if not callable(loss):
        raise InputError(
            f"{option} {name} is a {type(loss).__name__}; give a function of (prediction, target)"
        )
    if isinstance(loss, nn.Module):
        loss.requires_grad_(False)
    function: Any = loss
    return function


def register_losses(objective: nn.Module, terms: Iterable[Term]) -> None:
    """Makes losses that are modules part of the objective, whose state both engines hold."""
    for term in terms:
        if isinstance(term.function, nn.Module):
            name = term.name.replace(".", "_").replace(":", "_")
            setattr(objective, name, term.function)


def weighted_sum(terms: Iterable[tuple[float, Tensor]]) -> Tensor:
    """The sum of weight · value."""
    values = [weight * value for weight, value in terms]
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total

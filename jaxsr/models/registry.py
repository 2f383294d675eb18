"""The model families: the purpose of each, how it is built, recognised and trained.

To add a family, make a folder here whose `family.py` defines `FAMILY`, add its line to
`jaxsr/models/families.py`, and list the new package in pyproject.toml. All commands and the doctor
then know it, and `tests/models/test_registry.py` covers it. Where it trains, its task has a line in
`TASKS` of `jaxsr/training/find_task.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.field_values import from_values
from jaxsr.models.families import FAMILIES

Kind = Literal["restorer", "detector", "language model"]
Weights = Mapping[str, Tensor]

_SEED = 20261121


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedModel:
    """A network with its weights, and how it is used."""

    network: nn.Module
    """On the CPU, in evaluation mode."""
    name: str
    """Where it is from, for reports."""
    family: str
    """Name of its family, or of its class if it belongs to no family."""
    kind: Kind | None = None
    """None for a user's class."""
    value_range: tuple[float, float] = (0.0, 1.0)
    """Intensities of black and white in the images that it takes."""
    metadata: Mapping[str, Any] | None = None
    """Metadata of its weights file; None if unknown."""
    channels: int | None = None
    """Channels of the images that it takes, where the file states them."""
    least_side: int = 1
    """Pixels of the smallest image that it takes, along each side."""
    side_multiple: int = 1
    """Sides of its images must be multiples of this."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """One model family."""

    kind: Kind
    """Kind of its networks."""
    config: type[Any]
    """Frozen dataclass of a network's sizes."""
    network: Callable[[Any], nn.Module]
    """Builds the network of a configuration."""
    small: Any
    """Configuration for tests with random weights, in `jaxsr.compare` and the doctor."""
    recognise: Callable[[Weights], Mapping[str, Any] | None] = lambda weights: None
    """Names and shapes of weights → the configuration's fields; None for another family's."""
    prefix: str = ""
    """Prefix of each name in this family's exported files."""
    finish: Callable[[Any], nn.Module] = lambda network: network
    """Turns the trained network into the one that is used."""
    value_range: tuple[float, float] = (-1.0, 1.0)
    """Intensities of black and white, for families that take images."""

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """The network of a configuration that a file states; unknown fields are left out.

        Raises:
          InputError: a field has a value of another type, or out of range.
        """
        names = {field.name for field in fields(self.config)}
        known = {name: value for name, value in config.items() if name in names}
        return self.network(from_values(self.config, known, prefix="config."))

    def example(self, *, side_px: int = 32) -> Tensor:
        """An input for the small network: an image of noise, or a row of tokens."""
        generator = torch.Generator().manual_seed(0)
        if self.kind == "language model":
            size = (2, 16)
            return torch.randint(0, self.small.vocab_size, size, generator=generator).int()
        low, high = self.value_range
        picture = torch.rand(1, self.small.channels, side_px, side_px, generator=generator)
        return low + (high - low) * picture


def find_family(name: str) -> Family:
    """The family of that name.

    Raises:
      ValueError: there is no such family.
    """
    if name not in FAMILIES:
        raise InputError(
            f"no model family {name!r}; there are {', '.join(FAMILIES)}, and "
            f"jaxsr/models/registry.py says how to add one"
        )
    return import_module(FAMILIES[name]).FAMILY


def random_network(family: str, *, build: Callable[[], nn.Module] | None = None) -> nn.Module:
    """A family's network with fixed random weights that hide no operation.

    Args:
      family: one of `FAMILIES`.
      build: makes the network. Default: the family's small one.
    """
    entry = find_family(family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        network = entry.network(entry.small) if build is None else build()
        with torch.no_grad():
            for name, tensor in (*network.named_parameters(), *network.named_buffers()):
                perturb(name, tensor)
    return network.requires_grad_(False).eval()


def perturb(name: str, tensor: Tensor) -> None:
    """Moves values that start at 0 or 1, or statistics and scales would do nothing."""
    if not tensor.is_floating_point() or name.endswith("inv_freq"):
        return
    if name.endswith("running_var"):
        tensor.uniform_(0.5, 1.5)
    elif name.endswith("running_mean"):
        tensor.normal_(0, 0.2)
    elif tensor.ndim < 2:
        tensor.add_(torch.randn_like(tensor) * 0.1)
    elif not tensor.count_nonzero():
        tensor.normal_(0, 0.05)

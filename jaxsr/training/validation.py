"""The network that a task validates, and the result of the validation."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jaxsr.runtime.runner import Runner

if TYPE_CHECKING:
    from torch import nn


class Network:
    """The exported network in evaluation mode."""

    def __init__(
        self, alone: Callable[[], Runner], around: "Callable[[nn.Module], Runner]"
    ) -> None:
        """Args:
        alone: opens the runner of the network, on one device.
        around: opens the runner of a module whose attribute `network` is this network, and which
          has no other parameters; it splits batches over the mesh.
        """
        self._alone, self.around = alone, around

    @functools.cached_property
    def runner(self) -> Runner:
        """Runs the network on one device."""
        return self._alone()

    @property
    def module(self) -> "nn.Module":
        """The torch module; its own values are not those of the run."""
        return self.runner.network

    def __call__(self, images: np.ndarray, **named: np.ndarray) -> np.ndarray:
        """Float32 NCHW in, float32 NCHW out, on one device.

        Arrays passed by keyword go to the torch module's `forward` under that name.
        """
        return self.runner.submit(images, **named)()


@dataclass(frozen=True)
class ValidationResult:
    """Result of a validation."""

    metrics: Mapping[str, float]
    """Figures by name; where there are several conventions, the name includes the convention."""
    picture: np.ndarray | None = None
    """Image for a person to look at, uint8 (h, w, 3)."""

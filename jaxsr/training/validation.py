"""The network that a task validates, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from jaxsr.interop.annotations import PyTree

if TYPE_CHECKING:
    from torch import nn


class Network(Protocol):
    """The exported network in evaluation mode."""

    @property
    def module(self) -> "nn.Module":
        """The torch module, whose own values are not those of the run."""
        ...

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


@dataclass(frozen=True)
class ValidationResult:
    """Result of a validation."""

    metrics: Mapping[str, float]
    """Figures by name, the convention in the name where there are several."""
    picture: np.ndarray | None = None
    """uint8 (h, w, 3) for a person to look at."""

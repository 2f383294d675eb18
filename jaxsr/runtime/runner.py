"""A network on JAX or on torch behind one interface: NumPy batches in, NumPy batches out.

`submit` starts a batch, and returns at once if the device works asynchronously. Calling its result
waits for the batch. Callers prepare the next batch in between.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jaxsr.interop.annotations import PyTree

Collect = Callable[[], np.ndarray]
"""Waits for a batch's result."""

Around = Callable[[Any, Callable[[Any], Any], Any], Any]
"""`(xp, network, batch) -> result`: computation around the network, in the same program. `xp` is
`jax.numpy` or `torch`; `network` takes and returns float32, whatever its own dtype."""


@runtime_checkable
class Runner(Protocol):
    """Interface of `JaxRunner` and `TorchRunner`."""

    network: Any
    """The torch module."""
    compiles: bool
    """Whether each shape of a batch is a program to compile."""
    devices: int
    """Devices that share the rows of a batch."""
    platform: str
    """`tpu`, `cuda` or `cpu`."""
    programs: set[tuple[int, ...]]
    """Shapes of the batches so far; in JAX each is a program."""

    def submit(self, batch: np.ndarray, **named: np.ndarray) -> Collect:
        """Starts a batch, float32 (n, …); n must be divisible by `devices`.

        Args:
          batch: the network's first argument.
          **named: its keyword arguments, n rows each.
        """
        ...

    def run(self, method: str, batch: Mapping[str, np.ndarray], *, seed: int) -> PyTree:
        """Runs a method of the network that takes a batch, with NumPy arrays for tensors.

        Args:
          method: name of the method.
          batch: all rows, equal on all hosts.
          seed: seed of the random numbers that the method draws.
        """
        ...


def only_network(xp: Any, network: Callable[[Any], Any], batch: Any) -> Any:
    """The `Around` of a network without further computation."""
    return network(batch)

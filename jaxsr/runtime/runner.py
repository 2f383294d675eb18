"""A network on JAX or on torch behind one interface: NumPy batches in, NumPy batches out.

`submit` starts a batch and returns at once where the device works by itself; calling what it
returned waits for the result. Callers prepare the next batch in between.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from jaxsr.runtime.options import ComputeOptions
from jaxsr.runtime.setup import torch_device

if TYPE_CHECKING:
    from torch import nn

Collect = Callable[[], np.ndarray]
"""Waits for a batch's result."""

Around = Callable[[Any, Callable[[Any], Any], Any], Any]
"""`(xp, network, batch) -> result`: what is computed around the network, in the same program.
`xp` is `jax.numpy` or `torch`; `network` takes and returns float32, whatever it computes in."""


@runtime_checkable
class Runner(Protocol):
    """Interface of `JaxRunner` and `TorchRunner`."""

    platform: str
    """`tpu`, `cuda` or `cpu`."""
    programs: set[tuple[int, ...]]
    """Shapes of the batches so far; in JAX each is a program."""

    def submit(self, batch: np.ndarray, **named: np.ndarray) -> Collect:
        """Starts a batch, float32 (n, …); n must divide by the devices of the mesh.

        Args:
          batch: the network's first argument.
          **named: its keyword arguments, n rows each.
        """
        ...


def only_network(xp: Any, network: Callable[[Any], Any], batch: Any) -> Any:
    """The `Around` of a network that is run as it is."""
    return network(batch)


def open_runner(
    network: "nn.Module",
    options: ComputeOptions,
    *,
    around: Around = only_network,
    lane_folding: Literal["auto", "on", "off"] = "auto",
) -> Runner:
    """The runner of a torch module that the options name.

    Args:
      network: put into evaluation mode.
      options: of the command; JAX's platform must be fixed already.
      around: what is computed around the network.
      lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.

    Raises:
      DeviceError: fewer devices than the mesh needs, or torch finds no CUDA device.
      UnsupportedTorchError: the network does something that JAX would compute differently.
    """
    if options.engine == "torch":
        from jaxsr.runtime.torch_runner import TorchRunner

        device = torch_device(options.platform)
        return TorchRunner(network, device=device, dtype=options.dtype, around=around)
    from jaxsr.interop.mesh import make_mesh
    from jaxsr.runtime.jax_runner import JaxRunner, naming_torch

    with naming_torch():
        return JaxRunner(
            network,
            mesh=make_mesh(options.mesh_shape),
            dtype=options.dtype,
            around=around,
            lane_folding=lane_folding,
        )

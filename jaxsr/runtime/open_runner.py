"""Opens the runner of a torch module according to a command's options."""

from typing import TYPE_CHECKING, Literal

from jaxsr.runtime.options import ComputeOptions
from jaxsr.runtime.runner import Around, Runner, only_network
from jaxsr.runtime.setup import torch_device

if TYPE_CHECKING:
    from torch import nn


def open_runner(
    network: "nn.Module",
    options: ComputeOptions,
    *,
    around: Around = only_network,
    lane_folding: Literal["auto", "on", "off"] = "auto",
) -> Runner:
    """Opens the runner of a torch module according to the options.

    Args:
      network: put into evaluation mode.
      options: the command's; JAX's platform must be set already.
      around: computation around the network.
      lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.

    Raises:
      DeviceError: the mesh needs more devices than there are, or torch finds no CUDA device.
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

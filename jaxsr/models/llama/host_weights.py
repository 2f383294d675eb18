"""A network's tensors as NumPy arrays without a copy, and the network without its tensors.

Together they let an engine place the weights where it wants them, one at a time.
"""

import copy

import numpy as np
from torch import nn

from jaxsr.interop.host_arrays import to_numpy


def host_weights(network: nn.Module) -> dict[str, np.ndarray]:
    """Every parameter and buffer by its torch name, tied ones once."""
    named = (*network.named_parameters(), *network.named_buffers())
    return {name: to_numpy(tensor.contiguous()) for name, tensor in named}


def without_values(network: nn.Module) -> nn.Module:
    """The same network on the meta device; `network` itself is not changed."""
    tensors = (*network.parameters(), *network.buffers())
    return copy.deepcopy(network, {id(tensor): tensor.to("meta") for tensor in tensors})

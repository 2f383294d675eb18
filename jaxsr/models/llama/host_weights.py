"""A network's tensors by name, and the network without their values.

Together they let an engine place the weights where it wants them, one at a time.
"""

import copy
from typing import TypeVar

from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by its torch name, tied ones once."""
    return dict(network.named_parameters()) | dict(network.named_buffers())


def without_values(network: Network) -> Network:
    """The same network on the meta device; `network` itself is not changed."""
    tensors = (*network.parameters(), *network.buffers())
    return copy.deepcopy(network, {id(tensor): tensor.to("meta") for tensor in tensors})

"""A network's tensors as NumPy arrays without a copy, and the network without its tensors.

Together they let an engine place the weights where it wants them, one at a time.
"""

import copy

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, nn

# NumPy has these dtypes through ml_dtypes only, and torch does not hand them over: the bits do.
_CARRIERS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}


def host_weights(network: nn.Module) -> dict[str, np.ndarray]:
    """Every parameter and buffer by its torch name, tied ones once."""
    named = (*network.named_parameters(), *network.named_buffers())
    return {name: _as_numpy(tensor) for name, tensor in named}


def _as_numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype in _CARRIERS:
        bits, dtype = _CARRIERS[tensor.dtype]
        return tensor.view(bits).numpy().view(dtype)
    return tensor.numpy()


def without_values(network: nn.Module) -> nn.Module:
    """The same network on the meta device; the given one is not changed."""
    tensors = (*network.parameters(), *network.buffers())
    return copy.deepcopy(network, {id(tensor): tensor.to("meta") for tensor in tensors})

"""The same network with its float weights stored by inputs first, (I, O): what XLA's CPU multiplies
fastest.

Stored as torch has them, (O, I), a product with one token runs at two thirds of the speed, and one
with a few tokens at half. Tensors keep their names. Quantised layers stay as they are.
"""

import torch
from torch import Tensor, nn

from jaxsr.models.llama.network import Embedding
from jaxsr.models.llama.quantized import swap


class TransposedLinear(nn.Module):
    """`x Wᵀ + b` from `weight`, (I, O), which is Wᵀ."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", _flipped(linear.weight))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class TransposedEmbedding(nn.Module):
    """An embedding whose `weight` is (E, V): one column per token."""

    weight: Tensor

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.register_buffer("weight", _flipped(embedding.weight))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        # Columns are picked: a lookup in the turned table would first turn all of it back.
        columns_EN = self.weight.index_select(1, tokens_BT.reshape(-1))
        return columns_EN.t().view(*tokens_BT.shape, -1)

    def head(self, x_BTE: Tensor) -> Tensor:
        """Logits of a head that is tied to the embedding."""
        return x_BTE @ self.weight


def linear_weights(network: nn.Module) -> frozenset[str]:
    """Names of the weights of linear layers that no other kind of layer shares."""
    others = {
        id(parameter)
        for module in network.modules()
        if type(module) is not nn.Linear
        for parameter in module.parameters(recurse=False)
    }
    return frozenset(
        f"{name}.weight"
        for name, module in network.named_modules()
        if type(module) is nn.Linear and id(module.weight) not in others
    ) & {name for name, _ in network.named_parameters()}


def untie_head(network: nn.Module) -> dict[str, str]:
    """Gives a linear layer that shares its weight with an embedding a weight of its own.

    Args:
      network: on the meta device, changed in place.

    Returns:
      Name of the new weight -> name of the weight whose values it has.
    """
    embeddings = {
        id(module.weight): f"{name}.weight"
        for name, module in network.named_modules()
        if isinstance(module, nn.Embedding)
    }
    copied = {}
    for name, module in network.named_modules():
        if type(module) is nn.Linear and id(module.weight) in embeddings:
            copied[f"{name}.weight"] = embeddings[id(module.weight)]
            module.weight = nn.Parameter(torch.empty_like(module.weight), requires_grad=False)
    return copied


def _flipped(weight: Tensor) -> Tensor:
    # Shapes only: an engine turns the values on their way to its device.
    return torch.empty(weight.shape[::-1], dtype=weight.dtype, device="meta")


def transpose(network: nn.Module) -> frozenset[str]:
    """Swaps the layers of a network on the meta device, in place.

    Returns:
      Names of the weights whose values must be passed transposed.
    """
    turned = set()
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Linear):
            swap(network, name, TransposedLinear(module))
        elif isinstance(module, Embedding):
            swap(network, name, TransposedEmbedding(module))
        else:
            continue
        turned.add(f"{name}.weight")
    return frozenset(turned)

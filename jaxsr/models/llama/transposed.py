"""The same network with its float weights stored as CPUs multiply them fastest.

Stored as torch has them, (O, I), a product with one token runs at two thirds of the speed of one
stored by inputs first, (I, O), and one with a few tokens at half. For 2 to 8 tokens that is still
half of the memory's speed: XLA computes 64 outputs at a time, and from (I, O) reads short pieces of
far memory. Panels (O/64, I, 64) are each in one piece: where
`jaxsr.interop.cpu_kernels.panel_product` is compiled, its kernels multiply them for any number of
tokens. Tensors keep their names. Quantised layers stay as they are.
"""

from collections.abc import Collection
from typing import Any, cast

import torch
from torch import Tensor, library, nn

from jaxsr.models.llama.network import Embedding


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


_PANEL = 64
"""Outputs that lie in one piece of memory."""


class PanelLinear(nn.Module):
    """`x Wᵀ + b` from `weight`, (P, I, 64): 64 columns of Wᵀ in each panel."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.first = linear.out_features, 0
        self._together: tuple[PanelLinear, ...] = (self,)
        self.register_buffer("weight", _in_panels(linear.weight))
        bias = linear.bias
        # A bias that another module shares stays the same tensor, which has one name.
        shared = bias is None or not bias.requires_grad
        self.register_buffer("bias", bias if shared else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        weights = [linear.weight for linear in self._together]
        y = _panel_product(x, *weights)
        y = y.narrow(-1, self.first, self.out_features)
        return y if self.bias is None else y + self.bias

    @staticmethod
    def join(*layers: "PanelLinear") -> None:
        """Makes each ask for the outputs of all, which multiply the same input: XLA computes equal
        calls once.
        """
        first = 0
        for layer in layers:
            layer._together, layer.first = layers, first
            first += layer.out_features


class PanelEmbedding(nn.Module):
    """An embedding whose `weight` is (P, E, 64): one column per token."""

    weight: Tensor

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.register_buffer("weight", _in_panels(embedding.weight))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.weight[tokens_BT // _PANEL, :, tokens_BT % _PANEL]

    def head(self, x_BTE: Tensor) -> Tensor:
        """Logits of a head that is tied to the embedding."""
        return _panel_product(x_BTE, self.weight)


@library.custom_op("jaxsr::panel_product", mutates_args=())
def panel_product(x: Tensor, panels: list[Tensor]) -> Tensor:
    """`x Wᵀ`, (M, I) by (P, I, 64) each: in JAX by `jaxsr.interop.cpu_kernels.panel_product`."""
    return torch.einsum("mi,pio->mpo", x, torch.cat(panels)).flatten(1)


@panel_product.register_fake
def _(x: Tensor, panels: list[Tensor]) -> Tensor:
    return x.new_empty(len(x), sum(map(len, panels)) * _PANEL)


def _panel_product(x: Tensor, *weights: Tensor) -> Tensor:
    """`x Wᵀ` from panels of Wᵀ, of one matrix or several."""
    y = torch.ops.jaxsr.panel_product(x.flatten(0, -2), list(weights))
    return y.unflatten(0, x.shape[:-1])


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


SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of our own networks that multiply the same input."""


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
      Name of a weight of its own -> name by which `network` had its values, the first of the tied.
    """
    first = {id(parameter): name for name, parameter in network.named_parameters()}
    embeddings = {
        id(module.weight): f"{name}.weight"
        for name, module in network.named_modules()
        if isinstance(module, nn.Embedding)
    }
    copied = {}
    for name, module in network.named_modules():
        if type(module) is nn.Linear and id(module.weight) in embeddings:
            source = first[id(module.weight)]
            names = (f"{name}.weight", embeddings[id(module.weight)])
            copied |= {weight: source for weight in names if weight != source}
            module.weight = nn.Parameter(torch.empty_like(module.weight), requires_grad=False)
    return copied


def _flipped(weight: Tensor) -> Tensor:
    # Shapes only: an engine turns the values on their way to its device.
    return torch.empty(weight.shape[::-1], dtype=weight.dtype, device="meta")


def _in_panels(weight: Tensor) -> Tensor:
    outputs, inputs = weight.shape
    return torch.empty(outputs // _PANEL, inputs, _PANEL, dtype=weight.dtype, device="meta")


def arranged(weight: Tensor, *, panels: bool) -> Tensor:
    """The values of a weight (O, I) as (I, O), or in panels as (O/64, I, 64)."""
    if panels:
        return weight.unflatten(0, (-1, _PANEL)).transpose(1, 2).contiguous()
    return weight.permute(*reversed(range(weight.ndim))).contiguous()


def turned_to_panels(weight: Tensor) -> Tensor:
    """`arranged` in panels, in the memory of the weight, whose values it replaces."""
    for panel in weight.unflatten(0, (-1, _PANEL)):  # the same 64 outputs before and after
        panel.view(-1).copy_(panel.T.reshape(-1))
    return weight.view(-1, weight.shape[1], _PANEL)


def transpose(
    network: nn.Module, *, compiled: bool = False
) -> tuple[frozenset[str], frozenset[str]]:
    """Swaps the layers of a network on the meta device, in place.

    Args:
      network: on the meta device.
      compiled: whether programs may call `jaxsr.interop.cpu_kernels.panel_product`.

    Returns:
      Names of the weights whose values must be passed as `arranged` has them, and of those among
      them that are in panels.
    """
    names: dict[bool, set[str]] = {False: set(), True: set()}
    layers = {
        nn.Linear: (TransposedLinear, PanelLinear),
        Embedding: (TransposedEmbedding, PanelEmbedding),
    }
    for name, module in list(network.named_modules()):
        for kind, forms in layers.items():
            if isinstance(module, kind):
                in_panels = compiled and _fits(cast(Tensor, module.weight))
                network.set_submodule(name, forms[in_panels](cast(Any, module)))
                names[in_panels].add(f"{name}.weight")
    for module in network.modules() if compiled else ():
        for siblings in SIBLINGS:
            layers = [getattr(module, name, None) for name in siblings]
            if all(isinstance(layer, PanelLinear) for layer in layers):
                PanelLinear.join(*cast(list[PanelLinear], layers))
    return frozenset(names[False] | names[True]), frozenset(names[True])


def _fits(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and len(weight) % _PANEL == 0


def in_panels(network: nn.Module, names: Collection[str]) -> frozenset[str]:
    """Swaps linear layers for those that multiply panels by compiled kernels, in place.

    Args:
      network: on the meta device.
      names: of the weights of layers that may be swapped.

    Returns:
      Names of the weights that are in panels now.
    """
    swapped = set()
    for name, module in list(network.named_modules()):
        if not isinstance(module, nn.Linear) or f"{name}.weight" not in names:
            continue
        if _fits(module.weight):
            network.set_submodule(name, PanelLinear(module))
            swapped.add(f"{name}.weight")
    return frozenset(swapped)

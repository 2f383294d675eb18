"""Layers with packed weights whose products compiled kernels compute, in programs for CPUs.

See `jaxsr.interop.cpu_kernels.panel_product`. Layers that multiply the same input (query, key and
value; gate and up) share a matrix: each asks for all of it, and XLA computes equal calls once.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, library, nn

from jaxsr.interop.cpu_kernels import panel_product
from jaxsr.models.llama.packed import LevelsEmbedding
from jaxsr.models.llama.quantized import LevelsLinear
from jaxsr.models.llama.transposed import SIBLINGS

Packed = Literal["exact", "off"]


@library.custom_op("jaxsr::packed_panels", mutates_args=())
def _packed_panels(x: Tensor, levels: Tensor, tables: Tensor) -> Tensor:
    return x @ panel_product.unpacked(levels, tables, inputs=x.shape[1])


@_packed_panels.register_fake
def _(x: Tensor, levels: Tensor, tables: Tensor) -> Tensor:
    return x.new_empty(len(x), len(levels) * panel_product.PANEL)


class PanelMatrix(nn.Module):
    """Weights of one layer, or of several with the same input beneath each other, in panels."""

    levels: Tensor
    tables: Tensor

    def __init__(self, layers: Sequence[LevelsLinear]) -> None:
        super().__init__()
        levels, tables = zip(*(self._panels(layer) for layer in layers), strict=True)
        self.register_buffer("levels", torch.cat(levels))
        self.register_buffer("tables", torch.cat(tables))

    @staticmethod
    def _panels(layer: LevelsLinear) -> tuple[Tensor, Tensor]:
        matrix = layer.unpacked()
        scale, zero = matrix.of_groups()
        zero = zero - matrix.offset * scale
        return panel_product.pack(matrix.levels, scale, zero, bits=layer.bits)


class PackedPanelLinear(nn.Module):
    """`x Wᵀ + b` by compiled kernels.

    Args:
      plain: the same layer by XLA.
      matrix: with the weights, perhaps of several layers.
      first: of this layer's outputs among the matrix's.
      owns: whether the matrix is this layer's in the table of tensors.
    """

    def __init__(
        self, plain: LevelsLinear, matrix: PanelMatrix, *, first: int = 0, owns: bool = True
    ) -> None:
        super().__init__()
        self.first, self.out_features = first, plain.out_features
        self.register_buffer("bias", plain.bias)
        if owns:
            self.matrix = matrix
        self._matrix = (matrix,)  # in a tuple, so that it has one place among the modules

    def forward(self, x: Tensor) -> Tensor:
        (matrix,) = self._matrix
        y = torch.ops.jaxsr.packed_panels(x.flatten(0, -2).float(), matrix.levels, matrix.tables)
        y = y.narrow(-1, self.first, self.out_features).unflatten(0, x.shape[:-1])
        return (y if self.bias is None else y + self.bias.to(y.dtype)).to(x.dtype)


def use_panels(network: nn.Module) -> None:
    """Swaps arranged layers for those with compiled kernels, in place, where the sizes fit."""
    modules = dict(network.named_modules())
    embeddings = [m for m in modules.values() if isinstance(m, LevelsEmbedding)]
    inside = {id(embedding.rows) for embedding in embeddings}
    for embedding in embeddings:
        if _fits(embedding.rows) and embedding.is_head:
            matrix = PanelMatrix([embedding.rows])
            embedding.product = PackedPanelLinear(embedding.rows, matrix)
    layers = {
        n: m
        for n, m in modules.items()
        if isinstance(m, LevelsLinear) and _fits(m) and id(m) not in inside
    }
    while layers:
        names = _together(next(iter(layers)), layers)
        plain = [layers.pop(name) for name in names]
        matrix, first = PanelMatrix(plain), 0
        for name, layer in zip(names, plain, strict=True):
            network.set_submodule(
                name, PackedPanelLinear(layer, matrix, first=first, owns=not first)
            )
            first += -(-layer.out_features // panel_product.PANEL) * panel_product.PANEL


def _fits(layer: LevelsLinear) -> bool:
    return panel_product.fits(layer.in_features // layer.group_count)


def _together(name: str, layers: Mapping[str, LevelsLinear]) -> list[str]:
    """The layer, and those that multiply the same input in blocks of the same kind."""
    parent, _, leaf = name.rpartition(".")
    siblings = next((group for group in SIBLINGS if leaf in group), (leaf,))
    names = [n for n in (f"{parent}.{leaf}".strip(".") for leaf in siblings) if n in layers]

    def kind(layer: LevelsLinear) -> tuple[int, ...]:
        return (layer.bits, layer.in_features, layer.group_count)

    return [n for n in names if kind(layers[n]) == kind(layers[name])]

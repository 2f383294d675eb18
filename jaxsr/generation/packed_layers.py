"""Layers with packed weights whose products kernels compute, in programs for CPUs.

Compiled ones for any number of tokens, see `jaxsr.interop.cpu_kernels.panel_product`; where they
are not available torch's for a few, see `jaxsr.interop.cpu_kernels.packed_product`. Layers that
multiply the same input (query, key and value; gate and up) share a matrix: each asks for all of it,
and XLA computes equal calls once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, library, nn

from jaxsr.interop.cpu_kernels import packed_product, panel_product
from jaxsr.models.llama.packed import LevelsEmbedding, LevelsLinear
from jaxsr.models.llama.quantized import swap
from jaxsr.models.llama.transposed import SIBLINGS

Packed = Literal["exact", "fast", "off"]

_OUTPUTS = 16
"""The kernel takes whole multiples of so many outputs."""


@library.custom_op("jaxsr::packed_product", mutates_args=())
def _packed_product(x: Tensor, planes: Tensor, tables: Tensor) -> Tensor:
    out = x.new_empty(len(x), planes.shape[1])
    exact = tables.shape[2] == 2
    packed_product.product(x.float() if exact else x.bfloat16(), planes, tables, out=out)
    return out


@_packed_product.register_fake
def _(x: Tensor, planes: Tensor, tables: Tensor) -> Tensor:
    return x.new_empty(len(x), planes.shape[1])


lower_packed_product = packed_product.call
"""`jaxsr::packed_product` of JAX arrays."""


class KernelMatrix(nn.Module):
    """Weights of one layer, or of several with the same input beneath each other."""

    planes: Tensor
    tables: Tensor

    def __init__(self, layers: Sequence[LevelsLinear], *, exact: bool) -> None:
        super().__init__()
        levels, scales, zeros = [], [], []
        for layer in layers:
            matrix = layer.unpacked()
            scale, zero = matrix.of_groups()
            levels.append(matrix.levels)
            scales.append(scale)
            zeros.append(zero - matrix.offset * scale)
        packed = packed_product.pack(
            torch.cat(levels), torch.cat(scales), torch.cat(zeros), bits=layers[0].bits, exact=exact
        )
        self.register_buffer("planes", packed.planes)
        self.register_buffer("tables", packed.tables)


class KernelLinear(nn.Module):
    """`x Wᵀ + b` by torch's kernel.

    Args:
      plain: the same layer by XLA, for more tokens than `exact` takes; without values for `fast`.
      matrix: with the weights, perhaps of several layers.
      first: of this layer's outputs among the matrix's.
      owns: whether the matrix is this layer's in the table of tensors.
    """

    def __init__(
        self, plain: LevelsLinear, matrix: KernelMatrix, *, first: int = 0, owns: bool = True
    ) -> None:
        super().__init__()
        self.exact = matrix.tables.shape[2] == 2
        self.first, self.out_features = first, plain.out_features
        self.register_buffer("bias", plain.bias)
        if self.exact:
            self.plain = plain
        if owns:
            self.matrix = matrix
        self._matrix = (matrix,)  # in a tuple, so that it has one place among the modules

    def forward(self, x: Tensor) -> Tensor:
        if self.exact and x.numel() // x.shape[-1] > packed_product.MOST_ROWS:
            return self.plain(x)
        (matrix,) = self._matrix
        y = torch.ops.jaxsr.packed_product(x.flatten(0, -2), matrix.planes, matrix.tables)
        y = y.narrow(-1, self.first, self.out_features).unflatten(0, x.shape[:-1])
        return y if self.bias is None else y + self.bias.to(y.dtype)


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
    """`x Wᵀ + b` by compiled kernels; the arguments are those of `KernelLinear`."""

    def __init__(
        self, plain: LevelsLinear, matrix: PanelMatrix, *, first: int = 0, owns: bool = True
    ) -> None:
        super().__init__()
        self.first, self.out_features = first, plain.out_features
        self.register_buffer("bias", plain.bias)
        if owns:
            self.matrix = matrix
        self._matrix = (matrix,)

    def forward(self, x: Tensor) -> Tensor:
        (matrix,) = self._matrix
        y = torch.ops.jaxsr.packed_panels(x.flatten(0, -2).float(), matrix.levels, matrix.tables)
        y = y.narrow(-1, self.first, self.out_features).unflatten(0, x.shape[:-1])
        return (y if self.bias is None else y + self.bias.to(y.dtype)).to(x.dtype)


def use_panels(network: nn.Module) -> None:
    """Swaps arranged layers for those with compiled kernels, in place, where the sizes fit."""
    _swap_layers(network, _fits_panels, PanelMatrix, PackedPanelLinear, panel_product.PANEL)


def use_kernels(network: nn.Module, *, exact: bool) -> None:
    """Swaps arranged layers for those with torch's kernels, in place, where the sizes fit."""
    _swap_layers(network, _fits, partial(KernelMatrix, exact=exact), KernelLinear, _OUTPUTS)


def _swap_layers(
    network: nn.Module,
    fits: Callable[[LevelsLinear], bool],
    matrix_of: Callable[[Sequence[LevelsLinear]], Any],
    linear: Callable[..., nn.Module],
    multiple: int,
) -> None:
    """Swaps layers for `linear` with a `matrix_of` them; each begins at a `multiple` of outputs."""
    modules = dict(network.named_modules())
    embeddings = [m for m in modules.values() if isinstance(m, LevelsEmbedding)]
    inside = {id(embedding.rows) for embedding in embeddings}
    for embedding in embeddings:
        if fits(embedding.rows) and embedding.is_head:
            embedding.product = linear(embedding.rows, matrix_of([embedding.rows]))
    layers = {
        n: m
        for n, m in modules.items()
        if isinstance(m, LevelsLinear) and fits(m) and id(m) not in inside
    }
    while layers:
        names = _together(next(iter(layers)), layers)
        plain = [layers.pop(name) for name in names]
        matrix, first = matrix_of(plain), 0
        for name, layer in zip(names, plain, strict=True):
            swap(network, name, linear(layer, matrix, first=first, owns=not first))
            first += -(-layer.out_features // multiple) * multiple


def _fits_panels(layer: LevelsLinear) -> bool:
    return panel_product.fits(layer.in_features // layer.group_count)


def _fits(layer: LevelsLinear) -> bool:
    if layer.out_features % _OUTPUTS:
        return False
    run = layer.in_features // layer.group_count
    return run == packed_product.GROUP // 2 or run % packed_product.GROUP == 0


def _together(name: str, layers: Mapping[str, LevelsLinear]) -> list[str]:
    """The layer, and those that multiply the same input in blocks of the same kind."""
    parent, _, leaf = name.rpartition(".")
    siblings = next((group for group in SIBLINGS if leaf in group), (leaf,))
    names = [n for n in (f"{parent}.{leaf}".strip(".") for leaf in siblings) if n in layers]

    def kind(layer: LevelsLinear) -> tuple[int, ...]:
        return (layer.bits, layer.in_features, layer.group_count)

    return [n for n in names if kind(layers[n]) == kind(layers[name])]

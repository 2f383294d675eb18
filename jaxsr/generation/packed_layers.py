"""Layers with packed weights whose products with a few tokens are torch's, in programs for CPUs.

See `jaxsr.interop.cpu_kernels.packed_product`. Layers that multiply the same input (query, key and
value; gate and up) share a call: each asks for all of them, and XLA computes equal calls once.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from jaxsr.interop.cpu_kernels import packed_product
from jaxsr.models.llama.packed import LevelsEmbedding, LevelsLinear
from jaxsr.models.llama.quantized import swap

Packed = Literal["exact", "fast", "off"]

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_OUTPUTS = 16
"""The kernel takes whole multiples of so many outputs."""


@torch.library.custom_op("jaxsr::packed_product", mutates_args=())
def _packed_product(x: Tensor, arrays: Sequence[Tensor]) -> Tensor:
    products = [
        packed_product.product(x, planes, tables)
        for planes, tables in zip(arrays[::2], arrays[1::2], strict=True)
    ]
    return torch.cat(products, -1).to(x.dtype)


@_packed_product.register_fake
def _(x: Tensor, arrays: Sequence[Tensor]) -> Tensor:
    return x.new_empty(len(x), sum(planes.shape[1] for planes in arrays[::2]))


def lower_packed_product(x: Any, arrays: Sequence[Any]) -> Any:
    """`jaxsr::packed_product` of JAX arrays."""
    return packed_product.call(x, *arrays)


class KernelLinear(nn.Module):
    """`x Wᵀ + b` by torch's kernel up to `MOST_ROWS` tokens, by `plain` beyond."""

    planes: Tensor
    tables: Tensor

    def __init__(self, plain: LevelsLinear, matrix: packed_product.PackedMatrix) -> None:
        super().__init__()
        self.plain = plain
        self.register_buffer("planes", matrix.planes)
        self.register_buffer("tables", matrix.tables)
        self._together: tuple[KernelLinear, ...] = (self,)

    def share_calls(self, layers: Sequence["KernelLinear"]) -> None:
        """Computes these layers, this one among them, in one call."""
        self._together = tuple(layers)

    def rows(self, index: Tensor) -> Tensor:
        """Some rows of the matrix, float32."""
        return self.plain.rows(index)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() // x.shape[-1] > packed_product.MOST_ROWS:
            return self.plain(x)
        arrays = [array for layer in self._together for array in (layer.planes, layer.tables)]
        y = torch.ops.jaxsr.packed_product(x.flatten(0, -2), arrays)
        place = next(i for i, layer in enumerate(self._together) if layer is self)
        sizes = [layer.plain.out_features for layer in self._together]
        y = y.split(sizes, -1)[place].unflatten(0, x.shape[:-1])
        return y if self.plain.bias is None else y + self.plain.bias.to(y.dtype)


def use_kernels(network: nn.Module, *, exact: bool) -> None:
    """Swaps arranged layers for those with kernels, in place, where the kernel takes their sizes."""
    made: dict[str, dict[str, KernelLinear]] = defaultdict(dict)
    for name, module in list(network.named_modules()):
        if isinstance(module, LevelsEmbedding):
            module.rows = _with_kernel(module.rows, exact=exact)
        elif isinstance(module, LevelsLinear) and not _inside_embedding(network, name):
            layer = _with_kernel(module, exact=exact)
            if isinstance(layer, KernelLinear):
                swap(network, name, layer)
                parent, _, leaf = name.rpartition(".")
                made[parent][leaf] = layer
    for layers in made.values():
        for names in _SIBLINGS:
            together = [layers[n] for n in names if n in layers]
            for layer in together:
                layer.share_calls(together)


def _inside_embedding(network: nn.Module, name: str) -> bool:
    return isinstance(network.get_submodule(name.rpartition(".")[0]), LevelsEmbedding)


def _with_kernel(plain: Any, *, exact: bool) -> Any:
    if plain.out_features % _OUTPUTS:
        return plain
    levels = plain.unpacked()
    scale, zero = levels.of_groups()
    matrix = packed_product.pack(
        levels.levels, scale, zero - levels.offset * scale, bits=plain.bits, exact=exact
    )
    return KernelLinear(plain, matrix)

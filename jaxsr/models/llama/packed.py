"""Layers whose weights stay the blocks of their GGUF file.

On the host a layer holds the bytes of the file, mapped into memory where no row had to move. An
engine's program takes them apart beforehand, see `arranged`: levels and scales in arrays of their
own, which XLA multiplies by without unpacking bytes.
"""

import copy
import mmap
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.models.llama.block_formats import FORMATS, Levels
from jaxsr.models.llama.quantized import PARTS, LevelsLinear, QuantizedLinear, joined

_MOST_UNPACKED = 2**22
"""Weights that torch takes out of their blocks at a time."""


class MappedFile:
    """The mapping that a layer's blocks lie in, if they do."""

    def __init__(self, rows: np.ndarray) -> None:
        self._mapping = getattr(rows, "_mmap", None)

    def __deepcopy__(self, memo: dict) -> "MappedFile":
        return self

    def release(self) -> None:
        """Gives the pages back that were read; they are read again when needed."""
        if self._mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)


class BlockLinear(QuantizedLinear):
    """`x Wᵀ + b` of blocks, (O, bytes of a row)."""

    blocks: Tensor

    def __init__(
        self,
        kind: int,
        blocks: Tensor,
        *,
        bias: Tensor | None = None,
        file: MappedFile | None = None,
    ) -> None:
        block = FORMATS[kind]
        super().__init__(blocks.shape[1] // block.size * block.weights, blocks.shape[0], bias)
        self.kind = kind
        self._file = file
        self.register_buffer("blocks", blocks)

    def release(self) -> None:
        """Gives the pages of the file back."""
        if self._file is not None:
            self._file.release()

    def levels(self) -> Levels:
        """The matrix as whole numbers and scales."""
        return FORMATS[self.kind].levels(self.blocks)

    def dequantized(self) -> Tensor:
        return self.levels().dequantized()

    def forward(self, x: Tensor) -> Tensor:
        unpack = FORMATS[self.kind].levels
        rows = max(1, _MOST_UNPACKED // self.in_features)
        parts = [
            F.linear(x, unpack(part).dequantized().to(x.dtype)) for part in self.blocks.split(rows)
        ]
        return self._biased(torch.cat(parts, -1))


class BlockEmbedding(nn.Module):
    """An embedding of blocks, a row for each token; `head` is the product with all of them.

    Args:
      kind: of the blocks.
      blocks: (V, bytes of a row).
      dtype: of the result.
      scale: that the result is multiplied by.
      is_head: whether the network calls `head`.
      file: that the blocks lie in.
    """

    scale: Tensor | None

    def __init__(
        self,
        kind: int,
        blocks: Tensor,
        *,
        dtype: torch.dtype,
        scale: Tensor | None = None,
        is_head: bool = False,
        file: MappedFile | None = None,
    ) -> None:
        super().__init__()
        self.dtype, self.is_head = dtype, is_head
        self.rows = BlockLinear(kind, blocks, file=file)
        self.register_buffer("scale", scale)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        unpack = FORMATS[self.rows.kind].levels
        rows = unpack(self.rows.blocks[tokens_BT.flatten()]).dequantized()
        return _scaled(rows.to(self.dtype).view(*tokens_BT.shape, -1), self.scale)

    def head(self, x_BTE: Tensor) -> Tensor:
        """Logits of a head that is tied to the embedding."""
        return self.rows(x_BTE)


def _scaled(rows: Tensor, scale: Tensor | None) -> Tensor:
    return rows if scale is None else rows * scale.to(rows.dtype)


class TiedHead(nn.Module):
    """The head that shares its embedding's blocks."""

    def __init__(self, embedding: BlockEmbedding) -> None:
        super().__init__()
        self.tie(embedding)

    def tie(self, embedding: nn.Module) -> None:
        """Shares another embedding's blocks, or levels."""
        # In a tuple, so that the embedding has one place among the modules.
        self._embedding = (embedding,)

    @property
    def embedding(self) -> Any:
        """Whose matrix it multiplies by."""
        return self._embedding[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding.head(x)


class LevelsEmbedding(nn.Module):
    """`BlockEmbedding` of levels."""

    scale: Tensor | None

    def __init__(
        self, rows: LevelsLinear, *, dtype: torch.dtype, scale: Tensor | None, is_head: bool
    ) -> None:
        super().__init__()
        self.dtype, self.is_head = dtype, is_head
        self.rows = rows
        self.product: nn.Module | None = None  # computes the head instead of `rows`
        self.register_buffer("scale", scale)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        rows = self.rows.rows(tokens_BT.flatten()).to(self.dtype)
        return _scaled(rows.view(*tokens_BT.shape, -1), self.scale)

    def head(self, x_BTE: Tensor) -> Tensor:
        """Logits of a head that is tied to the embedding."""
        return (self.product or self.rows)(x_BTE)


def level_arrays(network: nn.Module) -> frozenset[str]:
    """Names of the arrays of arranged layers, which XLA reads fastest inputs first.

    On a TPU it would otherwise write them in another order at every step.
    """
    return frozenset(
        f"{name}.{part}"
        for name, module in network.named_modules()
        if isinstance(module, LevelsLinear)
        for part in PARTS
        if getattr(module, part) is not None
    )


def has_blocks(network: nn.Module) -> bool:
    """Whether some layers contain blocks, or the parts taken out of blocks."""
    return any(isinstance(m, BlockLinear | LevelsLinear) for m in network.modules())


def arranged(layer: BlockLinear) -> LevelsLinear:
    """The layer with its blocks taken apart; on the meta device by shapes alone."""
    levels, bits = layer.levels(), FORMATS[layer.kind].bits
    if bits == 4:
        levels = Levels(**{**vars(levels), "levels": joined(levels.levels)})
    return LevelsLinear(layer.in_features, levels, bits=bits, bias=layer.bias)


def arranged_copy(network: nn.Module) -> nn.Module:
    """The same network with all blocks taken apart; other tensors are shared."""
    shared = {id(t): t for t in (*network.parameters(), *network.buffers())}
    network = copy.deepcopy(network, shared)
    layers = [m for m in network.modules() if isinstance(m, BlockLinear)]
    embeddings = {n: m for n, m in network.named_modules() if isinstance(m, BlockEmbedding)}
    inside = {f"{name}.rows" for name in embeddings}
    for name, module in list(network.named_modules()):
        if isinstance(module, BlockLinear) and name not in inside:
            network.set_submodule(name, arranged(module))
    for name, module in embeddings.items():
        rows: Any = arranged(module.rows)
        heads = [h for h in network.modules() if isinstance(h, TiedHead) and h.embedding is module]
        embedding = LevelsEmbedding(
            rows,
            dtype=module.dtype,
            scale=module.scale,
            is_head=module.is_head or bool(heads),
        )
        network.set_submodule(name, embedding)
        for head in heads:
            head.tie(embedding)
    for layer in layers:
        layer.release()
    return network

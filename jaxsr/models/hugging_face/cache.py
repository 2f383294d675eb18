"""What a causal language model of transformers keeps between tokens, as a flat table of tensors.

A compiled loop carries tensors, transformers carries objects: `Cache` with a layer for each block.
`open_cache` makes those objects around the tensors, `close_cache` takes the tensors out again, by
the names of `jaxsr.models.cache_entries`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig, StaticCache
from transformers.cache_utils import (
    DummyLayer,
    LinearAttentionAndStaticFullAttentionLayer,
    LinearAttentionAndStaticSlidingWindowAttentionLayer,
    LinearAttentionLayer,
    StaticIndexedLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from jaxsr.errors import InputError
from jaxsr.models.cache_entries import INDEXER, SLOTTED

Entries = dict[str, Tensor]


class SlotLayer(StaticLayer):
    """Keys and values of a block, one slot a token, for all tokens.

    A window of attention is left to the mask. The first forward fills the slots of its tokens; a
    later one puts its single token into the slot that `filled` names: in place, or, where `aside`,
    in what attention reads alone, with the token's entries in `new`.
    """

    filled: Tensor | int = 0
    aside: bool = False

    def __init__(self, max_cache_len: int = 1) -> None:
        super().__init__(max_cache_len)
        self.new: Entries = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys = self.written("keys", key_states)
        self.values = self.written("values", value_states)
        return self.keys, self.values

    def written(self, name: str, states: Tensor) -> Tensor:
        """The slots (B, K, S, D) of this name with the states of new tokens."""
        slots = getattr(self, name)
        if slots is None:
            return states
        assert isinstance(self.filled, Tensor)
        if not self.aside:
            return slots.index_copy(2, self.filled.reshape(1), states)
        self.new[name] = states
        is_new_S1 = torch.arange(slots.shape[2], device=slots.device)[:, None] == self.filled
        return torch.where(is_new_S1, states, slots)

    def kept(self, name: str) -> Tensor:
        """What remains of a forward: the slots, or the new entries that the caller writes."""
        return self.new[name] if name in self.new else getattr(self, name)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (query_length if self.keys is None else self.keys.shape[2]), 0

    def get_seq_length(self) -> Any:
        return self.filled


class HybridLayer(LinearAttentionLayer, SlotLayer):
    """Both keys and values, and states, of a block that has attention and a recurrence."""

    def __init__(self, number_of_states: int = 1) -> None:
        SlotLayer.__init__(self)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


class IndexedLayer(SlotLayer):
    """Also the keys by which a sparse attention chooses the tokens that it sees."""

    indexer: Tensor | None = None
    """(B, 1, S, D)."""
    indexer_position_ids: Tensor | None = None
    """Asked for by models that keep the positions of tokens themselves."""

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        self.indexer = self.written(INDEXER, indexer_key_states[:, None])
        return self.indexer[:, 0]


def open_cache(
    config: PreTrainedConfig,
    entries: Mapping[str, Tensor] | None,
    filled: Tensor | int,
    *,
    aside: bool = False,
) -> Cache:
    """The cache of a model before a forward.

    Args:
      config: of the model.
      entries: see `jaxsr.models.cache_entries`; None before the first token.
      filled: slots that are filled, the same in all rows.
      aside: `close_cache` gives the entries of the new token alone, for the caller to write.

    Raises:
      InputError: a block keeps what is not known here.
    """
    try:
        cache = StaticCache(config, max_cache_len=1)
    except KeyError as error:
        raise InputError(
            f"{config.model_type} has blocks of kind {error}, whose cache transformers makes in no "
            "fixed size; use another model"
        ) from error
    cache.layers = [_open_layer(i, layer, entries, filled) for i, layer in enumerate(cache.layers)]
    for layer in cache.layers:
        if isinstance(layer, SlotLayer):
            layer.aside = aside
    return cache


def _open_layer(
    index: int, standard: Any, entries: Mapping[str, Tensor] | None, filled: Tensor | int
) -> Any:
    layer: Any
    if type(standard) in (StaticLayer, StaticSlidingWindowLayer):
        layer = SlotLayer()
    elif type(standard) is StaticIndexedLayer:
        layer = IndexedLayer()
    elif type(standard) in (
        LinearAttentionAndStaticFullAttentionLayer,
        LinearAttentionAndStaticSlidingWindowAttentionLayer,
    ):
        layer = HybridLayer(standard.number_of_states)
    elif type(standard) in (LinearAttentionLayer, DummyLayer):
        layer = standard
    else:
        raise InputError(
            f"block {index} keeps a {type(standard).__name__}, which is not computed here; use "
            "another model"
        )
    if isinstance(layer, SlotLayer):
        layer.is_initialized = True
        layer.filled = filled
        if entries is not None:
            # Of models that share one block's keys with others, only that block has entries.
            layer.keys, layer.values = (entries.get(f"layers.{index}.{name}") for name in SLOTTED)
        if isinstance(layer, IndexedLayer) and entries is not None:
            layer.indexer = entries.get(f"layers.{index}.{INDEXER}")
    if isinstance(layer, LinearAttentionLayer) and entries is not None:
        for state in range(layer.number_of_states):
            _open_state(layer, state, index, entries)
    return layer


def _open_state(
    layer: LinearAttentionLayer, state: int, index: int, entries: Mapping[str, Tensor]
) -> None:
    conv, recurrent = (
        entries.get(f"layers.{index}.conv.{state}"),
        entries.get(f"layers.{index}.recurrent.{state}"),
    )
    if conv is not None:
        layer.conv_states[state] = conv
        layer.conv_kernel_size[state] = conv.shape[-1]
        layer.is_conv_states_initialized[state] = True
    if recurrent is not None:
        layer.recurrent_states[state] = recurrent
        layer.is_recurrent_states_initialized[state] = True
    layer.has_previous_state[state] = conv is not None or recurrent is not None


def close_cache(cache: Cache) -> Entries:
    """The tensors of a cache after a forward."""
    entries: Entries = {}
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, SlotLayer) and layer.keys is not None:
            names = SLOTTED
            if isinstance(layer, IndexedLayer) and layer.indexer is not None:
                names = (*SLOTTED, INDEXER)
            entries |= {f"layers.{index}.{name}": layer.kept(name) for name in names}
        if isinstance(layer, LinearAttentionLayer):
            for kind, states in (
                ("conv", layer.conv_states),
                ("recurrent", layer.recurrent_states),
            ):
                entries |= {
                    f"layers.{index}.{kind}.{j}": t for j, t in states.items() if t is not None
                }
    return entries

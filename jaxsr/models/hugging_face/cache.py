"""The state of a causal language model of transformers between tokens: a flat table of tensors.

A compiled loop carries tensors, transformers carries objects: `Cache` with a layer for each block.
`open_cache` makes those objects around the tensors, `close_cache` takes the tensors out again, by
the names of `jaxsr.models.cache_entries`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig, StaticCache
from transformers.cache_utils import (
    DummyLayer,
    LinearAttentionAndStaticFullAttentionLayer,
    LinearAttentionAndStaticSlidingWindowAttentionLayer,
    LinearAttentionLayer,
    StaticIndexedLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
    get_layer_types_and_kwargs,
)

from jaxsr.errors import InputError
from jaxsr.models.cache_entries import INDEXER, SLOTTED

Entries = dict[str, Tensor]

# More tokens than any model's window has.
_NO_LIMIT = 2**31 - 1


class SlotLayer(StaticLayer):
    """Keys and values of a block, one slot a token, for all tokens.

    The first forward fills the slots of its tokens; a
    later one puts its single token into the slot that `filled` names: in place, or, where `aside`,
    in what attention reads alone, with the token's entries in `new`. Where it `appends`, tokens of
    any number come after all slots, in what attention reads, and their entries are in `new`.
    """

    filled: Tensor | int = 0
    aside: bool = False
    appends: bool = False

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
        if self.appends:
            self.new[name] = states
            return torch.cat((slots, states), 2)
        assert isinstance(self.filled, Tensor)
        place = self.place(self.filled, slots.shape[2])
        if not self.aside:
            return slots.index_copy(2, place.reshape(1), states)
        self.new[name] = states
        is_new_S1 = torch.arange(slots.shape[2], device=slots.device)[:, None] == place
        return torch.where(is_new_S1, states, slots)

    def place(self, slot: Tensor, size: int) -> Tensor:
        """Where a slot lies in an array of so many."""
        return slot

    def sized(self, name: str, slots: int, ahead: int) -> Tensor:
        """The first forward's tensor of this name, in the array for a cache of so many slots."""
        states = getattr(self, name)
        return nn.functional.pad(states, (0, 0, 0, slots - states.shape[2]))

    def kept(self, name: str) -> Tensor:
        """The tensor to keep of a forward: the slots, or the new entries that the caller writes."""
        return self.new[name] if name in self.new else getattr(self, name)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        slots = query_length if self.keys is None else self.keys.shape[2]
        return slots + (query_length if self.appends else 0), 0

    def get_seq_length(self) -> Any:
        return self.filled


class WindowLayer(SlotLayer):
    """The cache of a block that sees only the last tokens: a ring of so many slots, or fewer.

    Slot s lies in place s modulo the size. The mask takes the order of tokens to be that of their
    places, which a ring's is not; but a token that is fed alone sees the whole ring. So in the mask
    the ring stands after all slots of the other blocks, the token fed in its last place, and slots
    that are not in the ring are masked like padding: see `mask_of_slots`.

    Where it `appends`, the ring comes turned, with its last token in its last place.
    """

    is_sliding = True
    window: int
    """Tokens that one sees, itself among them."""
    mask_offset: int = 0
    """Where the ring begins in the mask."""

    def place(self, slot: Tensor, size: int) -> Tensor:
        return slot % size

    def sized(self, name: str, slots: int, ahead: int) -> Tensor:
        states, size = getattr(self, name), min(slots, self.window + ahead)
        count = states.shape[2]
        if count <= size:
            return super().sized(name, size, ahead)
        return states[:, :, count - size :].roll(count % size, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        length, _ = super().get_mask_sizes(query_length)
        return length, self.mask_offset

    def query_offset(self) -> Any:
        """Place of the first token fed, in the mask."""
        if self.keys is None:
            return 0
        return self.mask_offset + self.keys.shape[2] - (0 if self.appends else 1)


class SlotCache(StaticCache):
    """The cache of blocks that are opened by `open_cache`."""

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        layer = self.layers[layer_idx]
        if isinstance(layer, WindowLayer):
            return layer.query_offset()
        return super().get_query_offset(layer_idx)

    def keeps_states(self) -> bool:
        """Whether blocks keep states of convolutions or recurrences, from which no token can be
        taken back.
        """
        return any(isinstance(layer, LinearAttentionLayer) for layer in self.layers)

    def windows(self) -> dict[str, int]:
        """Entries that are rings, and the most slots of each."""
        return {
            f"layers.{index}.{name}": layer.window
            for index, layer in enumerate(self.layers)
            if isinstance(layer, WindowLayer)
            for name in SLOTTED
        }


class UncountedCache(SlotCache):
    """The cache of models that need the number of filled slots in Python, and for the mask alone.

    MPT cuts its bias of one row down to as many rows as that number leaves: to one, whatever it is.
    """

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        return self.layers[layer_idx].get_seq_length()


_UNCOUNTED = {"mpt"}


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
    appended: int = 0,
) -> SlotCache:
    """The cache of a model before a forward.

    Args:
      config: of the model.
      entries: see `jaxsr.models.cache_entries`; None before the first token.
      filled: slots that are filled, the same in all rows.
      aside: `close_cache` gives the entries of the new token alone, for the caller to write.
      appended: so many tokens come after all slots; the caller writes their entries.

    Raises:
      InputError: a block keeps state of an unknown kind.
    """
    kind = UncountedCache if config.model_type in _UNCOUNTED else SlotCache
    try:
        cache = kind(config, max_cache_len=_NO_LIMIT)
    except KeyError as error:
        raise InputError(
            f"{config.model_type} has blocks of kind {error}, whose cache transformers makes in no "
            "fixed size; use another model"
        ) from error
    window = _window(config, cache.layers)
    cache.layers = [_opened(i, layer, window) for i, layer in enumerate(cache.layers)]
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, SlotLayer):
            layer.is_initialized, layer.filled, layer.aside = True, filled, aside
            layer.appends = appended > 0
        if entries is not None:
            _fill_layer(index, layer, entries)
    offset = next((s + appended for s, is_ring in _spans(cache) if not is_ring), 0)
    for layer in cache.layers:
        if isinstance(layer, WindowLayer):
            layer.mask_offset = offset
    return cache


def _window(config: PreTrainedConfig, layers: list[Any]) -> int | None:
    """The window of the blocks whose cache is a ring; None where all blocks keep all slots.

    The only place that decides it. Chunks are counted from each row's first token, by a mask that
    cannot be told a ring's order; of several windows the library makes one mask.
    """
    kinds, _ = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    windows = {layer.max_cache_len for layer in layers if type(layer) is StaticSlidingWindowLayer}
    return windows.pop() if len(windows) == 1 and "chunked_attention" not in kinds else None


def needs_order(config: PreTrainedConfig) -> bool:
    """Whether a block that keeps all slots must find its tokens in adjacent ones, where tokens are
    appended: distances count in windows and chunks that are not rings, and in biases by place.
    """
    layers = StaticCache(config, max_cache_len=_NO_LIMIT).layers
    has_windows = any(type(layer) is StaticSlidingWindowLayer for layer in layers)
    return config.model_type in _UNCOUNTED or (has_windows and _window(config, layers) is None)


def _opened(index: int, standard: Any, window: int | None) -> Any:
    """Our layer for that of transformers."""
    kind = type(standard)
    if kind is StaticSlidingWindowLayer and window is not None:
        layer = WindowLayer()
        layer.window = window
        return layer
    if kind in (StaticLayer, StaticSlidingWindowLayer):
        return SlotLayer()
    if kind is StaticIndexedLayer:
        return IndexedLayer()
    if kind in (
        LinearAttentionAndStaticFullAttentionLayer,
        LinearAttentionAndStaticSlidingWindowAttentionLayer,
    ):
        return HybridLayer(standard.number_of_states)
    if kind in (LinearAttentionLayer, DummyLayer):
        return standard
    raise InputError(
        f"block {index} keeps a {kind.__name__}, which is not computed here; use another model"
    )


def _fill_layer(index: int, layer: Any, entries: Mapping[str, Tensor]) -> None:
    if isinstance(layer, SlotLayer):
        # If a model shares one block's keys with others, only that block has entries.
        layer.keys, layer.values = (entries.get(f"layers.{index}.{name}") for name in SLOTTED)
    if isinstance(layer, IndexedLayer):
        layer.indexer = entries.get(f"layers.{index}.{INDEXER}")
    if isinstance(layer, LinearAttentionLayer):
        for state in range(layer.number_of_states):
            _open_state(layer, state, index, entries)


def _spans(cache: Cache) -> list[tuple[int, bool]]:
    """Slots of the filled layers that have some, and whether they are a ring."""
    return [
        (layer.keys.shape[2], isinstance(layer, WindowLayer))
        for layer in cache.layers
        if isinstance(layer, SlotLayer) and layer.keys is not None
    ]


def mask_of_slots(cache: SlotCache, slots_T: Tensor, first_B1: Tensor) -> Tensor:
    """The mask (B, S + R) of padding: all slots, and after them the ring's, where there are any.

    Args:
      cache: that is opened.
      slots_T: of the tokens to be fed.
      first_B1: slot of each row's first true token.
    """
    spans = _spans(cache)
    if not spans:
        # Without keys, the mask is that of the tokens fed: states have no entries for single slots.
        return slots_T[None] >= first_B1
    size = {is_ring: size for size, is_ring in spans}
    parts = []
    if False in size:
        parts.append(torch.arange(size[False], device=slots_T.device))
    if True in size:
        places = torch.arange(size[True], device=slots_T.device)
        last = slots_T[-1]
        # The slot that lies in each place: the last one at or before the token's; below zero where
        # there is none yet.
        parts.append(last - (last - places) % size[True])
    return torch.cat(parts)[None] >= first_B1


def mask_of_appended(cache: SlotCache, first_B: Tensor, length_B: Tensor, count: int) -> Tensor:
    """`mask_of_slots` of tokens that are appended: (B, S + T + R + T).

    Args:
      cache: that is opened.
      first_B: slot of each row's first token, in blocks that keep all slots.
      length_B: tokens of each row; in a ring they end in the last place.
      count: tokens appended.
    """
    device, size = first_B.device, {is_ring: size for size, is_ring in _spans(cache)}
    first_B1, length_B1 = first_B[:, None], length_B[:, None]
    appended_BT = torch.ones((len(first_B), count), dtype=torch.bool, device=device)
    parts = []
    if False in size:
        slots_S = torch.arange(size[False], device=device)
        parts += [(slots_S >= first_B1) & (slots_S < first_B1 + length_B1), appended_BT]
    if True in size:
        parts += [torch.arange(size[True], device=device) >= size[True] - length_B1, appended_BT]
    return torch.cat(parts, 1) if parts else appended_BT


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


def close_cache(cache: SlotCache, slots: int | None = None, ahead: int = 0) -> Entries:
    """The tensors of a cache after a forward.

    Args:
      cache: that was opened.
      slots: after the first forward, of the cache to go on with. None: those of the tokens fed.
      ahead: slots that a ring has beyond its window.
    """
    entries: Entries = {}
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, SlotLayer) and layer.keys is not None:
            names = SLOTTED
            if isinstance(layer, IndexedLayer) and layer.indexer is not None:
                names = (*SLOTTED, INDEXER)
            entries |= {
                f"layers.{index}.{name}": (
                    layer.kept(name) if slots is None else layer.sized(name, slots, ahead)
                )
                for name in names
            }
        if isinstance(layer, LinearAttentionLayer):
            for kind, states in (
                ("conv", layer.conv_states),
                ("recurrent", layer.recurrent_states),
            ):
                entries |= {
                    f"layers.{index}.{kind}.{j}": t for j, t in states.items() if t is not None
                }
    return entries

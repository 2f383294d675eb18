"""How the JAX engine keeps the cache of each kind of network, and feeds the network with it.

A cache on the host is a flat table in every layout: `layers.I.keys` and `layers.I.values`,
(B, K, S, D) with each row's tokens from slot 0, and states without slots: see
`jaxsr.models.cache_entries`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxsr.generation import sharding
from jaxsr.generation.decoder import from_slot_zero
from jaxsr.interop.mesh import place

Run = Callable[..., Any]
"""The network's forward as a function of its inputs."""


class CacheLayout(ABC):
    """One kind of network's cache on the devices of a mesh."""

    shares_slots: bool
    """Whether all running rows are filled up to the same slot."""
    packs_prompts = False
    """Whether it has `empty`, `prefill_packed`, `with_packed` and `resized`."""
    ahead = 0
    """Tokens fed at a step, any of which may be taken back; 0 where one is fed, for good."""

    def __init__(self, network: Any, mesh: Mesh) -> None:
        self.config, self.mesh = network.config, mesh

    @abstractmethod
    def weight_shardings(
        self, weights: Mapping[str, Any], turned: Collection[str]
    ) -> dict[str, NamedSharding]:
        """Where each weight lives, by torch name; those in `turned` are transposed."""

    @abstractmethod
    def prefill(
        self, run: Run, tokens_BT: jax.Array, length_B: jax.Array, *, left: bool, slots: int
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array]:
        """Feeds the prompts.

        Args:
          run: the network.
          tokens_BT: padded token ids.
          length_B: true tokens of each row.
          left: the padding comes first.
          slots: of the cache.

        Returns:
          Logits (B, V) after each row's last token, the cache, and for each row the slots that are
          filled and the slot of its first true token.
        """

    @abstractmethod
    def decode(
        self, run: Run, state: Mapping[str, Any], *, left: bool
    ) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
        """Feeds each row's last token.

        Returns:
          Logits (B, V), and a function from the tokens chosen to the cache with the new entries.
        """

    @abstractmethod
    def looking_ahead(self, proposals: int) -> "CacheLayout":
        """The layout of such caches for so many proposals a step: it has `verify`.

        Raises:
          InputError: the network keeps state that cannot be taken back.
        """

    def verify(
        self, run: Run, state: Mapping[str, Any], tokens_BT: jax.Array, *, left: bool
    ) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
        """`decode` of several tokens for each row, with logits (B, T, V) after each.

        Entries of tokens that turn out wrong lie after the filled slots, and are overwritten.
        """
        raise NotImplementedError

    def admitted(
        self, state: Mapping[str, Any], new: Mapping[str, Any], row: jax.Array, running_B: jax.Array
    ) -> tuple[Any, jax.Array, jax.Array]:
        """Puts a batch of one in the place of a row.

        Args:
          state: of a batch, with `cache`, `filled` and `first`.
          new: of the batch of one, with as many slots.
          row: the place.
          running_B: the other rows that go on.

        Returns:
          The cache, filled slots and first slots.
        """
        cache = jax.tree.map(partial(with_row, row=row), state["cache"], new["cache"])
        filled_B, first_B = (state[n].at[row].set(new[n][0]) for n in ("filled", "first"))
        return cache, filled_B, first_B

    def realigned(
        self, state: Mapping[str, Any], running_B: jax.Array
    ) -> tuple[Any, jax.Array, jax.Array]:
        """Moves the running rows to the lowest slots; where rows share slots."""
        raise NotImplementedError

    def empty(self, rows: int, *, slots: int, dtype: Any) -> Any:
        """A cache without tokens."""
        raise NotImplementedError

    def prefill_packed(self, run: Run, prompts: Mapping[str, jax.Array]) -> tuple[jax.Array, Any]:
        """Feeds several prompts that lie one after another in one row, each by itself.

        Args:
          run: the network.
          prompts: `jaxsr.generation.padding.packed`.

        Returns:
          Logits (P, V) after each prompt's last token, and all tokens' entries.
        """
        raise NotImplementedError

    def with_packed(
        self, cache: Any, entries: Any, prompts: Mapping[str, jax.Array], row_P: jax.Array
    ) -> Any:
        """Puts each prompt's entries into its row of the cache, from slot 0."""
        raise NotImplementedError

    def resized(self, cache: Any, keep: jax.Array, *, slots: int) -> Any:
        """Some rows of a cache, with more or fewer slots."""
        raise NotImplementedError

    @abstractmethod
    def on_host(
        self, cache: Any, first_B: np.ndarray, filled_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The cache as a table on the host."""

    @abstractmethod
    def placed(
        self, entries: Mapping[str, np.ndarray], filled_B: np.ndarray, *, slots: int, dtype: Any
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """`on_host` turned back: the cache on the devices, filled slots and first slots."""

    def cache_sharding(self, heads: int) -> NamedSharding:
        """Sharding of arrays with `heads` in axis 1: split by heads where they divide."""
        return sharding.head_sharding(heads, self.mesh)


_OUTPUTS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head", "embed_tokens")
_RULES = dict.fromkeys([f"*{name}" for name in _OUTPUTS], "colwise") | dict.fromkeys(
    ["*.o_proj", "*.down_proj"], "rowwise"
)
"""How the weights of our own networks are split, see `jaxsr.interop.sharding_rules`."""


class OwnLayout(CacheLayout):
    """Layout of `jaxsr.models.llama`: a pair for each block, keys with their slots last.

    Scores are then a plain product with the stored keys; stored the other way, the CPU would
    transpose every block's keys at every step. Compiled attention reads keys with their features
    last, and nothing is copied where entries are written before.
    """

    shares_slots = False
    packs_prompts = True

    def __init__(self, network: Any, mesh: Mesh, *, compiled: bool = False) -> None:
        """Args:
        network: whose cache it is.
        mesh: of the devices.
        compiled: whether attention is `jaxsr.interop.cpu_kernels.panel_product`'s.
        """
        super().__init__(network, mesh)
        # A GPU's kernels are short: attention over one array takes fewer than over the cache and
        # the new entries. A TPU's compiler: see LibraryLayout.
        self.writes_first = compiled or mesh.devices.flat[0].platform == "gpu"
        self._slots = 2 if compiled else 3

    def _turned(self, keys: Any) -> Any:
        """Keys (B, K, S, D) as they are stored, or stored ones as (B, K, S, D)."""
        return keys if self._slots == 2 else keys.swapaxes(2, 3)

    def weight_shardings(
        self, weights: Mapping[str, Any], turned: Collection[str]
    ) -> dict[str, NamedSharding]:
        queries, keys = self.config.num_attention_heads, self.config.num_key_value_heads
        # A split head would need its halves together for its rotation.
        heads = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": queries}
        return sharding.weight_shardings(weights, _RULES, heads, self.mesh, turned=turned)

    @property
    def _where(self) -> NamedSharding:
        return self.cache_sharding(self.config.num_key_value_heads)

    def prefill(
        self, run: Run, tokens_BT: jax.Array, length_B: jax.Array, *, left: bool, slots: int
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array]:
        count = tokens_BT.shape[1]
        first_B = count - length_B if left else jnp.zeros_like(length_B)
        logits_BV, new = run(
            tokens_BT,
            first_B=first_B if left else None,
            read_B=jnp.full_like(length_B, count - 1) if left else length_B - 1,
        )
        grow = [(0, 0), (0, 0), (0, slots - count), (0, 0)]
        hold = partial(jax.lax.with_sharding_constraint, shardings=self._where)
        cache = [(hold(self._turned(jnp.pad(k, grow))), hold(jnp.pad(v, grow))) for k, v in new]
        filled_B = jnp.full_like(length_B, count) if left else length_B
        return logits_BV, cache, filled_B, first_B

    def decode(
        self, run: Run, state: Mapping[str, Any], *, left: bool
    ) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
        tokens_B1 = jnp.maximum(state["token"], 0)[:, None]
        return self._fed(run, state, tokens_B1, jnp.zeros_like(state["filled"]), left=left)

    def looking_ahead(self, proposals: int) -> "OwnLayout":
        return self

    def verify(
        self, run: Run, state: Mapping[str, Any], tokens_BT: jax.Array, *, left: bool
    ) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
        return self._fed(run, state, tokens_BT, None, left=left)

    def _fed(
        self,
        run: Run,
        state: Mapping[str, Any],
        tokens_BT: jax.Array,
        read_B: jax.Array | None,
        *,
        left: bool,
    ) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
        filled_B = state["filled"]
        logits, new = run(
            tokens_BT,
            [(self._turned(k), v) for k, v in state["cache"]],
            filled_B=filled_B,
            first_B=state["first"] if left else None,
            read_B=read_B,
            write=self.writes_first,
        )
        if self.writes_first:
            cache = [(self._turned(k), v) for k, v in new]
            return logits, lambda chosen_B: cache

        def written(chosen_B: jax.Array) -> Any:
            # Depends on the logits, and so on every read of the cache: without such a dependency
            # XLA cannot know that the reads come first, and copies the cache at every step.
            at_B = jnp.where(chosen_B >= 0, filled_B, 0)
            return [
                (
                    written_at(k, self._turned(n), at_B, self._slots),
                    written_at(v, m, at_B, 2),
                )
                for (k, v), (n, m) in zip(state["cache"], new, strict=True)
            ]

        return logits, written

    def empty(self, rows: int, *, slots: int, dtype: Any) -> Any:
        heads, size = self.config.num_key_value_heads, self.config.head_dim
        hold = partial(jax.lax.with_sharding_constraint, shardings=self._where)
        zeros = jnp.zeros((rows, heads, slots, size), dtype)
        return [
            (hold(self._turned(zeros)), hold(zeros)) for _ in range(self.config.num_hidden_layers)
        ]

    def prefill_packed(self, run: Run, prompts: Mapping[str, jax.Array]) -> tuple[jax.Array, Any]:
        last_P = prompts["begin"] + prompts["length"] - 1
        logits_1PV, entries = run(
            prompts["tokens"][None], first_B=prompts["first"][None], read_B=last_P[None]
        )
        return logits_1PV[0], entries

    def with_packed(
        self, cache: Any, entries: Any, prompts: Mapping[str, jax.Array], row_P: jax.Array
    ) -> Any:
        tokens, slots = len(prompts["tokens"]), cache[0][1].shape[2]
        width = min(tokens, slots)
        # The last prompt's slice goes past the tokens.
        entries = jax.tree.map(
            lambda x: jnp.pad(x, [(0, 0), (0, 0), (0, width), (0, 0)]), list(entries)
        )

        def put(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            index, cache = carry
            begin, row, zero = prompts["begin"][index], row_P[index], jnp.int32(0)
            out = []
            for (keys, values), new in zip(cache, entries, strict=True):
                k, v = (jax.lax.dynamic_slice_in_dim(x, begin, width, 2) for x in new)
                k, at = self._turned(k), (row, zero, zero, zero)
                out.append(
                    (
                        jax.lax.dynamic_update_slice(keys, k, at),
                        jax.lax.dynamic_update_slice(values, v, at),
                    )
                )
            return index + 1, out

        count = (row_P < cache[0][0].shape[0]).sum()
        return jax.lax.while_loop(lambda carry: carry[0] < count, put, (jnp.int32(0), cache))[1]

    def resized(self, cache: Any, keep: jax.Array, *, slots: int) -> Any:
        hold = partial(jax.lax.with_sharding_constraint, shardings=self._where)

        def moved(array: jax.Array, axis: int) -> jax.Array:
            grow = [(0, 0, 0)] * 4
            grow[axis] = (0, slots - array.shape[axis], 0)  # negative: cut
            return hold(jax.lax.pad(array, jnp.zeros((), array.dtype), grow)[keep])

        return [(moved(k, self._slots), moved(v, 2)) for k, v in cache]

    def on_host(
        self, cache: Any, first_B: np.ndarray, filled_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        entries = {}
        for index, (keys, values) in enumerate(cache):
            entries[f"layers.{index}.keys"] = from_slot_zero(self._turned(keys), first_B, filled_B)
            entries[f"layers.{index}.values"] = from_slot_zero(values, first_B, filled_B)
        return entries

    def placed(
        self, entries: Mapping[str, np.ndarray], filled_B: np.ndarray, *, slots: int, dtype: Any
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        def grown(array: np.ndarray) -> np.ndarray:
            grow = [(0, 0), (0, 0), (0, slots - array.shape[2]), (0, 0)]
            return np.pad(array, grow).astype(dtype)

        cache = []
        for index in range(self.config.num_hidden_layers):
            keys, values = (grown(entries[f"layers.{index}.{name}"]) for name in ("keys", "values"))
            keys = np.ascontiguousarray(self._turned(keys))
            cache.append((place(keys, self._where), place(values, self._where)))
        return cache, filled_B, np.zeros_like(filled_B)


def written_at(cache: jax.Array, new: jax.Array, at_B: jax.Array, axis: int) -> jax.Array:
    """The cache with each row's new entry at its own slot."""
    if cache.shape[0] == 1:
        return jax.lax.dynamic_update_slice_in_dim(cache, new, at_B[0], axis)
    put = partial(jax.lax.dynamic_update_slice_in_dim, axis=axis - 1)
    return jax.vmap(put)(cache, new, at_B)


def with_row(array: jax.Array, new: jax.Array, row: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(array, new, row, 0)

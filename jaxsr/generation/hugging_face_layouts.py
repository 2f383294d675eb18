"""How the JAX engine keeps the cache of networks of transformers; see `cache_layouts`."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxsr.generation import sharding
from jaxsr.generation.cache_layouts import CacheLayout, Run, with_row, written_at
from jaxsr.generation.decoder import ending_at, entries_from_slot_zero, from_slot_zero
from jaxsr.interop.mesh import place
from jaxsr.models.cache_entries import has_slots


class LibraryLayout(CacheLayout):
    """Layout of `jaxsr.models.hugging_face`: the table itself, all rows filled up to the same slot.

    Blocks with a window have as many slots, a ring: slot s lies in place s modulo their number.
    """

    shares_slots = True

    def __init__(self, network: Any, mesh: Mesh, *, compiled: bool = False) -> None:
        super().__init__(network, mesh)
        self._rules, self._windows = network.sharding_rules(), network.cache_windows()
        self._needs_order = network.needs_order
        # A TPU's compiler moves a cache written in place into fast memory and back as a whole; a
        # CPU's copies it, unless a single call reads it.
        self.writes_aside = mesh.devices.flat[0].platform in ("tpu", "cpu") and not compiled

    def weight_shardings(
        self, weights: Mapping[str, Any], turned: Collection[str]
    ) -> dict[str, NamedSharding]:
        # A key's features, split, would have to be gathered from the cache for every token.
        keys = self.config.num_key_value_heads
        heads = {"k_proj": keys, "v_proj": keys}
        return sharding.weight_shardings(weights, self._rules, heads, self.mesh, turned=turned)

    def looking_ahead(self, proposals: int) -> "LookAheadLayout":
        self.config.check_takes_back()
        return LookAheadLayout(self, proposals)

    def prefill(
        self, run: Run, tokens_BT: jax.Array, length_B: jax.Array, *, left: bool, slots: int
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array]:
        count = tokens_BT.shape[1]
        first_B = count - length_B
        if not left:  # a recurrence must end with each row's last token
            tokens_BT = jax.vmap(jnp.roll)(tokens_BT, first_B)
        logits_BV, cache = run(tokens_BT, first_B=first_B, slots=slots, ahead=self.ahead)
        return logits_BV, self._held(cache), jnp.full_like(length_B, count), first_B

    def _held(self, cache: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Split by heads, and not as the products that it comes from."""
        hold = jax.lax.with_sharding_constraint
        return {
            n: hold(t, self.cache_sharding(t.shape[1])) if has_slots(n) else t
            for n, t in cache.items()
        }

    def decode(
        self, run: Run, state: Mapping[str, Any], *, left: bool
    ) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
        filled = state["filled"].max()  # rows that are done have stopped counting
        logits_BV, new = run(
            jnp.maximum(state["token"], 0)[:, None],
            state["cache"],
            filled=filled,
            first_B=state["first"],
            aside=self.writes_aside,
        )

        def written(chosen_B: jax.Array) -> dict[str, jax.Array]:
            if not self.writes_aside:
                return self._held(new)
            # Depends on the logits, and so on every read of the cache; see OwnLayout.
            at = jnp.maximum(filled, jnp.minimum(chosen_B.max(), 0))

            def put(name: str, array: jax.Array) -> jax.Array:
                place = at % array.shape[2] if name in self._windows else at
                return jax.lax.dynamic_update_slice_in_dim(array, new[name], place, 2)

            cache = {n: put(n, t) if has_slots(n) else new[n] for n, t in state["cache"].items()}
            return self._held(cache)

        return logits_BV, written

    def admitted(
        self, state: Mapping[str, Any], new: Mapping[str, Any], row: jax.Array, running_B: jax.Array
    ) -> tuple[Any, jax.Array, jax.Array]:
        length = (new["filled"] - new["first"])[0]
        cache, filled_B, first_B = _moved(state, running_B, least=length)
        end = jnp.maximum(filled_B.max(), length)
        by = end - new["filled"][0]
        cache = {n: with_row(t, _rolled(n, new["cache"][n], by), row) for n, t in cache.items()}
        return cache, filled_B.at[row].set(end), first_B.at[row].set(end - length)

    def realigned(
        self, state: Mapping[str, Any], running_B: jax.Array
    ) -> tuple[Any, jax.Array, jax.Array]:
        return _moved(state, running_B, least=jnp.int32(0))

    def on_host(
        self, cache: Any, first_B: np.ndarray, filled_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        return entries_from_slot_zero(cache, first_B, filled_B, self._windows)

    def placed(
        self, entries: Mapping[str, np.ndarray], filled_B: np.ndarray, *, slots: int, dtype: Any
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        longest = int(filled_B.max())
        first_B = longest - filled_B
        cache = {}
        for name, array in entries.items():
            if has_slots(name):
                aligned = ending_at(array, filled_B, slots=slots, window=self._ring(name))
                where = self.cache_sharding(array.shape[1])
                cache[name] = place(aligned.astype(dtype), where)
            else:
                cache[name] = place(array, sharding.replicated(self.mesh))
        return cache, np.full_like(filled_B, longest), first_B

    def _ring(self, name: str) -> int | None:
        """The most slots of an entry that is a ring."""
        return self._windows.get(name)


class LookAheadLayout(LibraryLayout):
    """`LibraryLayout` whose rows fill slots of their own, several tokens at a time.

    The network is fed with tokens after all slots, and their entries are then written where the
    row's tokens end. Rings have so many slots more that tokens taken back overwrote none that are
    needed.
    """

    shares_slots = False

    def __init__(self, layout: LibraryLayout, proposals: int) -> None:
        vars(self).update(vars(layout))
        self.ahead = proposals + 1  # tokens fed at a step

    def decode(
        self, run: Run, state: Mapping[str, Any], *, left: bool
    ) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
        tokens_B1 = jnp.maximum(state["token"], 0)[:, None]
        logits_B1V, written = self.verify(run, state, tokens_B1, left=left)
        return logits_B1V[:, 0], written

    def verify(
        self, run: Run, state: Mapping[str, Any], tokens_BT: jax.Array, *, left: bool
    ) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
        cache, filled_B = state["cache"], state["filled"]
        length_B = filled_B - state["first"]
        first_B, ordered = state["first"], {*self._windows}
        if self._needs_order:
            ordered = {*cache}
            slots = next(t.shape[2] for n, t in cache.items() if n not in self._windows)
            first_B = slots - length_B
        turned = {n: _turned(t, filled_B) if n in ordered else t for n, t in cache.items()}
        logits_BTV, new = run(tokens_BT, turned, first_B=first_B, length_B=length_B)

        def written(chosen_B: jax.Array) -> dict[str, jax.Array]:
            # Depends on the logits, and so on every read of the cache; see OwnLayout.
            at_B = jnp.where(chosen_B >= 0, filled_B, 0)

            def put(name: str, array: jax.Array) -> jax.Array:
                if name not in self._windows:
                    return written_at(array, new[name], at_B, 2)
                places_BT = (at_B[:, None] + jnp.arange(tokens_BT.shape[1])) % array.shape[2]
                rows = jnp.arange(len(at_B))[:, None]
                return array.at[rows, :, places_BT].set(jnp.swapaxes(new[name], 1, 2))

            return self._held({n: put(n, t) for n, t in cache.items()})

        return logits_BTV, written

    admitted = CacheLayout.admitted  # rows have slots of their own

    def on_host(
        self, cache: Any, first_B: np.ndarray, filled_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        entries = {}
        for name, array in cache.items():
            # Rows of which none has overwritten another's: each is turned to end in the last slot.
            rows = zip(array, filled_B, strict=True)
            turned = np.stack([np.roll(row, -int(filled), 1) for row, filled in rows])
            end = np.full_like(filled_B, array.shape[2])
            first = end - np.minimum(filled_B - first_B, end)
            window = self._windows.get(name)
            entries[name] = from_slot_zero(turned, first, end, window=window)
        return entries

    def _ring(self, name: str) -> int | None:
        window = super()._ring(name)
        return window and window + self.ahead


def _turned(array: jax.Array, filled_B: jax.Array) -> jax.Array:
    """An entry whose rows end in the last slot."""
    if array.shape[0] == 1:
        return jnp.roll(array, -filled_B[0], 2)
    return jax.vmap(lambda row, filled: jnp.roll(row, -filled, 1))(array, filled_B)


def _rolled(name: str, array: jax.Array, by: jax.Array) -> jax.Array:
    """An entry with its slots moved up; slots that wrap around lie beyond the filled ones, or
    belong there, in a ring.
    """
    return jnp.roll(array, by, 2) if has_slots(name) else array


def _moved(
    state: Mapping[str, Any], running_B: jax.Array, *, least: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array, jax.Array]:
    """The running rows moved to end at the longest one's length, at slot `least` or above."""
    filled_B, first_B = state["filled"], state["first"]
    end = jnp.maximum(jnp.where(running_B, filled_B - first_B, 0).max(), least)
    by = end - jnp.where(running_B, filled_B, 0).max()
    cache = {n: _rolled(n, t, by) for n, t in state["cache"].items()}
    return cache, jnp.where(running_B, end, 0), jnp.where(running_B, first_B + by, 0)

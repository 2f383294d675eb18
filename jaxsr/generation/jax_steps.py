"""The computations of generation's compiled programs: functions of arrays alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxsr.generation import beams, prompt_lookup, sampling
from jaxsr.generation.cache_layouts import CacheLayout
from jaxsr.generation.decoder import LOGPROBS, NO_TOKEN, UNFILLED, empty_logprobs, ending_in
from jaxsr.generation.logits_processors import History, Settings, is_stop
from jaxsr.generation.padding import Padding

State = dict[str, Any]


@dataclass(frozen=True)
class Draft:
    """A smaller network, which proposes tokens."""

    layout: CacheLayout
    """How it keeps its past."""
    run: Callable[..., Any]
    """`run(weights, …)`: its output, from the weights of both networks."""
    vocab_size: int
    """Tokens that both networks know."""


@dataclass(frozen=True)
class Steps:
    """The steps of a network. The first arguments of each method are static, the others arrays."""

    layout: CacheLayout
    """How the network keeps its past."""
    run: Callable[..., Any]
    """`run(weights, …)`: the network's output."""
    draft: Draft | None = None
    """Proposes tokens; its part of a batch's state is `draft`. None: they come from the text."""

    def prefill(
        self,
        slots: int,
        padding: Padding,
        weights: dict[str, jax.Array],
        tokens_BT: jax.Array,
        length_B: jax.Array,
    ) -> tuple[jax.Array, State]:
        """Logits of the next token, and the part of the state that depends on the prompts alone."""
        left = padding == "left"
        logits_BV, cache, filled_B, first_B = self.layout.prefill(
            partial(self.run, weights), tokens_BT, length_B, left=left, slots=slots
        )
        prompt_BT = ending_in(jnp, _right_aligned(tokens_BT, length_B, left=left), slots)
        state = {"cache": cache, "filled": filled_B, "first": first_B, "prompt": prompt_BT}
        if self.draft is not None:
            _, cache, filled_B, first_B = self.draft.layout.prefill(
                partial(self.draft.run, weights),
                jnp.minimum(tokens_BT, self.draft.vocab_size - 1),
                length_B,
                left=left,
                slots=slots,
            )
            state["draft"] = {"cache": cache, "filled": filled_B, "first": first_B}
        return logits_BV, state

    def first_token(
        self,
        top: int | None,
        plain: bool,
        logits_BV: jax.Array,
        prompt_BT: jax.Array,
        request_B: jax.Array,
        seed_B: jax.Array,
        settings: Settings,
    ) -> State:
        """The rest of the state.

        A program of its own: choosing takes longer to compile than a small network does, and this
        one serves prompts of every length.
        """
        rows, slots = prompt_BT.shape
        state: State = {
            "prompt": prompt_BT,
            **self._unchosen(rows, slots, top),
            "keys": sampling.request_keys(seed_B, request_B),
        }
        return state | self._chosen(state, logits_BV, settings, plain)

    @staticmethod
    def _unchosen(rows: int, room: int, top: int | None) -> State:
        """The state that `_chosen` changes, before any token."""
        return {
            "token": jnp.zeros(rows, jnp.int32),
            "done": jnp.zeros(rows, bool),
            "outputs": jnp.full((rows, room), UNFILLED, jnp.int32),
            "count": jnp.zeros(rows, jnp.int32),
            **jax.tree.map(jnp.asarray, empty_logprobs(rows, room, top)),
        }

    def _chosen(self, state: State, logits_BV: jax.Array, settings: Settings, plain: bool) -> State:
        """The state that choosing the next tokens changes."""
        if plain:
            chosen_B = sampling.greedy(logits_BV)
        else:
            history = History(state["prompt"], state["outputs"], state["count"])
            chosen_B = sampling.choose(logits_BV, state["keys"], history, settings)
        running_B = self.running(state, settings)
        sound_B = sampling.is_sound(logits_BV, chosen_B, greedy=plain)
        # A row that has ended keeps its last token, so that a saved batch ends as it should.
        token_B = jnp.where(running_B, chosen_B, state["token"])
        output_B = jnp.where(sound_B, token_B, NO_TOKEN)
        rows = jnp.arange(len(token_B))
        at = (rows, jnp.where(running_B, state["count"], state["outputs"].shape[1]))
        changed = {
            "token": token_B,
            "done": state["done"] | (running_B & (is_stop(token_B, settings) | ~sound_B)),
            "outputs": state["outputs"].at[at].set(output_B, mode="drop"),
            "count": state["count"] + running_B,
        }
        if recorded := [name for name in LOGPROBS if name in state]:
            top = state["top_logprobs"].shape[2]
            new = sampling.log_probabilities(logits_BV, token_B, top)
            changed |= {
                name: state[name].at[at].set(value, mode="drop")
                for name, value in zip(recorded, new, strict=True)
            }
        return changed

    @staticmethod
    def running(state: State, settings: Settings) -> jax.Array:
        """Rows that met no stop token and may have more tokens."""
        return ~state["done"] & (state["count"] < settings["max_new_tokens"])

    def _drafted(
        self, left: bool, proposals: int, weights: Any, state: State
    ) -> tuple[jax.Array, State]:
        """The draft's greedy tokens (B, N) after each row's last one, and its cache with all of
        their entries.
        """
        draft = self.draft
        assert draft is not None

        def fed(carry: State, _: None) -> tuple[State, jax.Array]:
            logits_BV, written = draft.layout.decode(partial(draft.run, weights), carry, left=left)
            token_B = jnp.argmax(logits_BV[:, : draft.vocab_size], -1).astype(jnp.int32)
            return {
                "cache": written(token_B),
                "filled": carry["filled"] + 1,
                "first": carry["first"],
                "token": token_B,
            }, token_B

        begin = {**state["draft"], "token": jnp.minimum(state["token"], draft.vocab_size - 1)}
        # The last proposal is also fed: if all are right, the next step needs its entries.
        after, tokens_TB = jax.lax.scan(fed, begin, length=proposals + 1)
        return tokens_TB[:-1].T, after["cache"]

    def _verified_step(
        self,
        left: bool,
        proposals: int,
        weights: dict[str, jax.Array],
        settings: Settings,
        state: State,
    ) -> State:
        """`_step` of one token or more."""
        running_B = self.running(state, settings)
        draft_cache = None
        if self.draft is None:
            history = History(state["prompt"], state["outputs"], state["count"])
            proposed_BN = prompt_lookup.proposed(history, proposals)
        else:
            proposed_BN, draft_cache = self._drafted(left, proposals, weights, state)
        tokens_BT = jnp.concatenate((state["token"][:, None], proposed_BN), 1)
        logits_BTV, written = self.layout.verify(
            partial(self.run, weights), state, tokens_BT, left=left
        )
        greedy_BT = jnp.argmax(logits_BTV, -1).astype(jnp.int32)
        sound_BT = sampling.is_sound(logits_BTV, greedy_BT, greedy=True)
        greedy_BT = jnp.where(sound_BT, greedy_BT, NO_TOKEN)
        most_B = jnp.where(running_B, settings["max_new_tokens"] - state["count"], 0)
        new_B = prompt_lookup.accepted(proposed_BN, greedy_BT, most_B, settings)
        last_B1 = jnp.maximum(new_B - 1, 0)[:, None]
        output_B = jnp.take_along_axis(greedy_BT, last_B1, 1)[:, 0]
        token_B = jnp.where(running_B, jnp.maximum(output_B, 0), state["token"])
        place = jnp.arange(proposals + 1)
        columns = jnp.where(
            place < new_B[:, None], state["count"][:, None] + place, state["outputs"].shape[1]
        )
        rows = jnp.arange(len(token_B))[:, None]
        if draft_cache is not None:
            draft = state["draft"]
            taken = {"cache": draft_cache, "filled": draft["filled"] + new_B}
            state = {**state, "draft": {**draft, **taken}}
        return state | {
            "token": token_B,
            "done": state["done"]
            | (running_B & (is_stop(token_B, settings) | (output_B == NO_TOKEN))),
            "outputs": state["outputs"].at[rows, columns].set(greedy_BT, mode="drop"),
            "count": state["count"] + new_B,
            "cache": written(token_B),
            "filled": state["filled"] + new_B,
        }

    def _step(
        self,
        left: bool,
        plain: bool,
        weights: dict[str, jax.Array],
        settings: Settings,
        state: State,
    ) -> State:
        running_B = self.running(state, settings)
        logits_BV, written = self.layout.decode(partial(self.run, weights), state, left=left)
        changed = self._chosen(state, logits_BV, settings, plain)
        return state | {
            **changed,
            "cache": written(changed["token"]),
            "filled": state["filled"] + running_B,
        }

    def loop(
        self,
        left: bool,
        plain: bool,
        proposals: int | None,
        weights: dict[str, jax.Array],
        state: State,
        steps: jax.Array,
        least_running: jax.Array,
        settings: Settings,
    ) -> State:
        def goes_on(carry: tuple[jax.Array, State]) -> jax.Array:
            step, state = carry
            return (step < steps) & (self.running(state, settings).sum() >= least_running)

        def advanced(carry: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
            step, state = carry
            if proposals is not None:
                return step + 1, self._verified_step(left, proposals, weights, settings, state)
            return step + 1, self._step(left, plain, weights, settings, state)

        return jax.lax.while_loop(goes_on, advanced, (jnp.int32(0), state))[1]

    def empty(
        self,
        slots: int,
        top: int | None,
        dtype: Any,
        none_B: jax.Array,
    ) -> State:
        """A batch whose rows have all ended, from zeros."""
        rows = len(none_B)
        return {
            "cache": self.layout.empty(rows, slots=slots, dtype=dtype),
            "filled": none_B,
            "first": none_B,
            "prompt": jnp.full((rows, slots), UNFILLED, jnp.int32),
            **self._unchosen(rows, slots, top),
            "done": jnp.ones(rows, bool),
            "keys": sampling.request_keys(none_B, none_B),
        }

    def prefill_packed(
        self, slots: int, weights: dict[str, jax.Array], prompts: dict[str, jax.Array]
    ) -> tuple[jax.Array, Any, jax.Array]:
        """Logits (P, V), entries of the cache, and prompts (P, `slots`) that end in the last
        column.
        """
        logits_PV, entries = self.layout.prefill_packed(partial(self.run, weights), prompts)
        begin_P1 = prompts["begin"][:, None]
        at = begin_P1 + prompts["length"][:, None] - slots + jnp.arange(slots)
        prompt_PT = jnp.where(at >= begin_P1, prompts["tokens"][jnp.maximum(at, 0)], UNFILLED)
        return logits_PV, entries, prompt_PT

    def admitted_packed(
        self,
        state: State,
        entries: Any,
        prompts: dict[str, jax.Array],
        chosen: State,
        row_P: jax.Array,
    ) -> State:
        """Puts prompts into their rows; `row_P` is the number of rows where there is no prompt."""
        new = {
            **chosen,
            "filled": prompts["length"],
            "first": jnp.zeros_like(row_P),
        }
        rows = {n: v.at[row_P].set(new[n], mode="drop") for n, v in state.items() if n != "cache"}
        return {**rows, "cache": self.layout.with_packed(state["cache"], entries, prompts, row_P)}

    def resized(self, slots: int, state: State, keep: jax.Array, count: jax.Array) -> State:
        """The rows `keep`, of which those from `count` on have ended, with so many slots."""
        rows = {n: v[keep] for n, v in state.items() if n != "cache"}
        rows["prompt"] = ending_in(jnp, rows["prompt"], slots)
        for name in ("outputs", *LOGPROBS):
            if name in rows:
                rows[name] = _of_length(rows[name], slots)
        rows["done"] = rows["done"] | (jnp.arange(len(keep)) >= count)
        return {**rows, "cache": self.layout.resized(state["cache"], keep, slots=slots)}

    def widened(self, rows: int, state: State) -> State:
        """A batch of one as a batch of many, whose other rows have ended."""
        wide = jax.tree.map(lambda x: jnp.repeat(x, rows, 0), state)
        return wide | {"done": wide["done"].at[1:].set(True)}

    def admitted(self, state: State, new: State, row: jax.Array, settings: Settings) -> State:
        running_B = self.running(state, settings).at[row].set(False)
        names = ("cache", "filled", "first")

        def of(layout: CacheLayout, state: State, new: State) -> State:
            values = layout.admitted(state, new, row, running_B)
            return dict(zip(names, values, strict=True))

        others = {n: v for n, v in state.items() if n not in (*names, "draft")}
        rows = {n: v.at[row].set(new[n][0]) for n, v in others.items()}
        if self.draft is not None:
            rows["draft"] = of(self.draft.layout, state["draft"], new["draft"])
        return {**rows, **of(self.layout, state, new)}

    def realigned(self, state: State, settings: Settings) -> State:
        cache, filled_B, first_B = self.layout.realigned(state, self.running(state, settings))
        return {**state, "cache": cache, "filled": filled_B, "first": first_B}

    def search(
        self,
        count: int,
        room: int,
        slots: int,
        padding: Padding,
        weights: dict[str, jax.Array],
        tokens_BT: jax.Array,
        length_B: jax.Array,
        settings: Settings,
    ) -> tuple[jax.Array, jax.Array]:
        left, run = padding == "left", partial(self.run, weights)
        logits_BV, cache, filled_B, first_B = self.layout.prefill(
            run, tokens_BT, length_B, left=left, slots=slots
        )

        def repeated(tree: Any) -> Any:
            return jax.tree.map(lambda x: jnp.repeat(x, count, 0), tree)

        prompt_BT = repeated(_right_aligned(tokens_BT, length_B, left=left))
        search, _, token_B = beams.step(
            repeated(logits_BV), prompt_BT, beams.no_beams(len(tokens_BT), count, room), settings
        )
        state = repeated({"cache": cache, "filled": filled_B, "first": first_B})
        state["token"] = token_B

        def advanced(carry: tuple[State, State]) -> tuple[State, State]:
            state, search = carry
            logits_BV, written = self.layout.decode(run, state, left=left)
            state = {**state, "cache": written(state["token"]), "filled": state["filled"] + 1}
            search, parent_B, token_B = beams.step(logits_BV, prompt_BT, search, settings)
            state = jax.tree.map(lambda x: x[parent_B], state)
            return {**state, "token": token_B}, search

        _, search = jax.lax.while_loop(
            lambda carry: beams.goes_on(carry[1], settings), advanced, (state, search)
        )
        return search["ended_outputs"], search["ended_scores"]


def _right_aligned(tokens_BT: jax.Array, length_B: jax.Array, *, left: bool) -> jax.Array:
    """Prompts that end in the last column, `UNFILLED` before them."""
    count = tokens_BT.shape[1]
    gap_B = count - length_B
    aligned_BT = tokens_BT if left else jax.vmap(jnp.roll)(tokens_BT, gap_B)
    return jnp.where(jnp.arange(count) < gap_B[:, None], UNFILLED, aligned_BT)


def _of_length(outputs_BT: jax.Array, slots: int) -> jax.Array:
    """Outputs, or values recorded for them, in a buffer of another size."""
    grow = [(0, 0)] * outputs_BT.ndim
    grow[1] = (0, max(0, slots - outputs_BT.shape[1]))
    return jnp.pad(outputs_BT[:, :slots], grow, constant_values=UNFILLED)

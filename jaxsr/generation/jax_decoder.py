"""Generation in JAX: one compiled prefill per length bucket, one compiled decode loop.

The loop runs on the device for as many tokens as the caller asks, its cache donated and updated in
place; nothing crosses to the host in between. The torch module is traced through
`jaxsr.interop`, so the network exists once; a program that was traced before comes from a folder.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxsr.generation import beams, prompt_lookup, sampling, sharding
from jaxsr.generation.cache_layouts import OwnLayout, layout_of
from jaxsr.generation.decoder import (
    ENDED,
    LOGPROBS,
    UNFILLED,
    Engine,
    Snapshot,
    empty_logprobs,
    end_rows,
    logprobs_capacity,
)
from jaxsr.generation.logits_processors import (
    History,
    Settings,
    is_stop,
    settings_of,
)
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.packed_layers import Packed, lower_packed_product, use_kernels
from jaxsr.generation.padding import Padding, cache_slots, padded
from jaxsr.generation.stored_programs import stored, structure
from jaxsr.interop.cpu_kernels import packed_product
from jaxsr.interop.mesh import place
from jaxsr.models.llama.host_weights import host_weights, without_values
from jaxsr.models.llama.int8_matmul import multiply_integers
from jaxsr.models.llama.network import CausalLM
from jaxsr.models.llama.packed import arranged_copy, has_blocks, level_arrays
from jaxsr.models.llama.transposed import linear_weights, transpose, untie_head
from jaxsr.ops._cpu_calls import xla_only

if TYPE_CHECKING:
    from jaxsr.interop import JaxModule

State = dict[str, Any]

# Outputs are held in a buffer of a multiple of this, so that few loops are compiled.
_OUTPUT_STEP = 64


class JaxBatch:
    """A batch under way: its state on the device, and what decides how it goes on."""

    padding: Padding

    def __init__(
        self,
        state: State,
        options: SamplingOptions,
        stop_ids: Sequence[int],
        padding: Padding,
        requests: np.ndarray,
        seeds: np.ndarray,
        *,
        settings: Settings,
        slots: int,
    ) -> None:
        self.state, self.options, self.stop_ids = state, options, tuple(stop_ids)
        self.padding, self.requests, self.seeds = padding, requests, seeds
        self.settings, self.slots = settings, slots
        self.admits = False


class JaxEngine(Engine):
    """Runs a causal language model in JAX.

    Args:
      network: the torch module with its weights, which is not changed.
      mesh: devices along an axis `tensor` to split weights and cache over. Default: one device.
      programs: folder of traced programs, see `jaxsr.generation.stored_programs`. None keeps none.
      packed: how weights in blocks are multiplied on one CPU; see
        `jaxsr.interop.cpu_kernels.packed_product`. `off`: unpacked in each product.
    """

    def __init__(
        self,
        network: Any,
        *,
        mesh: Mesh | None = None,
        programs: Path | None = None,
        packed: Packed = "exact",
    ) -> None:
        self.config = network.config
        mesh = sharding.tensor_mesh(1) if mesh is None else mesh
        self.mesh = sharding.grouped_by_heads(mesh, network.config.num_key_value_heads)
        device = self.mesh.devices.flat[0]
        self.platform, self.devices = device.platform, self.mesh.size
        self.device = f"{device.platform}: {device.device_kind}" + (
            f" × {self.mesh.size}" if self.mesh.size > 1 else ""
        )
        self.compile_s = 0.0
        on_cpu = self.platform == "cpu"
        if has_blocks(network):
            network = arranged_copy(network)
            if packed != "off" and on_cpu and self.mesh.size == 1 and packed_product.available():
                use_kernels(network, exact=packed == "exact")
        self._skeleton = without_values(network)
        multiply_integers(self._skeleton, weight_only=on_cpu)
        self._layout = layout_of(network, self.mesh)
        self.looks_up = isinstance(self._layout, OwnLayout)
        # The program turns the latter back, and XLA drops both turns.
        self._turned, self._turned_back = frozenset[str](), level_arrays(self._skeleton)
        self._copied: dict[str, str] = {}
        if on_cpu and isinstance(network, CausalLM):
            self._turned = transpose(self._skeleton)
        elif on_cpu:
            self._copied = untie_head(self._skeleton)
            self._turned_back |= linear_weights(self._skeleton)
        self._turned |= self._turned_back
        self._folder = programs
        self._weights = self._placed(network)
        self._dtype = jnp.dtype(str(network.dtype).removeprefix("torch."))
        self._programs: dict[Any, Callable[..., Any]] = {}

    def _placed(self, network: Any) -> dict[str, jax.Array]:
        host = host_weights(network)
        host |= {name: host[source] for name, source in self._copied.items()}
        for name in self._turned:
            host[name] = np.ascontiguousarray(host[name].T)
        return place(host, self._layout.weight_shardings(host, self._turned))

    @cached_property
    def _model(self) -> "JaxModule":
        # Only a trace needs it, and importing what it takes is a good part of a short run.

        from jaxsr.interop import lowering, to_jax

        lowering("aten::_int_mm")(_integer_product)
        lowering("jaxsr::packed_product")(lower_packed_product)
        return to_jax(self._skeleton)

    def _run(self, weights: dict[str, jax.Array], *args: Any, **kwargs: Any) -> Any:
        weights = {n: w.T if n in self._turned_back else w for n, w in weights.items()}
        params = {name: weights[name] for name in self._model.params}
        buffers = {name: weights[name] for name in self._model.buffers}
        with warnings.catch_warnings():
            # Of libraries' code that counts in int64, which JAX has as int32.
            warnings.filterwarnings("ignore", "Explicitly requested dtype")
            return self._model.apply(params, buffers, *args, **kwargs)[0]

    # ---- programs

    def _program(
        self, key: tuple[Any, ...], function: Callable[..., Any], *args: Any, donate: Any = ()
    ) -> Callable[..., Any]:
        """The compiled program for this key, compiled ahead so that its time is known."""
        if key not in self._programs:
            begin = time.perf_counter()
            long_key = (*key, self.platform, structure(self._skeleton))
            with xla_only():  # calls of kernels cannot be stored
                traced = stored(self._folder, long_key, function, args, name=key[0])
                lowered = jax.jit(traced, donate_argnums=donate).lower(*args)
            self._programs[key] = lowered.compile()
            self.compile_s += time.perf_counter() - begin
        return self._programs[key]

    def _prefill(
        self,
        slots: int,
        prompt_slots: int,
        padding: Padding,
        weights: dict[str, jax.Array],
        tokens_BT: jax.Array,
        length_B: jax.Array,
    ) -> tuple[jax.Array, State]:
        """Logits of the next token, and the part of the state that depends on the prompts alone."""
        left = padding == "left"
        logits_BV, cache, filled_B, first_B = self._layout.prefill(
            partial(self._run, weights), tokens_BT, length_B, left=left, slots=slots
        )
        prompt_BT = _widened(_right_aligned(tokens_BT, length_B, left=left), prompt_slots)
        return logits_BV, {
            "cache": cache,
            "filled": filled_B,
            "first": first_B,
            "prompt": prompt_BT,
        }

    def _first_token(
        self,
        options: SamplingOptions,
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
        rows, room = len(prompt_BT), room_for(options)
        state: State = {
            "prompt": prompt_BT,
            "token": jnp.zeros(rows, jnp.int32),
            "done": jnp.zeros(rows, bool),
            "outputs": jnp.full((rows, room), UNFILLED, jnp.int32),
            "count": jnp.zeros(rows, jnp.int32),
            "keys": sampling.request_keys(seed_B, request_B),
            **jax.tree.map(jnp.asarray, empty_logprobs(rows, room, self._top(options))),
        }
        return state | self._chosen(state, logits_BV, settings, self._is_plain(options))

    def _is_plain(self, options: SamplingOptions) -> bool:
        """Whether programs are compiled for plain greedy decoding alone.

        On a mesh they are: the branches that sort would gather the logits of all devices.
        """
        return options.plain and self.devices > 1

    def _chosen(self, state: State, logits_BV: jax.Array, settings: Settings, plain: bool) -> State:
        """What choosing the next tokens changes."""
        if plain:
            chosen_B = jnp.argmax(logits_BV, -1).astype(jnp.int32)
        else:
            history = History(state["prompt"], state["outputs"], state["count"])
            chosen_B = sampling.choose(logits_BV, state["keys"], history, settings)
        running_B = self._running(state, settings)
        # A row that has ended keeps its last token, so that a saved batch ends as it should.
        token_B = jnp.where(running_B, chosen_B, state["token"])
        rows = jnp.arange(len(token_B))
        at = (rows, jnp.where(running_B, state["count"], state["outputs"].shape[1]))
        changed = {
            "token": token_B,
            "done": state["done"] | (running_B & is_stop(token_B, settings)),
            "outputs": state["outputs"].at[at].set(token_B, mode="drop"),
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
    def _running(state: State, settings: Settings) -> jax.Array:
        """Rows that met no stop token and may have more tokens."""
        return ~state["done"] & (state["count"] < settings["max_new_tokens"])

    def _lookup_step(
        self,
        left: bool,
        proposals: int,
        weights: dict[str, jax.Array],
        settings: Settings,
        state: State,
    ) -> State:
        """`_step` of one token or more."""
        assert isinstance(self._layout, OwnLayout)
        running_B = self._running(state, settings)
        history = History(state["prompt"], state["outputs"], state["count"])
        proposed_BN = prompt_lookup.proposed(history, proposals)
        tokens_BT = jnp.concatenate((state["token"][:, None], proposed_BN), 1)
        logits_BTV, written = self._layout.verify(
            partial(self._run, weights), state, tokens_BT, left=left
        )
        greedy_BT = jnp.argmax(logits_BTV, -1).astype(jnp.int32)
        most_B = jnp.where(running_B, settings["max_new_tokens"] - state["count"], 0)
        new_B = prompt_lookup.accepted(proposed_BN, greedy_BT, most_B, settings)
        last_B1 = jnp.maximum(new_B - 1, 0)[:, None]
        token_B = jnp.take_along_axis(greedy_BT, last_B1, 1)[:, 0]
        token_B = jnp.where(running_B, token_B, state["token"])
        place = jnp.arange(proposals + 1)
        columns = jnp.where(
            place < new_B[:, None], state["count"][:, None] + place, state["outputs"].shape[1]
        )
        rows = jnp.arange(len(token_B))[:, None]
        return state | {
            "token": token_B,
            "done": state["done"] | (running_B & is_stop(token_B, settings)),
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
        running_B = self._running(state, settings)
        logits_BV, written = self._layout.decode(partial(self._run, weights), state, left=left)
        changed = self._chosen(state, logits_BV, settings, plain)
        return state | {
            **changed,
            "cache": written(changed["token"]),
            "filled": state["filled"] + running_B,
        }

    def _loop(
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
            return (step < steps) & (self._running(state, settings).sum() >= least_running)

        def advanced(carry: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
            step, state = carry
            if proposals is not None:
                return step + 1, self._lookup_step(left, proposals, weights, settings, state)
            return step + 1, self._step(left, plain, weights, settings, state)

        return jax.lax.while_loop(goes_on, advanced, (jnp.int32(0), state))[1]

    # ---- what Engine asks for

    def _start(
        self,
        tokens: np.ndarray,
        length: np.ndarray,
        requests: np.ndarray,
        seeds: np.ndarray,
        options: SamplingOptions,
        stop_ids: tuple[int, ...],
        slots: int,
        prompt_slots: int,
        padding: Padding,
    ) -> JaxBatch:
        settings = settings_of(options, stop_ids)
        *inputs, settings = self._replicated(tokens, length, requests, seeds, settings)
        static = (slots, prompt_slots, padding)
        args: tuple[Any, ...] = (self._weights, *inputs[:2])
        prefill = self._program(
            ("prefill", *static, tokens.shape), partial(self._prefill, *static), *args
        )
        logits, state = prefill(*args)
        args = (logits, state["prompt"], *inputs[2:], settings)
        key = ("first_token", self._top(options), room_for(options), self._is_plain(options))
        first_token = self._program(
            (*key, _tables(settings), *state["prompt"].shape),
            partial(self._first_token, options),
            *args,
        )
        state |= first_token(*args)
        return JaxBatch(
            state, options, stop_ids, padding, requests, seeds, settings=settings, slots=slots
        )

    def admit(
        self, batch: JaxBatch, row: int, prompt: Sequence[int], request: int, seed: int
    ) -> None:
        tokens, length = padded([prompt], padding=batch.padding)
        numbers = np.asarray([request, seed], np.int32)
        prompt_slots = batch.state["prompt"].shape[1]
        new = self._start(
            tokens,
            length,
            numbers[:1],
            numbers[1:],
            batch.options,
            batch.stop_ids,
            batch.slots,
            prompt_slots,
            batch.padding,
        )
        args = (batch.state, new.state, *self._replicated(np.int32(row)))
        batch.state = self._replaced("admit", batch, self._admitted, *args)
        batch.admits = True

    def _admitted(self, state: State, new: State, row: jax.Array, settings: Settings) -> State:
        running_B = self._running(state, settings).at[row].set(False)
        cache, filled_B, first_B = self._layout.admitted(state, new, row, running_B)
        others = {n: v for n, v in state.items() if n not in ("cache", "filled", "first")}
        rows = {n: v.at[row].set(new[n][0]) for n, v in others.items()}
        return {**rows, "cache": cache, "filled": filled_B, "first": first_B}

    def _realigned(self, state: State, settings: Settings) -> State:
        cache, filled_B, first_B = self._layout.realigned(state, self._running(state, settings))
        return {**state, "cache": cache, "filled": filled_B, "first": first_B}

    def _replaced(
        self, name: str, batch: JaxBatch, function: Callable[..., Any], *args: Any
    ) -> State:
        """The state that a program makes of `args`, of which the first is the batch's state."""
        shapes = tuple(x.shape for x in jax.tree.leaves(args))
        args = (*args, batch.settings)
        program = self._program((name, _tables(batch.settings), shapes), function, *args, donate=0)
        return program(*args)

    def _loop_args(self, batch: JaxBatch, steps: int, least_running: int = 1) -> tuple[Any, ...]:
        return *self._replicated(np.int32(steps), np.int32(least_running)), batch.settings

    def _decode_program(self, batch: JaxBatch, *args: Any) -> Callable[..., Any]:
        options = batch.options
        static = (batch.padding == "left", self._is_plain(options), options.prompt_lookup)
        shapes = tuple(x.shape for x in jax.tree.leaves(batch.state))
        key = ("decode", _tables(batch.settings), static, shapes)
        loop = partial(self._loop, *static)
        return self._program(key, loop, self._weights, batch.state, *args, donate=1)

    def advance(self, batch: JaxBatch, steps: int, *, least_running: int = 1) -> None:
        if batch.admits and self._layout.shares_slots:
            reach = int(batch.state["filled"].max())
            if reach + steps > batch.slots:
                batch.state = self._replaced("realign", batch, self._realigned, batch.state)
                reach = int(batch.state["filled"].max())
            steps = min(steps, batch.slots - reach)
        args = self._loop_args(batch, steps, least_running)
        program = self._decode_program(batch, *args)
        batch.state = program(self._weights, batch.state, *args)

    def search(
        self,
        prompts: Sequence[Sequence[int]],
        options: SamplingOptions,
        *,
        stop_ids: Sequence[int] = (),
        slots: int,
        padding: Padding = "right",
    ) -> tuple[np.ndarray, np.ndarray]:
        settings = settings_of(options, stop_ids) | beams.beam_settings(options, room_for(options))
        args = self._replicated(*padded(prompts, padding=padding), settings)
        static = (options.num_beams, room_for(options), slots, padding)
        key = ("beams", _tables(settings), static, args[0].shape)
        program = self._program(key, partial(self._search, *static), self._weights, *args)
        outputs, scores = program(self._weights, *args)
        return np.asarray(outputs), np.asarray(scores)

    def _search(
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
        left, run = padding == "left", partial(self._run, weights)
        logits_BV, cache, filled_B, first_B = self._layout.prefill(
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
            logits_BV, written = self._layout.decode(run, state, left=left)
            state = {**state, "cache": written(state["token"]), "filled": state["filled"] + 1}
            search, parent_B, token_B = beams.step(logits_BV, prompt_BT, search, settings)
            state = jax.tree.map(lambda x: x[parent_B], state)
            return {**state, "token": token_B}, search

        _, search = jax.lax.while_loop(
            lambda carry: beams.goes_on(carry[1], settings), advanced, (state, search)
        )
        return search["ended_outputs"], search["ended_scores"]

    def outputs(self, batch: JaxBatch) -> np.ndarray:
        count, outputs = jax.device_get((batch.state["count"], batch.state["outputs"]))
        return outputs[:, : count.max()]

    def running(self, batch: JaxBatch) -> np.ndarray:
        done, count = jax.device_get((batch.state["done"], batch.state["count"]))
        return ~done & (count < batch.options.max_new_tokens)

    def logprobs(self, batch: JaxBatch, row: int) -> tuple[np.ndarray, ...] | None:
        if LOGPROBS[0] not in batch.state:
            return None
        return tuple(np.asarray(batch.state[name][row]) for name in LOGPROBS)

    def end(self, batch: JaxBatch, lengths: Mapping[int, int]) -> None:
        state = {n: np.array(v) for n, v in batch.state.items() if n in ENDED}
        end_rows(state, lengths)
        batch.state |= dict(zip(state, self._replicated(*state.values()), strict=True))

    def snapshot(self, batch: JaxBatch) -> Snapshot:
        state = jax.device_get(batch.state)
        filled, first = state["filled"], state["first"]
        return Snapshot(
            cache=self._layout.on_host(state["cache"], first, filled),
            filled=filled - first,
            token=state["token"],
            done=state["done"],
            prompt=state["prompt"],
            outputs=state["outputs"][:, : int(state["count"].max())],
            requests=batch.requests,
            seeds=batch.seeds,
        )

    def resume(
        self, snapshot: Snapshot, options: SamplingOptions, *, stop_ids: Sequence[int] = ()
    ) -> JaxBatch:
        count_B = snapshot.counts
        longest = int(snapshot.filled.max())
        remaining = max(options.most_slots - int(count_B.min()), 1)
        slots = cache_slots(longest, remaining, context=self.config.max_position_embeddings)
        cache, filled, first = self._layout.placed(
            snapshot.cache, snapshot.filled.astype(np.int32), slots=slots, dtype=self._dtype
        )
        rows, room = len(count_B), max(room_for(options), snapshot.outputs.shape[1])
        outputs = np.full((rows, room), UNFILLED, np.int32)
        outputs[:, : snapshot.outputs.shape[1]] = snapshot.outputs
        keys = sampling.request_keys(jnp.asarray(snapshot.seeds), jnp.asarray(snapshot.requests))
        state: State = {
            "filled": filled,
            "first": first,
            "token": snapshot.token.astype(np.int32),
            "done": snapshot.done | np.isin(snapshot.token, stop_ids),
            "prompt": snapshot.prompt,
            "outputs": outputs,
            "count": count_B,
            "keys": np.asarray(keys),
            **empty_logprobs(rows, room, self._top(options)),
        }
        state = dict(zip(state, self._replicated(*state.values()), strict=True))
        state["cache"] = cache
        return JaxBatch(
            state,
            options,
            stop_ids,
            "right",
            snapshot.requests,
            snapshot.seeds,
            settings=self._replicated(settings_of(options, stop_ids))[0],
            slots=slots,
        )

    def _top(self, options: SamplingOptions) -> int | None:
        return logprobs_capacity(options, self.config.vocab_size)

    def _replicated(self, *arrays: Any) -> tuple[Any, ...]:
        """Arrays, or tables of them, on every device."""
        everywhere = sharding.replicated(self.mesh)
        return tuple(jax.tree.map(lambda x: place(x, everywhere), array) for array in arrays)


def _integer_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """The sums of `a @ b`, int8, as int32."""
    # `b` is a transposed weight. Turned back, XLA drops both turns and multiplies the weight as it
    # is stored; given as it comes, its CPU multiplies element by element, 25 times slower.
    contract = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(a, b.T, contract, preferred_element_type=jnp.int32)


def _tables(settings: Settings) -> tuple[Any, ...]:
    """Sizes of the tables in `settings_of`: all that a program depends on."""
    return tuple((name, x.shape) for name, x in settings.items() if x.ndim)


def _right_aligned(tokens_BT: jax.Array, length_B: jax.Array, *, left: bool) -> jax.Array:
    """Prompts that end in the last column, `UNFILLED` before them."""
    count = tokens_BT.shape[1]
    gap_B = count - length_B
    aligned_BT = tokens_BT if left else jax.vmap(jnp.roll)(tokens_BT, gap_B)
    return jnp.where(jnp.arange(count) < gap_B[:, None], UNFILLED, aligned_BT)


def _widened(prompt_BT: jax.Array, slots: int) -> jax.Array:
    grow = [(0, 0), (slots - prompt_BT.shape[1], 0)]
    return jnp.pad(prompt_BT, grow, constant_values=UNFILLED)


def room_for(options: SamplingOptions) -> int:
    """Tokens that the buffer of outputs holds."""
    return -(-options.max_new_tokens // _OUTPUT_STEP) * _OUTPUT_STEP

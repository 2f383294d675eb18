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

from jaxsr.generation import beams, sampling, sharding
from jaxsr.generation.cache_layouts import OwnLayout, layout_of
from jaxsr.generation.decoder import (
    ENDED,
    LOGPROBS,
    MOST_PACKED,
    UNFILLED,
    Engine,
    Snapshot,
    empty_logprobs,
    end_rows,
    logprobs_capacity,
)
from jaxsr.generation.jax_steps import State, Steps
from jaxsr.generation.logits_processors import Settings, settings_of
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.packed_layers import Packed, lower_packed_product, use_kernels
from jaxsr.generation.padding import Padding, cache_slots, packed, padded
from jaxsr.generation.stored_programs import stored, structure
from jaxsr.generation.stored_weights import StoredWeights
from jaxsr.interop.cpu_kernels import packed_product
from jaxsr.interop.mesh import place
from jaxsr.models.llama.host_weights import without_values
from jaxsr.models.llama.int8_matmul import multiply_integers
from jaxsr.models.llama.network import take_fewer_kernels
from jaxsr.models.llama.packed import arranged_copy, has_blocks
from jaxsr.ops._cpu_calls import xla_only
from jaxsr.runtime.cuda_graphs import LOOPS_IN_GRAPHS
from jaxsr.runtime.xla_flags import product_fusion

if TYPE_CHECKING:
    from jaxsr.interop import JaxModule

# Rows that decode together in deterministic mode. A matrix product of four reads each weight once
# and gives each row the same bits; with more a single prompt would pay for rows that are not there.
TILE = 4

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
      rows: how many are to decode together, if known; `TILE` for deterministic generation. A CPU
        has a faster layout of float32 weights for a few, see `jaxsr.models.llama.transposed`.
    """

    def __init__(
        self,
        network: Any,
        *,
        mesh: Mesh | None = None,
        programs: Path | None = None,
        packed: Packed = "exact",
        rows: int = 1,
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
        if self.platform == "gpu":
            take_fewer_kernels(self._skeleton, join=self.devices == 1)
        self._layout = layout_of(network, self.mesh)
        self._steps = Steps(self._layout, self._run)
        self.looks_up = isinstance(self._layout, OwnLayout)
        self.starts_alone = True
        self.packs_prompts = self._layout.packs_prompts and self.devices == 1
        # Where rows share slots, a row's place in them depends on the others.
        self.tile = 1 if self._layout.shares_slots or self.devices > 1 else TILE
        few = self.mesh.size == 1 and bool(product_fusion())
        self._stored = StoredWeights.chosen(
            network, self._skeleton, on_cpu=on_cpu, rows=rows if few else 1
        )
        self._folder = programs
        self._weights = self._placed(network)
        self._dtype = jnp.dtype(str(network.dtype).removeprefix("torch."))
        self._programs: dict[Any, Callable[..., Any]] = {}

    def _placed(self, network: Any) -> dict[str, jax.Array]:
        host = self._stored.of(network)
        return place(host, self._layout.weight_shardings(host, self._stored.turned))

    @cached_property
    def _model(self) -> "JaxModule":
        # Only a trace needs it, and importing what it takes is a good part of a short run.

        from jaxsr.interop import lowering, to_jax

        lowering("aten::_int_mm")(_integer_product)
        lowering("jaxsr::packed_product")(lower_packed_product)
        return to_jax(self._skeleton)

    def _run(self, weights: dict[str, jax.Array], *args: Any, **kwargs: Any) -> Any:
        weights = self._stored.for_network(weights)
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
            options = self._options_of_decode if key[0] == "decode" else None
            self._programs[key] = lowered.compile(options)
            self.compile_s += time.perf_counter() - begin
        return self._programs[key]

    @property
    def _options_of_decode(self) -> dict[str, str | bool] | None:
        if self.platform == "gpu":
            return LOOPS_IN_GRAPHS
        return product_fusion() if self._stored.panels else None  # others copy panels each time

    def _first_token_options(self, options: SamplingOptions) -> tuple[int, int | None, bool]:
        """Static arguments of `Steps.first_token`."""
        return room_for(options), self._top(options), self._is_plain(options)

    def _loop_options(
        self, options: SamplingOptions, padding: Padding
    ) -> tuple[bool, bool, int | None]:
        """Static arguments of `Steps.loop`."""
        return padding == "left", self._is_plain(options), options.prompt_lookup

    def _is_plain(self, options: SamplingOptions) -> bool:
        """Whether programs are compiled for plain greedy decoding alone.

        On a mesh they are: the branches that sort would gather the logits of all devices. Not on
        one GPU: XLA leaves a loop without branches out of CUDA graphs.
        """
        return options.plain and self.devices > 1

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
            ("prefill", *static, tokens.shape), partial(self._steps.prefill, *static), *args
        )
        logits, state = prefill(*args)
        state |= self._first_tokens(options, logits, state["prompt"], *inputs[2:], settings)
        return JaxBatch(
            state, options, stop_ids, padding, requests, seeds, settings=settings, slots=slots
        )

    def _first_tokens(
        self, options: SamplingOptions, logits: jax.Array, prompt: jax.Array, *others: Any
    ) -> State:
        static, args = self._first_token_options(options), (logits, prompt, *others)
        first_token = self._program(
            ("first_token", *static, _tables(others[-1]), *prompt.shape),
            partial(self._steps.first_token, *static),
            *args,
        )
        return first_token(*args)

    def start_empty(
        self,
        options: SamplingOptions,
        *,
        stop_ids: Sequence[int] = (),
        rows: int,
        slots: int,
        prompt_slots: int,
    ) -> JaxBatch:
        none = np.zeros(rows, np.int32)
        zeros, settings = self._replicated(none, settings_of(options, tuple(stop_ids)))
        static = (slots, prompt_slots, room_for(options), self._top(options), self._dtype)
        empty = self._program(("empty", rows, *static), partial(self._steps.empty, *static), zeros)
        batch = JaxBatch(
            empty(zeros),
            options,
            stop_ids,
            "right",
            none,
            none.copy(),
            settings=settings,
            slots=slots,
        )
        batch.admits = True
        return batch

    def admit_packed(
        self,
        batch: JaxBatch,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        requests: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        count, prompt_slots = len(batch.requests), batch.state["prompt"].shape[1]
        places = min(count, MOST_PACKED)
        batch.requests[list(rows)], batch.seeds[list(rows)] = requests, seeds
        fill = [(0, places - len(rows))]
        row_P = np.pad(np.asarray(rows, np.int32), fill, constant_values=count)
        numbers = (np.pad(np.asarray(each, np.int32), fill) for each in (requests, seeds))
        table, row_P, *numbers = self._replicated(packed(prompts, places=places), row_P, *numbers)
        tokens = len(table["tokens"])
        prefill = self._program(
            ("prefill_packed", prompt_slots, places, tokens),
            partial(self._steps.prefill_packed, prompt_slots),
            self._weights,
            table,
        )
        logits, entries, prompt = prefill(self._weights, table)
        chosen = self._first_tokens(batch.options, logits, prompt, *numbers, batch.settings)
        args = (batch.state, entries, table, chosen, row_P)
        shapes = tuple(x.shape for x in jax.tree.leaves(args))
        admit = self._program(
            ("admit_packed", shapes), self._steps.admitted_packed, *args, donate=0
        )
        batch.state = admit(*args)

    def resize(self, batch: JaxBatch, keep: Sequence[int], *, rows: int, slots: int) -> None:
        index = np.zeros(rows, np.int32)
        index[: len(keep)] = keep
        args = (batch.state, *self._replicated(index, np.int32(len(keep))))
        shapes = tuple(x.shape for x in jax.tree.leaves(args))
        function = partial(self._steps.resized, slots)
        batch.state = self._program(("resize", slots, shapes), function, *args)(*args)
        batch.requests, batch.seeds = batch.requests[index], batch.seeds[index]
        batch.slots = slots

    def start_alone(
        self,
        prompt: Sequence[int],
        request: int,
        options: SamplingOptions,
        *,
        stop_ids: Sequence[int] = (),
        slots: int,
        prompt_slots: int,
        padding: Padding = "right",
        seed: int,
        rows: int,
    ) -> JaxBatch:
        batch = self.start(
            [prompt],
            [request],
            options,
            stop_ids=stop_ids,
            slots=slots,
            prompt_slots=prompt_slots,
            padding=padding,
            seeds=[seed],
        )
        key = ("widen", rows, *(x.shape for x in jax.tree.leaves(batch.state)))
        widen = self._program(key, partial(self._steps.widened, rows), batch.state)
        batch.state = widen(batch.state)
        batch.requests, batch.seeds = (np.repeat(a, rows) for a in (batch.requests, batch.seeds))
        return batch

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
        batch.state = self._replaced("admit", batch, self._steps.admitted, *args)
        batch.requests[row], batch.seeds[row] = request, seed
        batch.admits = True

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
        static = self._loop_options(options, batch.padding)
        shapes = tuple(x.shape for x in jax.tree.leaves(batch.state))
        key = ("decode", _tables(batch.settings), static, shapes)
        loop = partial(self._steps.loop, *static)
        return self._program(key, loop, self._weights, batch.state, *args, donate=1)

    def advance(self, batch: JaxBatch, steps: int, *, least_running: int = 1) -> None:
        if batch.admits and self._layout.shares_slots:
            reach = int(batch.state["filled"].max())
            if reach + steps > batch.slots:
                batch.state = self._replaced("realign", batch, self._steps.realigned, batch.state)
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
        program = self._program(key, partial(self._steps.search, *static), self._weights, *args)
        outputs, scores = program(self._weights, *args)
        return np.asarray(outputs), np.asarray(scores)

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


def room_for(options: SamplingOptions) -> int:
    """Tokens that the buffer of outputs holds."""
    return -(-options.max_new_tokens // _OUTPUT_STEP) * _OUTPUT_STEP

"""Generation in JAX: one compiled prefill per length bucket, one compiled decode loop.

The loop runs on the device for as many tokens as the caller asks, its cache donated and updated in
place; nothing crosses to the host in between.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxsr.generation import beams, sampling, sharding
from jaxsr.generation.decoder import (
    MOST_PACKED,
    Batch,
    BatchDecoder,
    BatchSnapshot,
)
from jaxsr.generation.jax_network import JaxNetwork
from jaxsr.generation.jax_steps import State
from jaxsr.generation.logits_processors import Settings, settings_of
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.packed_layers import Packed
from jaxsr.generation.padding import Padding, packed, padded

# Rows that decode together in deterministic mode. A matrix product of four reads each weight once
# and gives each row the same bits; with more a single prompt would pay for rows that are not there.
TILE = 4

# Outputs of beams are stored in a buffer of a multiple of this size, so that few programs are
# compiled.
_OUTPUT_STEP = 64


class JaxDecoder(JaxNetwork, BatchDecoder):
    """Runs a causal language model in JAX.

    Args:
      network: the torch module with its weights.
      mesh: devices along an axis `tensor` to split weights and cache over. Default: one device.
      programs: folder of traced programs, see `jaxsr.generation.stored_programs`. None keeps none.
      packed: how weights in blocks are multiplied on one CPU; see
        `jaxsr.interop.cpu_kernels.panel_product`. `off`: unpacked in each product.
      keeps_values: whether `network` and `draft` keep their weights' values. Otherwise each is
        freed once it lies on the devices.
      draft: a smaller network of the same tokenizer, which proposes tokens. None: there is none.
    """

    def __init__(
        self,
        network: Any,
        *,
        mesh: Mesh | None = None,
        programs: Path | None = None,
        packed: Packed = "exact",
        keeps_values: bool = True,
        draft: Any = None,
    ) -> None:
        super().__init__(
            network,
            mesh=sharding.tensor_mesh(1) if mesh is None else mesh,
            programs=programs,
            packed=packed,
            keeps_values=keeps_values,
            draft=draft,
        )
        self.widens = True
        self.packs_prompts = self._layout.packs_prompts and self.devices == 1
        # Where rows share slots, a row's place in them depends on the others.
        self.tile = 1 if self._layout.shares_slots or self.devices > 1 else TILE

    def _first_token_options(self, options: SamplingOptions) -> tuple[int | None, bool]:
        """Static arguments of `Steps.first_token`."""
        return self._top(options), self._is_plain(options)

    def _loop_options(
        self, options: SamplingOptions, padding: Padding
    ) -> tuple[bool, bool, int | None]:
        """Static arguments of `Steps.loop`."""
        return padding == "left", self._is_plain(options), options.proposals

    def _is_plain(self, options: SamplingOptions) -> bool:
        """Whether programs are compiled for plain greedy decoding alone.

        Choosing takes longer to compile than a small network, and on a mesh the branches that sort
        would gather the logits of all devices. Not on one GPU: XLA leaves a loop without branches
        out of CUDA graphs.
        """
        return options.plain and (self.devices > 1 or self.platform != "gpu")

    def _new_batch(
        self,
        options: SamplingOptions,
        stop_ids: Sequence[int],
        padding: Padding,
        requests: np.ndarray,
        seeds: np.ndarray,
        slots: int,
    ) -> Batch:
        (settings,) = self._replicated(settings_of(options, stop_ids))
        return Batch({}, options, tuple(stop_ids), padding, requests, seeds, settings, slots)

    def _start(self, batch: Batch, tokens: np.ndarray, length: np.ndarray) -> None:
        options, static = batch.options, (batch.slots, batch.padding)
        *inputs, requests, seeds = self._replicated(tokens, length, batch.requests, batch.seeds)
        args: tuple[Any, ...] = (self.weights_for(options), *inputs)
        prefill = self._program(
            ("prefill", *static, tokens.shape, self.ahead(options)),
            _by(*tokens.shape),
            partial(self.steps_for(options).prefill, *static),
            *args,
        )
        logits, batch.state = prefill(*args)
        others = (batch.state["prompt"], requests, seeds, batch.settings)
        batch.state |= self._first_tokens(options, logits, *others)

    def _first_tokens(
        self, options: SamplingOptions, logits: jax.Array, prompt: jax.Array, *others: Any
    ) -> State:
        static, args = self._first_token_options(options), (logits, prompt, *others)
        first_token = self._program(
            ("first_token", *static, _tables(others[-1]), *prompt.shape),
            _by(*prompt.shape),
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
    ) -> Batch:
        none = np.zeros(rows, np.int32)
        batch = self._new_batch(options, stop_ids, "right", none, none.copy(), slots)
        (zeros,) = self._replicated(none)
        static = (slots, self._top(options), self._dtype)
        function = partial(self._steps.empty, *static)
        empty = self._program(("empty", rows, *static), _by(rows, slots), function, zeros)
        batch.state, batch.admits = empty(zeros), True
        return batch

    def admit_packed(
        self,
        batch: Batch,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        requests: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        count, slots = batch.rows, batch.slots
        places = min(count, MOST_PACKED)
        batch.requests[list(rows)], batch.seeds[list(rows)] = requests, seeds
        fill = [(0, places - len(rows))]
        row_P = np.pad(np.asarray(rows, np.int32), fill, constant_values=count)
        numbers = (np.pad(np.asarray(each, np.int32), fill) for each in (requests, seeds))
        table, row_P, *numbers = self._replicated(packed(prompts, places=places), row_P, *numbers)
        tokens = len(table["tokens"])
        prefill = self._program(
            ("prefill_packed", slots, places, tokens),
            str(tokens),
            partial(self._steps.prefill_packed, slots),
            self._weights,
            table,
        )
        logits, entries, prompt = prefill(self._weights, table)
        chosen = self._first_tokens(batch.options, logits, prompt, *numbers, batch.settings)
        args = (batch.state, entries, table, chosen, row_P)
        shapes = tuple(x.shape for x in jax.tree.leaves(args))
        admit = self._program(
            ("admit_packed", shapes),
            f"{tokens} into {_by(count, batch.slots)}",
            self._steps.admitted_packed,
            *args,
            donate=0,
        )
        batch.state = admit(*args)

    def resize(self, batch: Batch, keep: Sequence[int], *, rows: int, slots: int) -> None:
        index = np.zeros(rows, np.int32)
        index[: len(keep)] = keep
        args = (batch.state, *self._replicated(index, np.int32(len(keep))))
        shapes = tuple(x.shape for x in jax.tree.leaves(args))
        function = partial(self._steps.resized, slots)
        key, size = (
            ("resize", slots, shapes),
            f"{_by(batch.rows, batch.slots)} to {_by(rows, slots)}",
        )
        batch.state = self._program(key, size, function, *args)(*args)
        batch.requests, batch.seeds = batch.requests[index], batch.seeds[index]
        batch.slots = slots

    def widen(self, batch: Batch, rows: int) -> None:
        key = ("widen", rows, *(x.shape for x in jax.tree.leaves(batch.state)))
        size, function = _by(rows, batch.slots), partial(self._steps.widened, rows)
        widen = self._program(key, size, function, batch.state)
        batch.state = widen(batch.state)
        batch.requests, batch.seeds = (np.repeat(a, rows) for a in (batch.requests, batch.seeds))

    def _replace_row(self, batch: Batch, new: Batch, row: int) -> None:
        args = (batch.state, new.state, *self._replicated(np.int32(row)))
        admitted = self.steps_for(batch.options).admitted
        batch.state = self._replaced("admit", batch, admitted, *args)

    def _replaced(self, name: str, batch: Batch, function: Callable[..., Any], *args: Any) -> State:
        """The state that a program makes of `args`, of which the first is the batch's state."""
        shapes = tuple(x.shape for x in jax.tree.leaves(args))
        args = (*args, batch.settings)
        key = (name, _tables(batch.settings), shapes, self.ahead(batch.options))
        size = _by(batch.rows, batch.slots)
        return self._program(key, size, function, *args, donate=0)(*args)

    def _loop_args(self, batch: Batch, steps: int, least_running: int = 1) -> tuple[Any, ...]:
        return *self._replicated(np.int32(steps), np.int32(least_running)), batch.settings

    def _decode_program(self, batch: Batch, *args: Any) -> Callable[..., Any]:
        options = batch.options
        static = self._loop_options(options, batch.padding)
        shapes = tuple(x.shape for x in jax.tree.leaves(batch.state))
        key = ("decode", _tables(batch.settings), static, shapes, self.ahead(options))
        loop = partial(self.steps_for(options).loop, *static)
        size = _by(batch.rows, batch.slots)
        weights = self.weights_for(options)
        return self._program(key, size, loop, weights, batch.state, *args, donate=1)

    def advance(self, batch: Batch, steps: int, *, least_running: int = 1) -> None:
        if batch.admits and self.layout_for(batch.options).shares_slots:
            if self._reach(batch) + steps > batch.slots:
                self._realign(batch)
            steps = min(steps, batch.slots - self._reach(batch))
        self._decode(batch, steps, least_running)

    def _decode(self, batch: Batch, steps: int, least_running: int) -> None:
        args = self._loop_args(batch, steps, least_running)
        program = self._decode_program(batch, *args)
        batch.state = program(self.weights_for(batch.options), batch.state, *args)

    def _reach(self, batch: Batch) -> int:
        """Slots that are filled in the longest row."""
        return int(self._fetched(batch.state["filled"]).max())

    def _realign(self, batch: Batch) -> None:
        batch.state = self._replaced("realign", batch, self._steps.realigned, batch.state)

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
        size = f"{_by(len(prompts), options.num_beams)}x{slots}"
        function = partial(self._steps.search, *static)
        program = self._program(key, size, function, self._weights, *args)
        return self._fetched(program(self._weights, *args))

    def _placed_state(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return self._replicated(dict(arrays))[0]

    def _cache_on_host(
        self, batch: Batch, first: np.ndarray, filled: np.ndarray
    ) -> dict[str, np.ndarray]:
        cache = self._fetched(batch.state["cache"])
        return self.layout_for(batch.options).on_host(cache, first, filled)

    def _resume(self, batch: Batch, snapshot: BatchSnapshot) -> None:
        cache, filled, first = self.layout_for(batch.options).placed(
            snapshot.cache, snapshot.filled.astype(np.int32), slots=batch.slots, dtype=self._dtype
        )
        keys = sampling.request_keys(jnp.asarray(snapshot.seeds), jnp.asarray(snapshot.requests))
        batch.state |= {"filled": filled, "first": first, "keys": np.asarray(keys)}
        batch.state = self._placed_state(batch.state) | {"cache": cache}


def _tables(settings: Settings) -> tuple[Any, ...]:
    """Sizes of the tables in `settings_of`: all that a program depends on."""
    return tuple((name, x.shape) for name, x in settings.items() if x.ndim)


def room_for(options: SamplingOptions) -> int:
    """Tokens that the buffer of a beam's outputs holds."""
    return -(-options.max_new_tokens // _OUTPUT_STEP) * _OUTPUT_STEP


def _by(*counts: int) -> str:
    return "x".join(map(str, counts))

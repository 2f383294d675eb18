"""Generation in JAX: one compiled prefill per length bucket, one compiled decode loop.

The loop runs on the device for as many tokens as the caller asks, its cache donated and updated in
place; nothing crosses to the host in between. The torch module is traced through
`jaxsr.interop`, so the network exists once; a program that was traced before comes from a folder.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxsr.generation import sampling, sharding
from jaxsr.generation.cache_layouts import layout_of
from jaxsr.generation.decoder import UNFILLED, Engine, Snapshot
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.packed_layers import Packed, lower_packed_product, use_kernels
from jaxsr.generation.padding import Padding, cache_slots
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
    """A batch under way: its state on the device, and the compiled loop that moves it."""

    def __init__(
        self, state: State, options: SamplingOptions, stop_ids: Sequence[int], padding: Padding
    ) -> None:
        self.state, self.options, self.stop_ids = state, options, tuple(stop_ids)
        self.padding = padding
        self.count = int(state["count"])


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
        self.mesh = sharding.tensor_mesh(1) if mesh is None else mesh
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
        return self._model.apply(params, buffers, *args, **kwargs)[0]

    # ---- programs

    def _program(
        self, key: tuple[Any, ...], function: Callable[..., Any], *args: Any, donate: Any = ()
    ) -> Callable[..., Any]:
        """The compiled program for this key, compiled ahead so that its time is known."""
        if key not in self._programs:
            begin = time.perf_counter()
            long_key = (*key, self.platform, structure(self._skeleton))
            with xla_only(), warnings.catch_warnings():  # calls of kernels cannot be stored
                # Of libraries' code that counts in int64, which JAX has as int32.
                warnings.filterwarnings("ignore", "Explicitly requested dtype")
                traced = stored(self._folder, long_key, function, args, name=key[0])
                lowered = jax.jit(traced, donate_argnums=donate).lower(*args)
            self._programs[key] = lowered.compile()
            self.compile_s += time.perf_counter() - begin
        return self._programs[key]

    def _prefill(
        self,
        options: SamplingOptions,
        slots: int,
        room: int,
        padding: Padding,
        weights: dict[str, jax.Array],
        tokens_BT: jax.Array,
        length_B: jax.Array,
        request_B: jax.Array,
        seed: jax.Array,
        stop_N: jax.Array,
    ) -> State:
        logits_BV, cache, filled_B, first_B = self._layout.prefill(
            partial(self._run, weights), tokens_BT, length_B, left=padding == "left", slots=slots
        )
        keys_B2 = sampling.request_keys(seed, request_B)
        token_B = sampling.choose(logits_BV, keys_B2, jnp.int32(0), options)
        return {
            "cache": cache,
            "filled": filled_B,
            "first": first_B,
            "token": token_B,
            "done": (token_B[:, None] == stop_N).any(1),
            "outputs": jnp.full((len(tokens_BT), room), UNFILLED, jnp.int32).at[:, 0].set(token_B),
            "count": jnp.int32(1),
            "keys": keys_B2,
            "requests": request_B,
        }

    def _step(
        self,
        options: SamplingOptions,
        left: bool,
        weights: dict[str, jax.Array],
        stop_N: jax.Array,
        state: State,
    ) -> State:
        done_B = state["done"]
        logits_BV, written = self._layout.decode(partial(self._run, weights), state, left=left)
        chosen_B = sampling.choose(logits_BV, state["keys"], state["count"], options)
        # A done row keeps its last token, so that a saved batch ends as it should.
        token_B = jnp.where(done_B, state["token"], chosen_B)
        out_B = jnp.where(done_B, UNFILLED, token_B)
        return {
            **state,
            "cache": written(chosen_B),
            "filled": state["filled"] + ~done_B,
            "token": token_B,
            "done": done_B | (token_B[:, None] == stop_N).any(1),
            "outputs": jax.lax.dynamic_update_slice(
                state["outputs"], out_B[:, None], (jnp.int32(0), state["count"])
            ),
            "count": state["count"] + 1,
        }

    def _loop(
        self,
        options: SamplingOptions,
        left: bool,
        weights: dict[str, jax.Array],
        state: State,
        limit: jax.Array,
        stop_N: jax.Array,
    ) -> State:
        return jax.lax.while_loop(
            lambda s: (s["count"] < limit) & ~s["done"].all(),
            partial(self._step, options, left, weights, stop_N),
            state,
        )

    # ---- what Engine asks for

    def _start(
        self,
        tokens: np.ndarray,
        length: np.ndarray,
        requests: np.ndarray,
        options: SamplingOptions,
        stop_ids: tuple[int, ...],
        slots: int,
        padding: Padding,
    ) -> JaxBatch:
        shape = (*tokens.shape, slots, room_for(options), padding)
        args = self._replicated(
            tokens,
            length,
            requests,
            np.int32(options.seed),
            np.array([*stop_ids, UNFILLED - 1], np.int32),
        )
        build = partial(self._prefill, options, slots, room_for(options), padding)
        key = ("prefill", _static(options), len(stop_ids), shape)
        program = self._program(key, build, self._weights, *args)
        return JaxBatch(program(self._weights, *args), options, stop_ids, padding)

    def _loop_args(self, batch: JaxBatch, limit: int) -> tuple[Any, ...]:
        stop = np.array([*batch.stop_ids, UNFILLED - 1], np.int32)
        return self._replicated(np.int32(limit), stop)

    def _decode_program(self, batch: JaxBatch, *args: Any) -> Callable[..., Any]:
        left = batch.padding == "left"
        shapes = tuple(x.shape for x in jax.tree.leaves(batch.state))
        key = ("decode", _static(batch.options), len(batch.stop_ids), left, shapes)
        loop = partial(self._loop, batch.options, left)
        return self._program(key, loop, self._weights, batch.state, *args, donate=1)

    def advance(self, batch: JaxBatch, steps: int) -> None:
        batch.count = min(batch.count + steps, batch.options.max_new_tokens)
        args = self._loop_args(batch, batch.count)
        program = self._decode_program(batch, *args)
        batch.state = program(self._weights, batch.state, *args)

    def outputs(self, batch: JaxBatch) -> np.ndarray:
        return np.asarray(batch.state["outputs"])[:, : batch.count]

    def finished(self, batch: JaxBatch) -> bool:
        return batch.count >= batch.options.max_new_tokens or bool(batch.state["done"].all())

    def snapshot(self, batch: JaxBatch) -> Snapshot:
        state = jax.device_get(batch.state)
        filled, first = state["filled"], state["first"]
        return Snapshot(
            cache=self._layout.on_host(state["cache"], first, filled),
            filled=filled - first,
            token=state["token"],
            done=state["done"],
            outputs=state["outputs"][:, : int(state["count"])],
            requests=state["requests"],
        )

    def resume(
        self, snapshot: Snapshot, options: SamplingOptions, *, stop_ids: Sequence[int] = ()
    ) -> JaxBatch:
        count, room = snapshot.outputs.shape[1], room_for(options)
        longest = int(snapshot.filled.max())
        remaining = max(options.max_new_tokens - count, 1)
        slots = cache_slots(longest, remaining, context=self.config.max_position_embeddings)
        cache, filled, first = self._layout.placed(
            snapshot.cache, snapshot.filled.astype(np.int32), slots=slots, dtype=self._dtype
        )
        outputs = np.full((len(snapshot.filled), max(room, count)), UNFILLED, np.int32)
        outputs[:, :count] = snapshot.outputs
        keys = sampling.request_keys(options.seed, jnp.asarray(snapshot.requests))
        state: State = {
            "filled": filled,
            "first": first,
            "token": snapshot.token.astype(np.int32),
            "done": snapshot.done | np.isin(snapshot.token, stop_ids),
            "outputs": outputs,
            "count": np.int32(count),
            "keys": np.asarray(keys),
            "requests": snapshot.requests.astype(np.int32),
        }
        state = dict(zip(state, self._replicated(*state.values()), strict=True))
        state["cache"] = cache
        return JaxBatch(state, options, stop_ids, "right")

    def _replicated(self, *arrays: Any) -> tuple[jax.Array, ...]:
        return tuple(place(array, sharding.replicated(self.mesh)) for array in arrays)


def _integer_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """The sums of `a @ b`, int8, as int32."""
    # `b` is a transposed weight. Turned back, XLA drops both turns and multiplies the weight as it
    # is stored; given as it comes, its CPU multiplies element by element, 25 times slower.
    contract = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(a, b.T, contract, preferred_element_type=jnp.int32)


def _static(options: SamplingOptions) -> tuple[Any, ...]:
    """What of the options is compiled in; the seed and the length are arguments."""
    return (options.temperature, options.top_k, options.top_p)


def room_for(options: SamplingOptions) -> int:
    """Tokens that the buffer of outputs holds."""
    return -(-options.max_new_tokens // _OUTPUT_STEP) * _OUTPUT_STEP

"""A causal language model on the devices of a mesh: its weights, and its compiled programs.

The torch module is traced through `jaxsr.interop`, so the network exists once; a program that was
traced before comes from a folder. `jaxsr.generation.ahead_run` makes the same programs from shapes.

Its next tokens may be proposed, by prompt lookup or by a smaller network, the draft, whose weights
lie on the same devices. One compiled loop then runs both: the draft proposes greedily, one forward
of the network says how many proposals are right. Method: Leviathan, Kalman and Matias 2023,
arXiv:2211.17192, with greedy tokens alone; `assistant_model` of transformers.
"""

import time
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxsr.errors import InputError
from jaxsr.generation import sharding
from jaxsr.generation.cache_layouts import CacheLayout, OwnLayout
from jaxsr.generation.hugging_face_layouts import LibraryLayout
from jaxsr.generation.jax_steps import Draft, Steps
from jaxsr.generation.options import LESS_MEMORY, SamplingOptions
from jaxsr.generation.packed_layers import Packed, use_panels
from jaxsr.generation.stored_programs import stored, structure
from jaxsr.generation.stored_weights import StoredWeights, without_values
from jaxsr.interop.cpu_kernels import panel_product
from jaxsr.interop.cpu_kernels.choice import attends_compiled
from jaxsr.interop.mesh import place
from jaxsr.interop.out_of_memory import check_program_fits
from jaxsr.models.llama.int8_matmul import multiply_integers
from jaxsr.models.llama.network import Attention, CausalLM, take_fewer_kernels
from jaxsr.models.llama.packed import arranged_copy, has_blocks
from jaxsr.xla_calls.calls import xla_only

_IN_GRAPHS = (
    "FUSION", "CUBLAS", "CUBLASLT", "CUSTOM_CALL", "CUDNN", "DYNAMIC_SLICE_FUSION",
    "WHILE", "CONDITIONAL",
)  # fmt: skip

_LOOPS_IN_GRAPHS: dict[str, str | bool] = {"xla_gpu_enable_command_buffer": ",".join(_IN_GRAPHS)}
"""Compiler option of one program: also puts the kernels of a loop's step into CUDA graphs; by XLA's
default each is launched by itself."""


class JaxNetwork:
    """Weights and programs.

    Args:
      network: the torch module with its weights.
      mesh: devices along an axis `tensor` to split weights and cache over.
      programs: folder of traced programs, see `jaxsr.generation.stored_programs`. None keeps none.
      packed: how weights in blocks are multiplied on one CPU.
      keeps_values: whether `network` and `draft` keep their weights' values. Otherwise each value
        is freed once it lies on the devices, so that the weights do not lie in memory twice.
      draft: a smaller network of the same tokenizer, which proposes tokens. None: there is none.
    """

    def __init__(
        self,
        network: Any,
        *,
        mesh: Mesh,
        programs: Path | None,
        packed: Packed,
        keeps_values: bool = True,
        draft: Any = None,
    ) -> None:
        self.config = network.config
        self.mesh = sharding.grouped_by_heads(mesh, network.config.num_key_value_heads)
        device = self.mesh.devices.flat[0]
        self.platform, self.devices = device.platform, self.mesh.size
        kind = "" if device.device_kind == device.platform else f": {device.device_kind}"
        copies = f" × {self.mesh.size}" if self.mesh.size > 1 else ""
        self.device = f"{device.platform}{kind}{copies}"
        self.compile_s = 0.0
        on_cpu = self.platform == "cpu"
        compiled = on_cpu and self.mesh.size == 1 and panel_product.available()
        if compiled:
            panel_product.register(programs)
        if has_blocks(network):
            network = arranged_copy(network)
            if packed != "off" and compiled:
                use_panels(network)
        self._skeleton = without_values(network)
        multiply_integers(self._skeleton, weight_only=on_cpu)
        if self.platform == "gpu":
            take_fewer_kernels(self._skeleton, join=self.devices == 1)
        layout = OwnLayout if isinstance(network, CausalLM) else LibraryLayout
        attends = compiled and attends_compiled(network.dtype, network.attention_features())
        self._layout = layout(network, self.mesh, compiled=attends)
        self._steps = Steps(self._layout, self._run)
        self._stored = StoredWeights.chosen(
            network, self._skeleton, on_cpu=on_cpu, compiled=compiled
        )
        self._compiled_panels = compiled
        for module in self._skeleton.modules():
            if isinstance(module, Attention):
                module.compiled = attends
        self._folder = programs
        self._dtype = jnp.dtype(str(network.dtype).removeprefix("torch."))
        self._weights = self._placed(network, keeps_values=keeps_values)
        self._programs: dict[Any, Callable[..., Any]] = {}
        self.draft = None
        if draft is not None:
            shared: dict[str, Any] = {"mesh": mesh, "packed": packed, "keeps_values": keeps_values}
            self.draft = self._of_draft(draft, programs=None, **shared)

    def _of_draft(self, draft: Any, **options: Any) -> "JaxNetwork":
        """The draft on the same devices."""
        return JaxNetwork(draft, **options)

    def check_proposals(self, options: SamplingOptions, *, longest: int = 0) -> None:
        """See `BatchDecoder.check_proposals`."""
        if options.proposals is not None:
            self.layout_for(options)
        if options.num_draft_tokens is None:
            return
        if self.draft is None:
            raise InputError(
                f"{options.named_proposals} needs a draft model; give one, or leave it out"
            )
        self.draft._layout.looking_ahead(options.num_draft_tokens)
        context, need = self.draft.config.max_position_embeddings, longest + options.max_new_tokens
        if need > context:
            raise InputError(
                f"a prompt and its output take {need} tokens, but the draft model's context holds "
                f"{context}; use a smaller --max-new-tokens, or leave --draft-model out"
            )

    def layout_for(self, options: SamplingOptions) -> CacheLayout:
        """How batches with these options keep the network's past."""
        if options.proposals is None:
            return self._layout
        return self._layout.looking_ahead(options.proposals)

    def steps_for(self, options: SamplingOptions) -> Steps:
        """The steps of batches with these options."""
        layout = self.layout_for(options)
        if options.num_draft_tokens is None:
            return Steps(layout, self._run)
        assert self.draft is not None
        draft = Draft(
            layout=self.draft._layout.looking_ahead(options.num_draft_tokens),
            run=_run_of(self.draft, "draft"),
            vocab_size=min(self.config.vocab_size, self.draft.config.vocab_size),
        )
        return Steps(layout, _run_of(self, "network"), draft)

    def weights_for(self, options: SamplingOptions) -> dict[str, Any]:
        """The weights that these steps take."""
        if options.num_draft_tokens is None:
            return self._weights
        assert self.draft is not None
        return {"network": self._weights, "draft": self.draft._weights}

    def ahead(self, options: SamplingOptions) -> tuple[int, bool]:
        """The dependencies of a program on its layout and the draft."""
        return self.layout_for(options).ahead, options.num_draft_tokens is not None

    def _placed(self, network: Any, *, keeps_values: bool) -> dict[str, Any]:
        shardings = self._layout.weight_shardings
        return {
            name: place(array, shardings({name: array}, self._stored.turned)[name])
            for name, array in self._stored.of(network, keeps_values=keeps_values)
        }

    def _replicated(self, *arrays: Any) -> tuple[Any, ...]:
        """Arrays, or tables of them, on every device."""
        everywhere = sharding.replicated(self.mesh)
        return tuple(jax.tree.map(lambda x: place(x, everywhere), array) for array in arrays)

    def _fetched(self, tree: Any) -> Any:
        """Results of programs on the host; waits for them."""
        return jax.device_get(tree)

    @cached_property
    def _function(self) -> Callable[..., Any]:
        # Only a trace needs it, and its imports take a good part of a short run.

        from jaxsr.generation.repeated_blocks import RepeatedBlocks, as_it_stands
        from jaxsr.interop import lowering

        lowering("aten::_int_mm")(_integer_product)
        lowering("jaxsr::panel_product")(lambda x, panels: panel_product.product(x, *panels))
        lowering("jaxsr::packed_panels")(panel_product.packed)
        if isinstance(self._skeleton, CausalLM):
            return RepeatedBlocks(self._skeleton)
        return as_it_stands(self._skeleton)

    def _run(self, weights: dict[str, jax.Array], *args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            # From libraries' code that counts in int64, which is int32 in JAX.
            warnings.filterwarnings("ignore", "Explicitly requested dtype")
            return self._function(self._stored.for_network(weights), *args, **kwargs)

    def _program(
        self,
        key: tuple[Any, ...],
        size: str,
        function: Callable[..., Any],
        *args: Any,
        donate: Any = (),
    ) -> Callable[..., Any]:
        """The compiled program for this key, compiled ahead so that its time is known.

        Args:
          key: its kind, and all that `function` closes over.
          size: names it in reports, with its kind.
          function: to be compiled.
          args: arrays, or their shapes.
          donate: numbers of the arguments that are given up.
        """
        if key not in self._programs:
            begin = time.perf_counter()
            with xla_only(compiled=self._compiled_panels):  # other calls cannot be stored
                traced = self._traced(key, function, args)
                lowered = jax.jit(traced, donate_argnums=donate).lower(*args)
            in_graphs = key[0] == "decode" and self.platform == "gpu"
            options = _LOOPS_IN_GRAPHS if in_graphs else None
            self._programs[key] = self._compiled(f"{key[0]} {size}", lowered, options)
            self.compile_s += time.perf_counter() - begin
        return self._programs[key]

    def _traced(
        self, key: tuple[Any, ...], function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Callable[..., Any]:
        if self.draft is not None:
            key = (*key, structure(self.draft._skeleton))
        long_key = (*key, self.platform, self._compiled_panels, structure(self._skeleton))
        return stored(self._folder, long_key, function, args, name=key[0])

    def _compiled(
        self, name: str, lowered: Any, options: dict[str, str | bool] | None
    ) -> Callable[..., Any]:
        """The compiled form of a lowered program; `name` is for reports."""
        program = lowered.compile(options)
        devices = self.mesh.local_devices
        check_program_fits(program, devices, f"the values of {name}", advice=LESS_MEMORY)
        return program


def _run_of(network: JaxNetwork, part: str) -> Callable[..., Any]:
    """Its output from a table of both networks' weights."""
    return lambda weights, *args, **kwargs: network._run(weights[part], *args, **kwargs)


def _integer_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """The sums of `a @ b`, int8, as int32."""
    # `b` is a transposed weight. Turned back, XLA drops both turns and multiplies the weight as it
    # is stored; given as it comes, its CPU multiplies element by element, 25 times slower.
    contract = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(a, b.T, contract, preferred_element_type=jnp.int32)

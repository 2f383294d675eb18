"""`python -m jaxsr.generate … --aot v5e:2x4`: prefill and decode compiled ahead of time.

Of a Hugging Face folder only `config.json` is read: shapes are enough.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxsr.generation import sharding
from jaxsr.generation.config import GenerateConfig
from jaxsr.generation.jax_decoder import JaxEngine
from jaxsr.generation.logits_processors import settings_of
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.padding import bucket, cache_slots
from jaxsr.interop.aot.compile import Ahead, abstract, compile_ahead
from jaxsr.interop.aot.topology import Topology
from jaxsr.models.llama.config import LlamaConfig
from jaxsr.models.llama.quantized import Scheme
from jaxsr.runtime.aot import conclude, prepare

# What a prompt and its output fill where the command names neither: 8k tokens of context.
_CONTEXT = 8192


class AheadEngine(JaxEngine):
    """The JAX engine with shapes for weights, on the devices of a topology."""

    def __init__(self, network: Any, topology: Topology, *, devices: int | None = None) -> None:
        """Args:
        network: the torch module, on the meta device or not.
        topology: where to compile to.
        devices: that weights and cache are split over. Default: all of them.
        """
        self._topology = topology
        used = list(topology.devices)[:devices]
        super().__init__(network, mesh=Mesh(np.array(used), (sharding.AXIS,)))

    def _placed(self, network: Any) -> Any:
        named = (*network.named_parameters(), *network.named_buffers())
        shapes = {
            name: jax.ShapeDtypeStruct(_shape(tensor, name in self._stored.turned), _dtype(tensor))
            for name, tensor in named
        }
        return abstract(shapes, self._layout.weight_shardings(shapes, self._stored.turned))

    def compile(
        self, options: SamplingOptions, *, batch: int, prompt: int, slots: int
    ) -> tuple[Ahead, Ahead]:
        """Compiles the prefill of a batch of prompts, and the decode loop that follows it.

        Args:
          options: of sampling.
          batch: prompts at once.
          prompt: tokens of each, padding included.
          slots: of the cache, for prompt and output.
        """
        everywhere = sharding.replicated(self.mesh)

        def build(
            weights: Any, tokens: Any, length: Any, request: Any, seed: Any, settings: Any
        ) -> Any:
            logits, state = self._steps.prefill(slots, prompt, "right", weights, tokens, length)
            static = self._first_token_options(options)
            arrays = (logits, state["prompt"], request, seed, settings)
            return state | self._steps.first_token(*static, *arrays)

        def integers(*shape: int) -> Any:
            return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=everywhere)

        inputs = (integers(batch, prompt), integers(batch), integers(batch), integers(batch))
        settings = abstract(settings_of(options, ()), everywhere)
        prefill = compile_ahead(
            jax.jit(build),
            (self._weights, *inputs, settings),
            self._topology,
            name=f"prefill {batch}x{prompt}",
        )
        state = jax.eval_shape(build, self._weights, *inputs, settings)
        others = abstract({k: v for k, v in state.items() if k != "cache"}, everywhere)
        cache = jax.tree.map(
            lambda leaf: abstract(leaf, self._layout.cache_sharding(leaf.shape[1])), state["cache"]
        )

        def loop(*args: Any) -> Any:
            return self._steps.loop(*self._loop_options(options, "right"), *args)

        decode = compile_ahead(
            jax.jit(loop, donate_argnums=1),
            (self._weights, {**others, "cache": cache}, integers(), integers(), settings),
            self._topology,
            name=f"decode {batch}x{slots}",
            options=self._options_of_decode,
        )
        return prefill, decode


def shapes_of(config: LlamaConfig, *, dtype: str, scheme: Scheme | None = None) -> Any:
    """The network of this configuration without values."""
    import torch

    from jaxsr.models.llama.network import CausalLM
    from jaxsr.models.llama.quantized import quantize

    with torch.device("meta"):
        network = CausalLM(config).to(getattr(torch, dtype))
        if scheme is not None:
            quantize(network, scheme)
    return network.requires_grad_(False).eval()


def run(config: GenerateConfig) -> int:
    """What the command does with `--aot`; returns its exit status.

    Without a prompt, prompt and output fill a context of 8192 tokens, or the model's own.
    """
    topology = prepare(config)
    network = _network(config)
    context = min(_CONTEXT, network.config.max_position_embeddings)
    if config.prompt:
        from jaxsr.models.llama.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(config.tokenizer or config.model)
        prompt = bucket(max(len(tokenizer.encode(text)) for text in config.prompt))
        limit = network.config.max_position_embeddings
        slots = cache_slots(prompt, config.max_new_tokens, context=limit)
    else:
        prompt, slots = bucket(context // 4), context
    devices = config.devices if config.devices > 1 else None
    engine = AheadEngine(network, topology, devices=devices)
    reports = [
        report
        for batch in config.batch_size
        for report in engine.compile(config, batch=batch, prompt=prompt, slots=slots)
    ]
    return conclude(reports, config)


def _network(config: GenerateConfig) -> Any:
    import torch

    from jaxsr.models.language_models import choose
    from jaxsr.models.llama import hf_folder

    path = Path(config.model)
    if path.is_dir():
        fields = hf_folder.read_json(path / "config.json")
        if choose(fields, config.implementation) == "transformers":
            from jaxsr.models.hugging_face.loading import shapes_of_folder

            return shapes_of_folder(path, dtype=getattr(torch, config.dtype))
        if "quantization_config" not in fields:
            known = LlamaConfig.from_hf(fields)
            return shapes_of(known, dtype=config.dtype, scheme=config.quantize)
    from jaxsr.models.load import load_model

    dtype = getattr(torch, config.dtype)
    model = load_model(config.model, kind="language model", dtype=dtype, scheme=config.quantize)
    return model.network


def _shape(tensor: Any, turned: bool) -> tuple[int, ...]:
    return tuple(tensor.shape)[:: -1 if turned else 1]


def _dtype(tensor: Any) -> Any:
    return jnp.dtype(str(tensor.dtype).removeprefix("torch."))

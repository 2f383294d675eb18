"""`python -m jaxsr.generate … --aot v5e:2x4`: the programs of such a run compiled ahead of time.

Only the JSON files of a Hugging Face folder are read: shapes are enough. Quantised folders and GGUF
files are loaded, because their layers' formats follow from their tensors.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from jaxsr.errors import InputError
from jaxsr.generation.ahead_engine import AheadEngine
from jaxsr.generation.config import GenerateConfig
from jaxsr.generation.draft_model import load_draft
from jaxsr.generation.generate_loop import complete
from jaxsr.generation.generate_prompts import check_packages
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.padding import bucket
from jaxsr.generation.prompts import all_prompts
from jaxsr.generation.run_settings import engine_settings, prompt_ids, sampling_options, stops
from jaxsr.interop.aot.compile import Ahead
from jaxsr.interop.aot.search import largest_batch
from jaxsr.interop.aot.topology import Topology
from jaxsr.models.language_models import check_model, load_shapes
from jaxsr.models.llama.loading import LanguageModel
from jaxsr.models.llama.tokenizer import load_tokenizer
from jaxsr.runtime.aot import conclude, prepare

# Tokens of a prompt and its output (8k) if the command gives no lengths.
_CONTEXT = 8192


def run(config: GenerateConfig) -> int:
    """Runs the command with `--aot`; returns its exit status.

    Without a prompt, prompt and output fill a context of 8192 tokens, or the model's own.

    Raises:
      UserError: a run of these options could not start, or goes on from a saved cache.
    """
    if config.resume is not None:
        raise InputError(
            "aot compiles the programs of prompts, not of a saved batch; leave --resume out"
        )
    if config.engine == "torch":
        raise InputError("--aot compiles JAX's programs; leave --engine torch out, or --aot")
    check_packages(config)
    check_model(config.model, config.implementation, weights=False)
    if config.draft_model is not None:
        check_model(config.draft_model, weights=False)
    topology = prepare(config, deterministic=config.deterministic)
    model = load_shapes(
        config.model,
        dtype=getattr(torch, config.dtype),
        scheme=config.quantize,
        implementation=config.implementation,
        packed=config.packed != "off",
    )
    reports: list[Ahead] = []
    largest: dict[str, Any] = {}
    for batch_size in config.batch_size:
        programs = compile_run(config, model, topology, batch_size)
        reports += programs
        if config.aot_largest:
            rows, trials = largest_batch(
                lambda rows: _fullest(compile_run(config, model, topology, rows, fill=True)),
                _fullest(programs),
                batch=batch_size,
                step=1,
                precision=0.05,
            )
            largest[f"batch size {batch_size}"] = {"batch": rows, "trials": trials}
    return conclude(reports, config, largest=largest)


def _fullest(reports: Sequence[Ahead]) -> Ahead:
    """The program that takes the most memory, or one that does not compile."""
    return max(reports, key=lambda one: one.memory.share if one.memory else math.inf)


def compile_run(
    config: GenerateConfig,
    model: LanguageModel,
    topology: Topology,
    batch_size: int,
    *,
    fill: bool = False,
) -> list[Ahead]:
    """The programs of a run, in its order.

    Args:
      config: of the command.
      model: with or without values.
      topology: where to compile to.
      batch_size: prompts that run together.
      fill: repeat the prompts where they are fewer.
    """
    options = sampling_options(config, model.sampling)
    prompts = all_prompts(config.prompt, config.prompts, system=config.system)
    needs_tokenizer = prompts or any(not text.isdecimal() for text in config.stop)
    tokenizer = None
    if needs_tokenizer:
        tokenizer = load_tokenizer(config.tokenizer or config.model)
    draft = None
    if config.draft_model is not None:
        draft = load_draft(
            load_shapes,
            config.draft_model,
            tokenizer,
            dtype=getattr(torch, config.dtype),
            packed=config.packed != "off",
        )
    engine = ahead_engine(config, model.network, topology, draft)
    stop_ids, _ = stops(config, model.stop_ids, tokenizer, vocabulary=engine.config.vocab_size)
    if prompts:
        ids: Sequence[Sequence[int]] = prompt_ids(config, prompts, tokenizer)
        if fill and len(ids) < batch_size:
            ids = [ids[row % len(ids)] for row in range(batch_size)]
    else:
        ids, options = _filling(engine.config.max_position_embeddings, options, batch_size)
    complete(
        engine,
        ids,
        options,
        batch_size=batch_size,
        stop_ids=stop_ids,
        deterministic=config.deterministic,
        padding=config.padding,
        keep_snapshots=config.save_cache is not None,
    )
    return engine.reports


def ahead_engine(
    config: GenerateConfig, network: Any, topology: Topology, draft: Any = None
) -> AheadEngine:
    """The engine that a run of these options would have; without `mesh` on all devices."""
    settings = engine_settings(config)
    devices = None if config.devices == 1 and not config.deterministic else settings.devices
    if devices is not None and devices > len(topology.devices):
        raise InputError(
            f"mesh of {devices} devices asked for, but {topology.name} has "
            f"{len(topology.devices)}; use --mesh {len(topology.devices)}"
        )
    return AheadEngine(network, topology, devices=devices, packed=settings.packed, draft=draft)


def _filling(
    most: int, options: SamplingOptions, batch_size: int
) -> tuple[list[list[int]], SamplingOptions]:
    """Prompts that take a quarter of the context, and options whose outputs take the rest."""
    context = min(_CONTEXT, most)
    prompt = bucket(context // 4)
    return [[0] * prompt] * batch_size, replace(options, max_new_tokens=context - prompt)

"""Tokens per second over many prompts of mixed lengths: `jaxsr.generate` against transformers.

A Llama of SmolLM2-135M's shape with random weights, float32, greedy. Prompts have 4 to 200 tokens.
Every 60th token of the vocabulary ends an output, so that outputs end after one to `new_tokens`
tokens, as those of real models do. Contenders get the same prompts in the same order:

- jaxsr fills a row's place with the next prompt as soon as it ends;
- transformers runs `generate` batch by batch, padded on the left, in the file's order, and sorted
  by length, which saves padding.

Tokens count up to and with the one that ends an output. `equal` is the share of prompts whose
tokens are those of transformers: float32 sums differ in their order, and logits may tie within it.
Compiling is left out; `processor_s` is the time of all threads.
"""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._race import take_turns
from benchmarks._results import Report, ReportOptions, run_benchmark

Outputs = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the race."""

    prompts: int = 200
    """Prompts of mixed lengths."""
    new_tokens: int = 128
    """Tokens to generate at most after each."""
    batch: int = 16
    """Rows that run together."""
    layers: int = 30
    """Blocks; 30 are SmolLM2-135M's."""
    vocabulary: int = 49152
    """Tokens that the model knows."""
    rounds: int = 1
    """Turns of each contender."""
    threads: int | None = None
    """Of torch. Default: its own choice."""


def measure(options: Options) -> None:
    """Races the contenders and writes the report."""
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    model = _model(options)
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(4), np.log(200), options.prompts)).astype(int)
    prompts = [rng.integers(3, options.vocabulary, n).tolist() for n in lengths]
    stops = list(range(7, options.vocabulary, 60))
    contenders: dict[str, Callable[[], Outputs]] = {
        "jaxsr, JAX": _jaxsr(model, prompts, stops, options),
        "transformers, torch": lambda: _batches(model, prompts, stops, options),
        "transformers, torch, sorted": lambda: _sorted(model, prompts, stops, options),
    }
    timed = {name: _timed(run) for name, run in contenders.items()}
    report = Report("generate_throughput", options)
    results = take_turns(timed, rounds=options.rounds, warmup=0)
    reference = results["transformers, torch"][0][2]
    for name, turns in results.items():
        seconds = min(turn[0] for turn in turns)
        outputs = turns[0][2]
        equal = sum(a == b for a, b in zip(outputs, reference, strict=True))
        row = {
            "contender": name,
            "prompts": len(prompts),
            "tokens": sum(map(len, outputs)),
            "seconds": round(seconds, 2),
            "processor_s": round(min(turn[1] for turn in turns), 2),
            "tokens_per_s": round(sum(map(len, outputs)) / seconds, 1),
            "equal": round(equal / len(prompts), 3),
        }
        print(row, flush=True)
        report.add(row)


def _timed(run: Callable[[], Outputs]) -> Callable[[], tuple[float, float, Outputs]]:
    def call() -> tuple[float, float, Outputs]:
        begin, processor = time.perf_counter(), _processor_s()
        outputs = run()
        return time.perf_counter() - begin, _processor_s() - processor, outputs

    return call


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _model(options: Options) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=options.layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def _jaxsr(
    model: Any, prompts: Outputs, stops: list[int], options: Options
) -> Callable[[], Outputs]:
    import json

    import torch

    from jaxsr.generation.generate_loop import complete
    from jaxsr.generation.jax_decoder import JaxEngine
    from jaxsr.generation.options import SamplingOptions
    from jaxsr.models.llama.config import LlamaConfig
    from jaxsr.models.llama.loading import build

    config = LlamaConfig.from_hf(json.loads(model.config.to_json_string(use_diff=False)))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    network = build(config, state, torch.float32).requires_grad_(False).eval()
    engine = JaxEngine(network)
    sampling = SamplingOptions(max_new_tokens=options.new_tokens)

    def run() -> Outputs:
        done = complete(engine, prompts, sampling, batch_size=options.batch, stop_ids=stops)
        return [completion.tokens for completion in done.completions]

    # Every program that the prompts need is compiled before the race.
    run()
    return run


def _batches(model: Any, prompts: Outputs, stops: list[int], options: Options) -> Outputs:
    import torch

    outputs, ends = [], {*stops}
    for begin in range(0, len(prompts), options.batch):
        batch = prompts[begin : begin + options.batch]
        longest = max(map(len, batch))
        tokens = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(batch):
            tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        out = model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=options.new_tokens,
            do_sample=False,
            eos_token_id=stops,
            pad_token_id=0,
        )
        for row in out[:, longest:].tolist():
            end = next((n for n, token in enumerate(row) if token in ends), len(row))
            outputs.append(row[: end + 1])
    return outputs


def _sorted(model: Any, prompts: Outputs, stops: list[int], options: Options) -> Outputs:
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    outputs = _batches(model, [prompts[index] for index in order], stops, options)
    return [tokens for _, tokens in sorted(zip(order, outputs, strict=True))]


if __name__ == "__main__":
    run_benchmark(measure, Options)

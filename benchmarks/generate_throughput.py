"""Tokens per second over many prompts of mixed lengths: `jaxsr.generate` against transformers.

A Llama of SmolLM2-135M's shape with random weights, float32, greedy. Prompts have 8 to 400 tokens,
their logarithms evenly spread. Every 60th token of the vocabulary ends an output, so that outputs
end after one to `new_tokens` tokens, as those of real models do. Contenders:

- jaxsr with `batch` rows, as the command runs a file: prompts are fed together, and take the places
  of rows that ended;
- transformers: `generate` with prompts sorted by length, padded on the left, in each of the
  `transformers_batches`. A batch runs until its last output ends.

Contenders that are slow run a sample, evenly spread over the sorted batches, whose rate is that of
the whole: `share` of the batches. `prompts` and `tokens` are those that ran. Tokens count up to and
with the one that ends an output. `equal` is the share of outputs that are those of jaxsr: float32
sums differ in their order, and logits may tie within it. Compiling is left out; `processor_s` is
the time of all threads. `times_fastest` is jaxsr's rate over that of the fastest other.
"""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks._race import take_turns
from benchmarks._results import Report, ReportOptions, Row, run_benchmark

Outputs = dict[int, list[int]]
"""By the number of the prompt."""


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the race."""

    prompts: int = 200
    """Prompts of mixed lengths."""
    new_tokens: int = 128
    """Tokens to generate at most after each."""
    batch: int = 64
    """Rows that run together in jaxsr."""
    transformers_batches: tuple[int, ...] = (64, 16, 1)
    """Rows of a batch of transformers."""
    transformers_shares: tuple[float, ...] = (1, 0.25, 0.04)
    """For each of them the share of the batches that run."""
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
    lengths = np.exp(rng.uniform(np.log(8), np.log(400), options.prompts)).astype(int)
    prompts = [rng.integers(3, options.vocabulary, n).tolist() for n in lengths]
    stops = list(range(7, options.vocabulary, 60))
    ours = "jaxsr, JAX"
    contenders = {ours: _jaxsr(model, prompts, stops, options)}
    shares = zip(options.transformers_batches, options.transformers_shares, strict=True)
    contenders |= {
        f"transformers, torch, sorted, batches of {batch}": partial(
            _batches, model, prompts, stops, options, batch, share
        )
        for batch, share in shares
    }
    timed = {name: _timed(run) for name, run in contenders.items()}
    report = Report("generate_throughput", options)
    results = take_turns(timed, rounds=options.rounds, warmup=0)
    rows = {name: _row(name, turns, results[ours][0][2]) for name, turns in results.items()}
    fastest = max(row["tokens_per_s"] for name, row in rows.items() if name != ours)
    rows[ours]["times_fastest"] = round(rows[ours]["tokens_per_s"] / fastest, 2)
    for row in rows.values():
        print(row, flush=True)
        report.add(row)


def _row(name: str, turns: list[tuple[float, float, Outputs]], reference: Outputs) -> Row:
    seconds, outputs = min(turn[0] for turn in turns), turns[0][2]
    tokens = sum(map(len, outputs.values()))
    equal = sum(reference[index] == tokens for index, tokens in outputs.items())
    return {
        "contender": name,
        "prompts": len(outputs),
        "tokens": tokens,
        "seconds": round(seconds, 2),
        "processor_s": round(min(turn[1] for turn in turns), 2),
        "tokens_per_s": round(tokens / seconds, 1),
        "equal": round(equal / len(outputs), 3),
    }


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
    model: Any, prompts: list[list[int]], stops: list[int], options: Options
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
    engine = JaxEngine(network, rows=options.batch)  # as the command has it
    sampling = SamplingOptions(max_new_tokens=options.new_tokens)

    def run() -> Outputs:
        done = complete(engine, prompts, sampling, batch_size=options.batch, stop_ids=stops)
        return {completion.index: completion.tokens for completion in done.completions}

    # Every program that the prompts need is compiled before the race.
    run()
    return run


def _batches(
    model: Any,
    prompts: list[list[int]],
    stops: list[int],
    options: Options,
    batch: int,
    share: float,
) -> Outputs:
    import torch

    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    batches = [order[begin : begin + batch] for begin in range(0, len(order), batch)]
    # The middle of each run of batches that one stands for.
    count = max(1, round(share * len(batches)))
    batches = [batches[(2 * part + 1) * len(batches) // (2 * count)] for part in range(count)]
    outputs, ends = {}, {*stops}
    for numbers in batches:
        longest = max(len(prompts[index]) for index in numbers)
        tokens = torch.zeros(len(numbers), longest, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, index in enumerate(numbers):
            tokens[row, longest - len(prompts[index]) :] = torch.tensor(prompts[index])
            mask[row, longest - len(prompts[index]) :] = 1
        out = model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=options.new_tokens,
            do_sample=False,
            eos_token_id=stops,
            pad_token_id=0,
        )
        for index, row in zip(numbers, out[:, longest:].tolist(), strict=True):
            end = next((n for n, token in enumerate(row) if token in ends), len(row))
            outputs[index] = row[: end + 1]
    return outputs


if __name__ == "__main__":
    run_benchmark(measure, Options)

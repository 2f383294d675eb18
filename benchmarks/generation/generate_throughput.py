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
sums differ in their order, and logits may tie within it. `seconds` leave out `compile_s`.
`times_jaxsr` is a rate over jaxsr's. Each contender runs once, and its row is printed as it ends.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness.llamas import random_smollm2
from benchmarks.harness.report import Report, ReportOptions, run_benchmark


@dataclass(frozen=True)
class _Done:
    """Outputs and times of a contender."""

    outputs: dict[int, list[int]]
    """By the number of the prompt."""
    seconds: float
    compile_s: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs.values()))

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


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


def measure(options: Options) -> None:
    """Races the contenders and writes the report."""
    model = random_smollm2(
        num_hidden_layers=options.layers, max_position_embeddings=2048, initializer_range=0.1
    ).eval()  # fmt: skip
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(8), np.log(400), options.prompts)).astype(int)
    prompts = [rng.integers(3, model.config.vocab_size, n).tolist() for n in lengths]
    stops = list(range(7, model.config.vocab_size, 60))
    report = Report("generate_throughput", options)

    ours = _jaxsr(model, prompts, stops, options)
    _add(report, "jaxsr, JAX", ours, ours)
    shares = zip(options.transformers_batches, options.transformers_shares, strict=True)
    for batch, share in shares:
        done = _batches(model, prompts, stops, options, batch, share)
        _add(report, f"transformers, torch, sorted, batches of {batch}", done, ours)


def _add(report: Report, name: str, done: _Done, ours: _Done) -> None:
    equal = sum(ours.outputs[index] == tokens for index, tokens in done.outputs.items())
    row = {
        "contender": name,
        "prompts": len(done.outputs),
        "tokens": done.tokens,
        "seconds": round(done.seconds, 2),
        "compile_s": round(done.compile_s, 2),
        "tokens_per_s": round(done.rate, 1),
        "times_jaxsr": round(done.rate / ours.rate, 3),
        "equal": round(equal / len(done.outputs), 3),
    }
    report.show(row)


def _jaxsr(model: Any, prompts: list[list[int]], stops: list[int], options: Options) -> _Done:
    import json

    import torch

    from jaxsr.generation.generate_loop import complete
    from jaxsr.generation.jax_decoder import JaxDecoder
    from jaxsr.generation.options import SamplingOptions
    from jaxsr.models.llama.config import LlamaConfig
    from jaxsr.models.llama.loading import build

    config = LlamaConfig.from_hf(json.loads(model.config.to_json_string(use_diff=False)))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    network = build(config, state, torch.float32).requires_grad_(False).eval()
    engine = JaxDecoder(network)
    sampling = SamplingOptions(max_new_tokens=options.new_tokens)

    begin = time.perf_counter()
    done = complete(engine, prompts, sampling, batch_size=options.batch, stop_ids=stops)
    seconds = time.perf_counter() - begin - engine.compile_s
    outputs = {completion.index: completion.tokens for completion in done.completions}
    return _Done(outputs, seconds, engine.compile_s)


def _batches(
    model: Any,
    prompts: list[list[int]],
    stops: list[int],
    options: Options,
    batch: int,
    share: float,
) -> _Done:
    from tests.oracles.language_models.tiny import padded

    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    batches = [order[begin : begin + batch] for begin in range(0, len(order), batch)]
    # The middle of each run of batches that one stands for.
    count = max(1, round(share * len(batches)))
    batches = [batches[(2 * part + 1) * len(batches) // (2 * count)] for part in range(count)]
    outputs, ends = {}, {*stops}
    start = time.perf_counter()
    for numbers in batches:
        tokens, mask = padded([prompts[index] for index in numbers])
        out = model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=options.new_tokens,
            do_sample=False,
            eos_token_id=stops,
            pad_token_id=0,
        )
        for index, row in zip(numbers, out[:, tokens.shape[1] :].tolist(), strict=True):
            end = next((n for n, token in enumerate(row) if token in ends), len(row))
            outputs[index] = row[: end + 1]
    return _Done(outputs, time.perf_counter() - start)


if __name__ == "__main__":
    run_benchmark(measure, Options)

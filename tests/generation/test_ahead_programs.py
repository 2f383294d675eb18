"""`python -m jaxsr.generate --aot`: it compiles the programs of a run with the same options.

CPU devices stand for the absent ones, so that the run has such a device too.
"""

import json
import os

import jax
import numpy as np
import pytest
import torch
from jax.experimental.compilation_cache import compilation_cache

from jaxsr import generate
from jaxsr.generation import ahead_run as generation_aot
from jaxsr.generation.ahead_engine import AheadEngine
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.interop.aot.compile import Ahead, Memory
from jaxsr.interop.aot.topology import Device, Topology
from jaxsr.runtime import aot

pytest.importorskip("transformers")

DEVICE = Device(
    platform="cpu",
    kind="cpu",
    memory_bytes=2**34,
    memory_bytes_per_s=1e10,
    flops_per_s=1e12,
    link_bytes_per_s=1e10,
)


@pytest.fixture(autouse=True)
def _restored(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("XLA_FLAGS", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    names = (
        "jax_default_matmul_precision",
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_enable_compilation_cache",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def programs(monkeypatch):
    """`programs(options)`: names and lowered texts of what a command compiles, and its status."""
    texts: dict[str, str] = {}

    def recorded(kind):
        compile_it = kind._compiled

        def compiled(self, name, lowered, options):
            assert name not in texts
            texts[name] = f"{options} {lowered.as_text()}"
            return compile_it(self, name, lowered, options)

        monkeypatch.setattr(kind, "_compiled", compiled)

    recorded(JaxDecoder)
    recorded(AheadEngine)

    def of(options):
        texts.clear()
        assert generate.main([*map(str, options)]) == 0
        return dict(texts)

    return of


@pytest.fixture
def both(programs, monkeypatch, tmp_path):
    """`both(options)`: the programs of `--aot`, and those of a run."""

    def of(*options, devices=1):
        monkeypatch.setattr(
            aot,
            "load_topology",
            lambda name: Topology(name=name, devices=jax.devices()[:devices], device=DEVICE),
        )
        report, folder = tmp_path / "report.json", tmp_path / "programs"
        ahead = [*options, "--aot", "cpu:1", "--aot-json", report, "--aot-save", folder]
        compilation_cache.reset_cache()  # JAX keeps to the folder that it had first
        ahead = programs(ahead)
        reported = json.loads(report.read_text())["programs"]
        assert [one["name"] for one in reported] == [*ahead]
        assert all(one["compiles"] for one in reported)
        saved = {path.name for path in folder.glob("*-cache")}
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()
        run = programs([*options, "--platform", "cpu", "--compile-cache", folder])
        assert saved and saved == {
            path.name for path in folder.glob("*-cache")
        }  # nothing compiled anew
        return ahead, run

    return of


@pytest.fixture(scope="module")
def gemma2(tmp_path_factory, hf_tokenizer):
    """A folder of a tiny Gemma 2, one block of which has a window."""
    import transformers

    folder = tmp_path_factory.mktemp("gemma2")
    config = transformers.Gemma2Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        sliding_window=8,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    hf_tokenizer.save_pretrained(folder)
    return folder


PROMPT = ("Hello, how are people?", "x = [1, 2, 3]", "Paris")
COMMON = ("--ignore-eos", "--max-new-tokens", 20)
OWN = {
    "two rows in panels": ["--batch-size", 2],
    "bfloat16, a stop token": ["--dtype", "bfloat16", "--batch-size", 4, "--stop", "<|im_end|>"],
    "int8, left": ["--quantize", "int8", "--padding", "left", "--batch-size", 4],
    "drawn": ["--temperature", 0.8, "--logprobs", 2, "--raw", "--logit-bias", "5=1"],
    "deterministic": ["--deterministic", "--batch-size", 2],
    "beams": ["--num-beams", 3, "--batch-size", 2],
    "lookup": ["--prompt-lookup", 3, "--batch-size", 2],
    "drafted": ["--draft-model", "qwen3", "--num-draft-tokens", 3, "--batch-size", 2],
    "saved": ["--batch-size", 2, "--save-cache", "saved.safetensors"],
    "transformers'": ["--implementation", "transformers", "--model-sampling"],
}
LIBRARY = {
    "four rows": ["--batch-size", 4],
    "int8, in turn": ["--quantize", "int8", "--batch-size", 2],
    "lookup": ["--prompt-lookup", 3, "--batch-size", 2],
    "deterministic, bfloat16": ["--deterministic", "--dtype", "bfloat16"],
}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=[pytest.mark.slow] if place else [])
        for place, (name, options) in enumerate(OWN.items())
    ],
)
def test_of_our_own_networks(options, both, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [model_folder("qwen3") if option == "qwen3" else option for option in options]
    ahead, run = both(*PROMPT, "--model", model_folder("llama"), *COMMON, *options)
    assert ahead == run
    assert len(run) >= (1 if "--num-beams" in options else 3)


@pytest.mark.slow
@pytest.mark.parametrize("options", LIBRARY.values(), ids=LIBRARY)
def test_of_transformers_networks(options, both, gemma2):
    ahead, run = both(*PROMPT, "--model", gemma2, *COMMON, *options)
    assert ahead == run
    assert len(run) >= 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume", "x"], "not of a saved batch; leave --resume out"),
        (["--engine", "torch"], "leave --engine torch out"),
        (["--mesh", 2], "mesh of 2 devices asked for, but cpu:1 has 1; use --mesh 1"),
        (["--model", "absent"], "no model at absent; give a Hugging Face folder"),
    ],
)
def test_what_no_run_has_is_refused_in_one_line(
    options, message, model_folder, monkeypatch, capsys
):
    devices = jax.devices()[:1]
    monkeypatch.setattr(
        aot, "load_topology", lambda name: Topology(name=name, devices=devices, device=DEVICE)
    )
    common = ["--model", model_folder("llama"), "--aot", "cpu:1", *options]
    capsys.readouterr()  # what fixtures printed
    assert generate.main([*map(str, common)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_the_largest_batch_is_searched_over_all_programs(model_folder, monkeypatch, tmp_path):
    """The decode loop of more than 37 rows does not fit; the prefill does."""
    tried = []

    def compile_run(config, model, topology, rows, *, fill=False):
        def report(name, error):
            sizes = {"outputs": 0, "aliased": 0, "temporaries": 0, "program": 0, "available": 100}
            memory = None if error else Memory(arguments=2 * rows, **sizes)
            facts = {"topology": topology.name, "devices": 1, "device": DEVICE}
            return Ahead(name=name, error=error, memory=memory, **facts)

        tried.append((rows, fill))
        return [report("prefill", None), report("decode", "too large" if rows > 37 else None)]

    monkeypatch.setattr(generation_aot, "compile_run", compile_run)
    devices = jax.devices()[:1]
    monkeypatch.setattr(
        aot, "load_topology", lambda name: Topology(name=name, devices=devices, device=DEVICE)
    )
    report = tmp_path / "report.json"
    options = ["--model", model_folder("llama"), "--aot", "cpu:1", "--aot-largest"]
    assert generate.main([*map(str, options), "--batch-size", "8", "--aot-json", str(report)]) == 0
    largest = json.loads(report.read_text())["largest_batch"]["batch size 8"]["batch"]
    assert 35 <= largest <= 37  # to 5%
    assert tried[0] == (8, False) and all(fill for _, fill in tried[1:])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_on_a_mesh(family, both, model_folder, gemma2):
    folder = model_folder("llama") if family == "llama" else gemma2
    options = ("--mesh", 2, "--batch-size", 4, "--dtype", "bfloat16")
    ahead, run = both(*PROMPT, "--model", folder, *COMMON, *options, devices=2)
    assert ahead == run
    assert any("sharding" in text for text in run.values())


@pytest.mark.slow
def test_of_prompts_in_turn(both, model_folder, tmp_path):
    rng = np.random.default_rng(0)
    lines = ["".join(chr(97 + c) for c in rng.integers(0, 26, n)) for n in rng.integers(1, 60, 12)]
    (tmp_path / "prompts.txt").write_text("\n".join(lines))
    options = ("--prompts", tmp_path / "prompts.txt", "--batch-size", 2)
    ahead, run = both("--model", model_folder("llama"), *COMMON, *options)
    assert ahead == run
    assert any(name.startswith("prefill_packed") for name in run)

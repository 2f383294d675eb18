"""`python -m jaxsr.generate`: its outputs, its report, and its one-line refusals."""

import csv
import importlib.util
import json
import os
import shutil

import jax
import pytest
import torch
from safetensors.torch import save_file

from jaxsr import generate
from jaxsr.interop.weights import read_weights


@pytest.fixture(autouse=True)
def _restored(tmp_path, monkeypatch):
    """The command changes JAX's configuration and the environment; tests after it must not see."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    names = (
        "jax_default_matmul_precision",
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    torch.use_deterministic_algorithms(False)


def run(capsys, *arguments):
    capsys.readouterr()  # what fixtures printed
    status = generate.main([*map(str, arguments), "--platform", "cpu"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_rows_hold_what_was_generated(capsys, model_folder, hf_model, hf_tokenizer, tmp_path):
    folder, out = model_folder("llama"), tmp_path / "rows.jsonl"
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "How are people?"}\n')
    common = ("--model", folder, "--max-new-tokens", 8, "--ignore-eos")
    status, shown, said = run(
        capsys, "Hello there", "--prompts", prompts, *common, "--batch-size", 1, 2, "--out", out
    )
    assert status == 0, said
    rows = [json.loads(line) for line in out.open()]
    assert [(row["batch_size"], row["index"]) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for row in rows:
        chat = [{"role": "user", "content": row["prompt"]}]
        ids = hf_tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )["input_ids"]
        want = hf_model("llama").generate(
            ids, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, ids.shape[1] :]
        assert row["output_ids"] == want.tolist()
        assert row["output"] == hf_tokenizer.decode(
            [i for i in want.tolist() if i != 2], skip_special_tokens=True
        )
        assert (row["prompt_tokens"], row["output_tokens"]) == (ids.shape[1], 8)
        assert (row["model"], row["finish"]) == (folder.name, "length")
        assert row["device"].startswith("cpu")
    assert rows[0]["output"] in shown
    assert "4 outputs, 32 tokens" in said
    table = tmp_path / "rows.csv"
    status, _, said = run(
        capsys, "Hello there", *common, "--engine", "torch", "--out", table, "--deterministic"
    )
    assert status == 0, said
    with table.open(newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["output_ids"] == " ".join(map(str, rows[0]["output_ids"]))


def test_streaming_prints_the_same_text(capsys, model_folder):
    common = ("Hello", "--model", model_folder("llama"), "--engine", "torch", "--raw")
    _, whole, _ = run(capsys, *common, "--max-new-tokens", 30)
    _, streamed, _ = run(capsys, *common, "--max-new-tokens", 30, "--stream", "on")
    assert streamed.strip() == whole.strip()


def test_saved_cache_is_resumed(capsys, model_folder, tmp_path):
    saved, rows = tmp_path / "c.safetensors", tmp_path / "r.jsonl"
    common = ("--model", model_folder("llama"), "--engine", "torch", "--out", rows)
    common = (*common, "--ignore-eos", "--temperature", 0.8)
    assert run(capsys, "Hello", *common, "--max-new-tokens", 12)[0] == 0
    whole = json.loads(rows.read_text())
    assert run(capsys, "Hello", *common, "--max-new-tokens", 5, "--save-cache", saved)[0] == 0
    assert run(capsys, "--resume", saved, *common, "--max-new-tokens", 12)[0] == 0
    resumed = json.loads(rows.read_text())
    for name in ("prompt", "prompt_tokens", "output_ids", "output_tokens"):
        assert resumed[name] == whole[name]


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("family", ["llama", "llama-plain", "qwen3"])
def test_deterministic_is_bit_equal_however_it_is_run(
    family, quantize, capsys, model_folder, tmp_path
):
    """Tokens and caches for either padding, batch sizes, and on 8 devices."""
    saved = tmp_path / "cache.safetensors"
    common = ["Hi", "How are all the people there?", "x", "--model", model_folder(family)]
    common += ["--deterministic", "--max-new-tokens", 9, "--ignore-eos", "--save-cache", saved]
    common += ["--quantize", quantize] if quantize else []
    results = []
    for options in (
        ["--padding", "right"],
        ["--padding", "left", "--batch-size", 3, "--stream", "off"],
        ["--padding", "left", "--batch-size", 2, "--mesh", 8, "--stream", "on"],
    ):
        status, _, said = run(capsys, *common, *options)
        assert status == 0, said
        assert ("one device of 8 computes" in said) == ("--mesh" in options)
        arrays, _ = read_weights(saved)
        results.append({name: (a.shape, a.tobytes()) for name, a in arrays.items()})
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is no prompt"),
        ([""], "prompt 0 is empty"),
        (["hi", "--batch-size", "2", "--stream", "on"], "one output at a time"),
        (["hi", "--batch-size", "0"], "batch_size needs values of at least 1"),
        (["hi", "--mesh", "99"], "mesh of 99 devices asked for, but this machine has 8"),
        (["hi", "--mesh", "2", "--engine", "torch"], "needs --engine jax"),
        (["hi", "--max-new-tokens", "9999"], "use --max-new-tokens"),
        (["hi " * 600], "shorten it"),
        (["hi", "--out", "absent/rows.csv"], "there is no folder absent"),
        (["hi", "--save-cache", "."], ".: Is a directory"),
        (["hi", "--save-cache", "/proc/cache"], "/proc/cache: No such file or directory"),
        (["hi", "--out", "rows.txt"], "must end in .jsonl or .csv"),
        (["hi", "--stop", ""], "stop got an empty text"),
        (["hi", "--stop", "99999"], "is no token of this model, which knows 320"),
        (["hi", "--temperature", "-1"], "temperature must be finite"),
        (["hi", "--resume", "absent"], "give no others"),
        (["--resume", "absent"], "no weights file at absent"),
        (["--resume", "other.safetensors"], "has format None, not 'jaxsr-kv-cache-3'"),
        (["--prompts", "absent.txt"], "no prompt file at absent.txt"),
    ],
)
def test_wrong_input_is_one_line(arguments, message, capsys, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    status, shown, said = run(capsys, *arguments, "--model", model_folder("llama"))
    assert (status, shown) == (2, "")
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("rows*"))


def _no_config(folder):
    (folder / "config.json").unlink()


def _other_architecture(folder):
    (folder / "config.json").write_text('{"model_type": "resnet"}')


def _no_shard(folder):
    next(folder.glob("model-00002-*.safetensors")).unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_no_config, "no config.json in"),
        (_other_architecture, "model_type 'resnet' makes no causal language model"),
        (_no_shard, "shards: model-00002-"),
        (shutil.rmtree, "; give a Hugging Face folder or a .gguf file"),
    ],
)
def test_wrong_model_is_one_line(spoil, message, capsys, model_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder("llama"), folder)
    spoil(folder)
    status, shown, said = run(capsys, "hi", "--model", folder)
    assert (status, shown) == (2, "")
    assert message in said
    assert said.count("\n") == 1


def test_missing_packages_are_named(capsys, model_folder, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jinja2" else find(name)
    )
    status, _, said = run(capsys, "hi", "--model", model_folder("llama"))
    assert status == 2
    assert "generating needs jinja2, which is not installed" in said
    assert said.count("\n") == 1

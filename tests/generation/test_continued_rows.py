"""Rows and caches that a later command goes on with, and those that it refuses."""

import json
import shutil

import pytest

from jaxsr.interop.sealed_json import seal, unseal
from tests.generation.command import lines, run

pytestmark = pytest.mark.usefixtures("settings_restored")


def test_prompts_go_on_after_a_kill(capsys, model_folder, tmp_path):
    folder, out, prompts = model_folder("llama"), tmp_path / "rows.jsonl", tmp_path / "p.jsonl"
    texts = ["Hello there", "How are all the people?", "x", "Paris"]
    prompts.write_text(
        "".join(json.dumps({"prompt": t} | ({"seed": 5} if t == "x" else {})) + "\n" for t in texts)
    )
    common = ("--prompts", prompts, "--model", folder, "--batch-size", 2, "--engine", "torch")
    common = (*common, "--temperature", 0.8, "--max-new-tokens", 9, "--out", out)
    assert run(capsys, *common)[0] == 0
    whole, content = lines(out), out.read_bytes()
    assert [row["index"] for row in whole] == [0, 1, 2, 3]
    broken = content.splitlines(keepends=True)
    out.write_bytes(broken[0] + broken[1] + broken[2][:40])
    status, stdout, stderr = run(capsys, *common)
    assert status == 0, stderr
    assert "has 2 rows already" in stderr
    assert "[2, batch size 2] x" in stdout
    assert "Hello" not in stdout
    for again, row in zip(lines(out), whole, strict=True):
        assert again["output_ids"] == row["output_ids"]
    status, _, stderr = run(capsys, *common)  # nothing is left to do
    assert (status, len(lines(out))) == (0, 4), stderr
    for change, message in (
        (("--temperature", 0.9), "temperature=0.8, this run has 0.9"),
        (("--seed", 3), "was made with run="),
        (("--stop", "abc"), "was made with stop=[], this run has ['abc']"),
    ):
        status, _, stderr = run(capsys, *common, *change)
        assert status == 2
        assert message in stderr
        assert stderr.count("\n") == 1
    prompts.write_text('{"prompt": "Other"}\n')
    assert "was made with run=" in run(capsys, *common)[2]


def _other_tokenizer(folder):
    """Exchanges the names of two tokens that no prompt here has."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["~"], vocabulary["}"] = vocabulary["}"], vocabulary["~"]
    path.write_text(json.dumps(content), encoding="utf-8")


def _other_decoder(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["decoder"] = None
    path.write_text(json.dumps(content), encoding="utf-8")


def _other_end(folder):
    path = folder / "generation_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | {"eos_token_id": [2, 7]}), encoding="utf-8")


@pytest.mark.parametrize("change", [_other_tokenizer, _other_decoder, _other_end])
def test_rows_of_another_tokenizer_or_end_are_refused(change, capsys, model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    common = ("Hello", "--raw", "--model", folder, "--engine", "torch", "--max-new-tokens", 3)
    common = (*common, "--out", tmp_path / "r.jsonl")
    assert run(capsys, *common)[0] == 0
    assert run(capsys, *common)[0] == 0  # the tokenizer is now read from the cache folder
    change(folder)
    status, _, stderr = run(capsys, *common)
    assert (status, stderr.count("\n")) == (2, 1)
    assert "line 1 was made with run=" in stderr


def test_rows_of_another_precision_are_refused_and_of_other_devices_named(
    capsys, model_folder, tmp_path
):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    prompts.write_text('{"prompt": "Hi"}\n{"prompt": "Paris"}\n')
    common = ("--prompts", prompts, "--raw", "--model", model_folder("llama"), "--out", out)
    common = (*common, "--engine", "torch", "--max-new-tokens", 3)
    assert run(capsys, *common)[0] == 0
    row = out.read_bytes().splitlines(keepends=True)[0]
    out.write_bytes(row)
    status, _, stderr = run(capsys, *common, "--matmul-precision", "highest")
    assert (status, stderr.count("\n")) == (2, 1)
    assert "line 1 was made with matmul_precision='default', this run has 'highest'" in stderr
    status, _, stderr = run(capsys, *common)
    assert (status, "has 1 row already\n" in stderr) == (0, True), stderr
    elsewhere = unseal(row, source=out) | {"device": "gpu: NVIDIA H100 × 2"}
    out.write_text(seal(elsewhere, ensure_ascii=False) + "\n")
    status, _, stderr = run(capsys, *common)
    assert status == 0, stderr
    assert "1 row already, made on gpu: NVIDIA H100 × 2; cpu: cpu (torch) may round otherwise" in (
        stderr
    )


def test_a_cache_of_another_tokenizer_is_refused(capsys, model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    saved = tmp_path / "c.safetensors"
    common = ("--model", folder, "--engine", "torch", "--ignore-eos", "--max-new-tokens")
    assert run(capsys, "Hello", "--raw", *common, 3, "--save-cache", saved)[0] == 0
    assert run(capsys, "--resume", saved, *common, 5)[0] == 0
    _other_tokenizer(folder)
    status, _, stderr = run(capsys, "--resume", saved, *common, 5)
    assert (status, stderr.count("\n")) == (2, 1)
    assert "was written with another tokenizer" in stderr


def test_rows_state_the_seed_of_their_prompt_and_go_on_with_no_other(
    capsys, model_folder, tmp_path
):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    common = ("--prompts", prompts, "--model", model_folder("llama"), "--engine", "torch", "--raw")
    common = (*common, "--seed", 4, "--temperature", 1.5, "--max-new-tokens", 3)

    def write(*seeds):
        asked = [{"prompt": "Hi"} | ({} if seed is None else {"seed": seed}) for seed in seeds]
        prompts.write_text("".join(json.dumps(one) + "\n" for one in asked))

    write(1, None, 3)
    assert run(capsys, *common, "--out", out)[0] == 0
    assert [row["seed"] for row in lines(out)] == [1, 4, 3]
    for seeds in ((7, None, 3), (1, 4, 3)):  # the row of a seed of its own is number 0
        write(*seeds)
        status, _, stderr = run(capsys, *common, "--out", out)
        assert (status, "was made with run=" in stderr) == (2, True), stderr
    out.unlink()
    write(1, None, 3)
    saved = tmp_path / "c.safetensors"
    assert run(capsys, *common, "--batch-size", 3, "--save-cache", saved)[0] == 0
    resumed = ("--resume", saved, *common[2:], "--max-new-tokens", 5, "--out", out)
    assert run(capsys, *resumed)[0] == 0
    assert [row["seed"] for row in lines(out)] == [1, 4, 3]

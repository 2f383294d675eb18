"""`python -m jaxsr.generate`: its outputs, its report, and its one-line refusals."""

import csv
import importlib.util
import json
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from jaxsr.interop.weights import read_weights
from tests.generation.command import lines, run

pytestmark = pytest.mark.usefixtures("settings_restored")


@pytest.mark.parametrize("sizes", [(2,), pytest.param((1, 2), marks=pytest.mark.slow)], ids=str)
def test_rows_hold_what_was_generated(
    sizes, capsys, model_folder, hf_model, hf_tokenizer, tmp_path
):
    folder, out = model_folder("llama"), tmp_path / "rows.jsonl"
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "How are people?"}\n')
    common = ("--model", folder, "--max-new-tokens", 8, "--ignore-eos")
    status, stdout, stderr = run(
        capsys, "Hello there", "--prompts", prompts, *common, "--batch-size", *sizes, "--out", out
    )
    assert status == 0, stderr
    rows = [json.loads(line) for line in out.open()]
    expected = [(size, index) for size in sizes for index in (0, 1)]
    assert [(row["batch_size"], row["index"]) for row in rows] == expected
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
    assert rows[0]["output"] in stdout
    assert f"{len(rows)} outputs, {8 * len(rows)} tokens" in stderr
    table = tmp_path / "rows.csv"
    status, _, stderr = run(
        capsys, "Hello there", *common, "--engine", "torch", "--out", table, "--deterministic"
    )
    assert status == 0, stderr
    with table.open(newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["output_ids"] == " ".join(map(str, rows[0]["output_ids"]))


def test_streaming_prints_the_same_text(capsys, model_folder):
    common = ("Hello", "--model", model_folder("llama"), "--engine", "torch", "--raw")
    _, whole, _ = run(capsys, *common, "--max-new-tokens", 30)
    _, streamed, _ = run(capsys, *common, "--max-new-tokens", 30, "--stream", "on")
    assert streamed.strip() == whole.strip()


@pytest.mark.parametrize(
    "options", [(), ("--deterministic",), ("--deterministic", "--batch-size", 2)]
)
def test_several_outputs_stream_in_the_order_of_the_prompts(capsys, model_folder, options):
    prompts = ["one", "a second prompt, longer than the first", "three", "the fourth is " * 9]
    common = (*prompts, "--model", model_folder("llama"), "--raw", "--ignore-eos", *options)
    _, whole, _ = run(capsys, *common, "--max-new-tokens", 12)
    status, streamed, stderr = run(capsys, *common, "--max-new-tokens", 12, "--stream", "on")
    assert status == 0, stderr
    assert streamed == whole


def test_prompts_come_through_a_pipe(capsys, model_folder):
    """As `--prompts <(command)`."""
    read, write = os.pipe()
    os.write(write, b"one\ntwo\n")
    os.close(write)
    options = ("--model", model_folder("llama"), "--max-new-tokens", 2, "--engine", "torch")
    status, stdout, stderr = run(capsys, "--prompts", f"/dev/fd/{read}", *options)
    os.close(read)
    assert status == 0, stderr
    assert "[0, batch size 1] one" in stdout and "[1, batch size 1] two" in stdout


def test_raw_refuses_chats_of_several_messages(capsys, model_folder, tmp_path):
    path = tmp_path / "chat.jsonl"
    messages = [{"role": role, "content": "hi"} for role in ("user", "assistant", "user")]
    path.write_text(json.dumps({"messages": messages}))
    common = ("--prompts", path, "--model", model_folder("llama"))
    status, _, stderr = run(capsys, *common, "--raw")
    assert status == 2
    assert "prompt 0 has 3 messages, which only a chat template joins" in stderr
    tools = [{"type": "function", "function": {"name": "now", "parameters": {}}}]
    path.write_text(json.dumps({"prompt": "hi", "tools": tools}))
    assert run(capsys, *common, "--raw")[0] == 2


@pytest.mark.parametrize("options", [(), ("--deterministic",)])
def test_a_prompt_with_its_own_seed_draws_as_alone(capsys, model_folder, tmp_path, options):
    lines = [json.dumps({"prompt": "alpha beta", "seed": seed}) for seed in (1, 2)]
    outputs = []
    for number, content in enumerate([lines, lines[1:]]):
        prompts, rows = tmp_path / f"prompts{number}.jsonl", tmp_path / f"rows{number}.jsonl"
        prompts.write_text("\n".join(content))
        common = ("--prompts", prompts, "--model", model_folder("llama"), "--raw", "--out", rows)
        status, _, stderr = run(capsys, *common, "--temperature", 1, "--ignore-eos", *options)
        assert status == 0, stderr
        outputs.append(json.loads(rows.read_text().splitlines()[-1])["output_ids"])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    "options",
    [
        ("--engine", "torch"),
        (),
        ("--implementation", "transformers"),
        pytest.param(
            ("--implementation", "transformers", "--quantize", "int8"), marks=pytest.mark.slow
        ),
    ],
)
def test_saved_cache_is_resumed(capsys, model_folder, tmp_path, options):
    saved, rows = tmp_path / "c.safetensors", tmp_path / "r.jsonl"
    common = ("--model", model_folder("llama"), *options, "--out", rows)
    common = (*common, "--ignore-eos", "--temperature", 0.8)
    assert run(capsys, "Hello", *common, "--max-new-tokens", 12)[0] == 0
    whole = json.loads(rows.read_text())
    rows.unlink()
    assert run(capsys, "Hello", *common, "--max-new-tokens", 5, "--save-cache", saved)[0] == 0
    rows.unlink()
    assert run(capsys, "--resume", saved, *common, "--max-new-tokens", 12)[0] == 0
    resumed = json.loads(rows.read_text())
    for name in ("prompt", "prompt_tokens", "output_ids", "output_tokens"):
        assert resumed[name] == whole[name]


@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_stop_texts_end_the_output_exactly(engine, capsys, model_folder, hf_tokenizer, tmp_path):
    out = tmp_path / "rows.jsonl"
    common = ("Hello there", "--model", model_folder("llama"), "--max-new-tokens", 30, "--raw")
    common = (*common, "--ignore-eos", "--engine", engine, "--out", out)
    assert run(capsys, *common)[0] == 0
    free = lines(out)[0]
    out.unlink()
    text = free["output"]
    at = len(text) // 2
    stop = text[at : at + 3]
    status, stdout, stderr = run(capsys, *common, "--stop", stop, "no such text")
    assert status == 0, stderr
    row = lines(out)[0]
    assert row["output"] == text[: text.find(stop)]
    assert stdout.rstrip("\n") == row["output"]
    assert row["finish"] == "stop"
    n = len(row["output_ids"])
    assert row["output_ids"] == free["output_ids"][:n]
    decode = hf_tokenizer.backend_tokenizer.decode
    assert stop in decode(row["output_ids"])
    assert stop not in decode(row["output_ids"][:-1])
    out.unlink()
    _, streamed, _ = run(capsys, *common, "--stop", stop, "--stream", "on")
    assert streamed.rstrip("\n") == row["output"]
    # A special token by its name, and a token by its id.
    for name in ("<|im_end|>", str(free["output_ids"][4])):
        out.unlink()
        status, _, stderr = run(capsys, *common, "--stop", name)
        assert status == 0, stderr
        ids = lines(out)[0]["output_ids"]
        token = hf_tokenizer.convert_tokens_to_ids(name) if name.startswith("<") else int(name)
        expected = free["output_ids"]
        assert ids == expected[: expected.index(token) + 1 if token in expected else None]


def test_logprobs_and_beams_are_columns(capsys, model_folder, tmp_path):
    out, table = tmp_path / "rows.jsonl", tmp_path / "rows.csv"
    common = ("Hello there", "--model", model_folder("llama"), "--max-new-tokens", 5)
    common = (*common, "--engine", "torch")
    assert run(capsys, *common, "--logprobs", 2, "--out", out)[0] == 0
    row = lines(out)[0]
    assert [entry["id"] for entry in row["token_logprobs"]] == row["output_ids"]
    for entry in row["token_logprobs"]:
        assert len(entry["top"]) == 2
        assert entry["top"][0] == {n: entry[n] for n in ("id", "token", "logprob")}  # greedy
    assert run(capsys, *common, "--logprobs", 0, "--out", table)[0] == 0
    with table.open(newline="", encoding="utf-8") as file:
        cell = next(csv.DictReader(file))["token_logprobs"]
    assert [entry["id"] for entry in json.loads(cell)] == row["output_ids"]
    assert json.loads(cell)[0]["top"] == []
    status, stdout, stderr = run(
        capsys,
        *common,
        "--num-beams",
        3,
        "--num-return-sequences",
        2,
        "--out",
        tmp_path / "b.jsonl",
    )
    assert status == 0, stderr
    row = lines(tmp_path / "b.jsonl")[0]
    assert len(row["beams"]) == 2
    assert row["beams"][0]["output_ids"] == row["output_ids"]
    assert row["beams"][0]["score"] >= row["beams"][1]["score"]
    assert row["output"] in stdout


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "link.jsonl"])
def test_rows_replace_no_file_of_the_users(name, capsys, model_folder, tmp_path):
    (tmp_path / "notes.txt").write_text("my notes\n")
    out = tmp_path / name
    out.symlink_to("notes.txt") if name.startswith("link") else out.write_text("my notes\n")
    common = ("--model", model_folder("llama"), "--engine", "torch", "--max-new-tokens", 2)
    status, _, stderr = run(capsys, "Hi", *common, "--out", out)
    assert status == 2
    assert "line 1 is not a row" in stderr or "which has content; name another" in stderr
    assert out.read_text() == "my notes\n"


def test_rows_of_one_prompt_are_kept(capsys, model_folder, tmp_path):
    out = tmp_path / "rows.jsonl"
    common = ("--model", model_folder("llama"), "--engine", "torch", "--max-new-tokens", 2)
    assert run(capsys, "Hi", *common, "--out", out)[0] == 0
    content = out.read_bytes()
    status, _, stderr = run(capsys, "Hi", *common, "--out", out)
    assert status == 0 and "has 1 row already" in stderr
    status, _, stderr = run(capsys, "Ho", *common, "--out", out)
    assert status == 2 and "line 1 was made with run=" in stderr
    assert run(capsys, "Hi", *common, "--out", out)[0] == 0
    status, _, stderr = run(
        capsys, "Hi", *common, "--out", out, "--save-cache", tmp_path / "cache.safetensors"
    )
    assert status == 2 and "which has content; name another file" in stderr
    assert out.read_bytes() == content


def test_sampling_of_the_model_is_taken_or_refused(capsys, model_folder, tmp_path):
    folder, out = tmp_path / "model", tmp_path / "rows.jsonl"
    shutil.copytree(model_folder("llama"), folder)
    path = folder / "generation_config.json"
    fields = {"do_sample": True, "temperature": 0.7, "repetition_penalty": 1.2, "eos_token_id": 2}
    path.write_text(json.dumps(fields))
    common = ("Hi", "--model", folder, "--max-new-tokens", 3, "--engine", "torch", "--out", out)
    assert run(capsys, *common, "--model-sampling", "--top-k", 9)[0] == 0
    row = lines(out)[0]
    assert (row["temperature"], row["repetition_penalty"], row["top_k"]) == (0.7, 1.2, 9)
    out.unlink()
    # Options that the command names take precedence, those that equal the default too.
    assert run(capsys, *common, "--model-sampling", "--temperature=0")[0] == 0
    row = lines(out)[0]
    assert (row["temperature"], row["repetition_penalty"]) == (0.0, 1.2)
    out.unlink()
    assert run(capsys, *common)[0] == 0
    assert lines(out)[0]["repetition_penalty"] == 1.0
    for change, message in (
        ({"eta_cutoff": 0.1}, "sets eta_cutoff, which jaxsr does not compute"),
        ({"top_p": "high"}, "generation_config.json"),
        ({"repetition_penalty": -1.0}, "repetition_penalty must be above 0"),
    ):
        path.write_text(json.dumps(fields | change))
        status, _, stderr = run(capsys, *common, "--model-sampling")
        assert status == 2
        assert message in stderr
        assert stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "quantize"),
    [
        ("qwen3", "int8"),
        pytest.param("llama", None, marks=pytest.mark.slow),
        pytest.param("llama", "int8", marks=pytest.mark.slow),
        pytest.param("llama-plain", None, marks=pytest.mark.slow),
        pytest.param("llama-plain", "int8", marks=pytest.mark.slow),
        pytest.param("qwen3", None, marks=pytest.mark.slow),
    ],
)
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
        status, _, stderr = run(capsys, *common, *options)
        assert status == 0, stderr
        assert ("one device of 8 computes" in stderr) == ("--mesh" in options)
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
        (["hi", "--stop", "99999"], "is not a token of this model, which knows 320"),
        (["hi", "--temperature", "-1"], "temperature must be at least 0"),
        (["hi", "--logit-bias", "999=1"], "logit_bias names the token id 999"),
        (["hi", "--logit-bias", *(f"{i}=-inf" for i in range(320))], "bans all 320 tokens that"),
        (["hi", "--logprobs", "999"], "logprobs=999 asks for more tokens than the model's 320"),
        (["hi", "--num-beams", "2", "--stop", "abc"], "beam search ends at tokens"),
        (["hi", "--num-beams", "2", "--stream", "on"], "use --batch-size 1 and no beams"),
        (["hi", "--resume", "absent"], "give no others"),
        (["--resume", "absent"], "no weights file at absent"),
        (["--resume", "other.safetensors"], "has format None, not 'jaxsr-kv-cache-4'"),
        (["--prompts", "absent.txt"], "no prompt file at absent.txt"),
        (["--prompts", "."], ". is a folder; give a file of prompts"),
        (["--prompts", "/dev/null"], "/dev/null is a device, not a file; give a file of prompts"),
    ],
)
def test_wrong_input_is_one_line(arguments, message, capsys, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    status, stdout, stderr = run(capsys, *arguments, "--model", model_folder("llama"))
    assert (status, stdout) == (2, "")
    assert message in stderr
    assert stderr.count("\n") == 1
    assert not list(tmp_path.glob("rows*"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("some/model-1B", "hf download some/model-1B"),
        ("other.safetensors", "is one file of a model; give the folder that it lies in"),
        ("absent/file.gguf", "no model at absent/file.gguf"),
    ],
)
def test_what_is_no_model_says_what_to_give(model, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "absent").mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    status, stdout, stderr = run(capsys, "hi", "--model", model)
    assert (status, stdout, stderr.count("\n")) == (2, "", 1)
    assert message in stderr


def test_a_chat_without_a_template_is_refused(capsys, model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    common = ("hi", "--model", folder, "--engine", "torch", "--max-new-tokens", 2)
    assert run(capsys, *common)[0] == 0
    status, stdout, stderr = run(capsys, *common, "--system", "Be kind.")
    assert (status, stdout, stderr.count("\n")) == (2, "", 1)
    assert "prompt 0 has 2 messages, which only a chat template joins (this model has" in stderr


def _no_config(folder):
    (folder / "config.json").unlink()


def _other_architecture(folder):
    (folder / "config.json").write_text('{"model_type": "resnet"}')


def _adapter(folder):
    _no_config(folder)
    (folder / "adapter_config.json").write_text("{}")


def _no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def _sentencepiece(folder):
    _no_tokenizer(folder)
    (folder / "tokenizer.model").write_bytes(b"x" * 99)


def _pointer(name):
    def spoil(folder):
        (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")

    return spoil


def _stop_word(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": "</s>"}')


def _more_tokens(folder):
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"vocab_size": 640}))


def _no_shard(folder):
    next(folder.glob("model-00002-*.safetensors")).unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_no_config, "no config.json in"),
        (_other_architecture, "model_type 'resnet' makes no causal language model"),
        (_no_shard, "shards: model-00002-"),
        (_adapter, "is of an adapter: merge that into its model"),
        (_no_tokenizer, "has no tokenizer.json; get it from where the model came from, or give --"),
        (_sentencepiece, "none of tokenizer.model ("),
        (_pointer("tokenizer.json"), "run git lfs pull"),
        (_pointer("config.json"), "run git lfs pull"),
        (_stop_word, "generation_config.json has the eos_token_id '</s>', which is not a token"),
        (_more_tokens, "/model: model.embed_tokens.weight has shape (320, 64), but the config"),
        (shutil.rmtree, "; give a Hugging Face folder, a .gguf file"),
    ],
)
def test_wrong_model_is_one_line(spoil, message, capsys, model_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder("llama"), folder)
    spoil(folder)
    status, stdout, stderr = run(capsys, "hi", "--model", folder)
    assert (status, stdout) == (2, "")
    assert message in stderr
    assert stderr.count("\n") == 1


def test_missing_packages_are_named(capsys, model_folder, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jinja2" else find(name)
    )
    status, _, stderr = run(capsys, "hi", "--model", model_folder("llama"))
    assert status == 2
    assert "generating needs jinja2, which is not installed" in stderr
    assert stderr.count("\n") == 1


def test_warm_up_compiles_what_a_run_needs(capsys, model_folder, tmp_path):
    pytest.importorskip("flatbuffers", reason="flatbuffers is absent; pip install flatbuffers")
    common = ("--model", model_folder("llama"), "--raw", "--compile-cache", tmp_path / "cache")
    status, stdout, stderr = run(capsys, "--warm-up", 3, *common)
    assert status == 0 and "programs for prompts of 3 tokens compiled in" in stdout, stderr
    made = {path.name for path in (tmp_path / "cache" / "traced").iterdir()}
    out = tmp_path / "rows.jsonl"
    assert run(capsys, "Hi", *common, "--out", out)[0] == 0
    (row,) = map(json.loads, out.open())
    assert 0 < row["compile_s"] < row["first_token_s"]
    assert {path.name for path in (tmp_path / "cache" / "traced").iterdir()} == made


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--warm-up", 0), "warm_up must be at least 1"),
        (("Hi", "--warm-up"), "warm_up compiles, and prompt is of other runs"),
        (("--warm-up", "--engine", "torch"), "leave --engine torch out"),
    ],
)
def test_warm_up_is_refused_beside_what_it_would_not_do(options, message, capsys, model_folder):
    status, _, stderr = run(capsys, *options, "--model", model_folder("llama"))
    assert status == 2 and message in stderr

"""Buckets, padding, prompt files and report files."""

import csv
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxsr.errors import InputError
from jaxsr.generation.config import GenerateConfig
from jaxsr.generation.padding import bucket, cache_slots, packed, padded
from jaxsr.generation.prompts import Prompt, check_rows_path, read_prompts, write_rows
from jaxsr.generation.run_settings import prompt_ids


def test_buckets_hold_their_lengths_and_are_few():
    assert [bucket(n) for n in (1, 16, 17, 65, 128, 129)] == [16, 16, 32, 128, 128, 192]
    assert [bucket(n) for n in (192, 193, 257, 385)] == [192, 256, 384, 512]
    for length in range(1, 2000, 7):
        for new in (1, 64, 500):
            assert cache_slots(length, new, context=4096) >= bucket(length) + new
    assert len({cache_slots(n, 128, context=4096) for n in range(1, 1025)}) < 10


@pytest.mark.parametrize("padding", ["right", "left"])
def test_rows_are_padded_on_the_side_asked_for(padding):
    tokens, lengths = padded([[5, 6, 7], [8]], padding=padding)
    assert tokens.shape == (2, 16)
    assert lengths.tolist() == [3, 1]
    parts = (slice(3), slice(1)) if padding == "right" else (slice(13, None), slice(15, None))
    assert tokens[0, parts[0]].tolist() == [5, 6, 7]
    assert tokens[1, parts[1]].tolist() == [8]


def test_packed_prompts_lie_one_after_another():
    table = packed([[5, 6, 7], [8]], places=3)
    assert {name: array.dtype.name for name, array in table.items()} == dict.fromkeys(
        ("tokens", "first", "begin", "length"), "int32"
    )
    assert table["tokens"].tolist() == [5, 6, 7, 8] + [0] * 60
    assert table["first"].tolist() == [0, 0, 0, 3, *range(4, 64)]
    assert table["begin"].tolist() == [0, 3, 63]
    assert table["length"].tolist() == [3, 1, 1]
    assert len(packed([[1] * 100, [2] * 150], places=2)["tokens"]) == 256


def test_text_file_has_a_prompt_per_line(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeffone\r\n\n zwölf \n".encode())
    prompts = read_prompts(path, system="be brief")
    assert [prompt.text for prompt in prompts] == ["one", " zwölf "]
    assert [m["role"] for m in prompts[0].messages] == ["system", "user"]


@pytest.mark.parametrize("line", ["1" * 5000, "[" * 100_000, '"\\ud800"', "{"])
def test_jsonl_that_python_cannot_read_is_one_line(tmp_path, line):
    (tmp_path / "p.jsonl").write_text(line)
    with pytest.raises(InputError, match="line 1 is not JSON") as error:
        read_prompts(tmp_path / "p.jsonl")
    assert "\n" not in str(error.value)


def test_a_prompt_of_other_bytes_is_refused():
    with pytest.raises(InputError, match="a prompt is not UTF-8 text"):
        Prompt.of("\udcff")


def test_files_of_prompts_are_known_by_their_names(tmp_path):
    for name in ("p.JSONL", "p.ndjson"):
        (tmp_path / name).write_text('{"prompt": "alpha"}')
        assert read_prompts(tmp_path / name)[0].text == "alpha"
    (tmp_path / "p.json").write_text('["alpha"]')
    with pytest.raises(InputError, match=r"is JSON; give a \.jsonl file"):
        read_prompts(tmp_path / "p.json")
    (tmp_path / "p.jsonl").write_text('{"prompt": "alpha", "messages": []}')
    with pytest.raises(InputError, match="has prompt and messages; leave all but one out"):
        read_prompts(tmp_path / "p.jsonl")


def test_jsonl_takes_prompts_and_chats(tmp_path):
    path = tmp_path / "p.jsonl"
    lines = [
        {"prompt": "a"},
        {"text": "b"},
        "c",
        {"messages": [{"role": "user", "content": "d"}, {"role": "assistant", "content": "x"}]},
        {"conversations": [{"from": "human", "value": "e"}, {"from": "gpt", "value": "y"}]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    prompts = read_prompts(path)
    assert [prompt.text for prompt in prompts] == ["a", "b", "c", "d", "e"]
    assert prompts[4].messages == ({"role": "user", "content": "e"},)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', "line 2 is not valid UTF-8 .*0xff"),
        (b'{"prompt": "a"}\n\n{prompt}\n', "line 3 is not JSON"),
        (b'{"prompt": "a", "prompt": "b"}', "line 1 is not JSON: 'prompt' appears twice"),
        (b'{"prompt": ""}', "line 1 has an empty prompt"),
        (b'{"prompt": 3}', "line 1 has an empty prompt, or one that is not text"),
        (b"[1]", "line 1 must be an object or a string, got list"),
        (b'{"question": "a"}', "has none of prompt, text, messages; it has question"),
        (b'{"messages": [{"role": "user"}]}', "message without role and content"),
        (b'{"messages": [{"role": "assistant", "content": "a"}]}', "no message to answer"),
        (b"\n\n", "holds no prompt"),
    ],
)
def test_bad_lines_are_named(content, message, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_prompts(path)
    assert "\n" not in str(caught.value)


def test_reports_are_read_back(tmp_path):
    rows = [{"prompt": 'a "b",\nc', "output": "ü", "n": 1}, {"prompt": "", "output": "", "n": 2}]
    write_rows(tmp_path / "r.jsonl", rows)
    assert [json.loads(line) for line in (tmp_path / "r.jsonl").open(encoding="utf-8")] == rows
    write_rows(tmp_path / "r.csv", rows)
    with (tmp_path / "r.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == [{**row, "n": str(row["n"])} for row in rows]
    with pytest.raises(ValueError, match=r"must end in \.jsonl or \.csv"):
        check_rows_path(tmp_path / "r.txt", continues=False)
    with pytest.raises(ValueError, match="which has content; name another file"):
        check_rows_path(tmp_path / "r.csv", continues=False)


def test_messages_keep_what_templates_read(tmp_path):
    path = tmp_path / "chats.jsonl"
    tools = [{"type": "function", "function": {"name": "now"}}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
    result = {"role": "tool", "content": "noon", "tool_call_id": "a"}
    parts = {"role": "user", "content": [{"type": "text", "text": "what "}, {"text": "time?"}]}
    line = {"id": 7, "messages": [parts, call, result], "tools": tools, "documents": ["a"]}
    path.write_text(json.dumps(line) + "\n")
    (prompt,) = read_prompts(path)
    assert prompt.messages == ({"role": "user", "content": "what time?"}, call, result)
    assert (prompt.tools, prompt.documents, prompt.text) == (tools, ["a"], "noon")


def test_tools_and_documents_reach_the_template():
    class Tokenizer:
        template = "given"

        def chat(self, messages, *, tools=None, documents=None):
            return f"{messages[0]['content']} {tools} {documents}"

        def encode(self, text, *, raw=True):
            return [text, raw]

    prompt = dataclasses.replace(Prompt.of("hi"), tools=["t"], documents=["d"])
    config = SimpleNamespace(raw=False)
    ids = prompt_ids(cast(Any, config), [prompt], Tokenizer())
    assert ids == [["hi ['t'] ['d']", False]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            {"prompt": "a", "temperature": 0.5, "max_tokens": 9},
            "has temperature, max_tokens, which",
        ),
        ({"text": "a", "tools": "now"}, "must have a list as tools, got str"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not all text"),
        ({"messages": [{"role": "user", "content": None}]}, "without role and content as text"),
    ],
)
def test_what_a_line_cannot_have_is_named(tmp_path, line, message):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=message):
        read_prompts(path)


@pytest.mark.parametrize("option", [{"stop": ("\udcff",)}, {"system": "\udcff"}])
def test_options_that_are_not_utf_8_are_refused_before_any_work(option):
    with pytest.raises(InputError, match=f"{next(iter(option))} is not UTF-8 text"):
        GenerateConfig(model=Path("m"), prompt=("a",), **option)

"""Tokenizers and chat templates of folders against `transformers`."""

import json
import shutil

import pytest

from jaxsr.errors import InputError
from jaxsr.models.llama import chat_renderer
from jaxsr.models.llama.tokenizer import Tokenizer, load_tokenizer


def test_ids_text_and_chat_match_transformers(model_folder, hf_tokenizer, texts):
    tokenizer = load_tokenizer(model_folder("llama"))
    for text in texts:
        ids = hf_tokenizer.encode(text)
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode([1, *ids, 2]) == hf_tokenizer.decode(ids)
    messages = [
        {"role": "system", "content": "be brief "},
        {"role": "user", "content": "ünï <b>"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "more"},
    ]
    want = hf_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.chat(messages) == want


def test_templates_get_what_transformers_gives_them(model_folder, hf_tokenizer, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    for path in folder.glob("chat_template*"):
        path.unlink()
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{{ m | tojson }}{% endfor %}{{ eos_token }}{{ strftime_now('%Y') }}"
    )
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"chat_template": source}
    path.write_text(json.dumps(config))
    messages = [{"role": "user", "content": "é<"}] * 3
    want = hf_tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False)
    assert load_tokenizer(folder).chat(messages) == want
    path.write_text(json.dumps(config | {"chat_template": "{{ raise_exception('no system') }}"}))
    with pytest.raises(ValueError, match="chat template failed: no system"):
        load_tokenizer(folder).chat(messages)
    # A template comes from a stranger's file: it reaches no Python internals.
    path.write_text(json.dumps(config | {"chat_template": "{{ ''.__class__.__mro__ }}"}))
    with pytest.raises(ValueError, match="chat template failed"):
        load_tokenizer(folder).chat(messages)
    path.write_text(json.dumps({k: v for k, v in config.items() if k != "chat_template"}))
    with pytest.raises(ValueError, match="no chat template; use --raw"):
        load_tokenizer(folder).chat(messages)


def test_truncation_and_padding_of_the_file_are_not_of_prompts(model_folder, tmp_path):
    """A script that called the tokenizer with both has saved them in tokenizer.json."""
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    saved = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    saved.backend_tokenizer.enable_truncation(4)
    saved.backend_tokenizer.enable_padding(length=64, pad_id=0, pad_token="<pad>")
    saved.backend_tokenizer.save(str(folder / "tokenizer.json"))
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"]["max_length"] == 4
    again = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    text = "a prompt that is longer than four tokens"
    assert load_tokenizer(folder).encode(text) == again.encode(text)


TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {}}}]
SOURCES = (
    "{% if tools is none %}none{% endif %}{{ documents is none }}{{ tools is defined }}",
    "{% for t in tools or [] %}{{ t.function | tojson(indent=1) }}{% endfor %}",
    "{{ cls_token }}{{ sep_token }}|{{ bos_token }}|{{ image_token }}",
    "{% for m in messages %}{{ m.reasoning_content }}{{ m.tool_calls }}{% endfor %}",
    "{% for m in messages %}{% generation %}[{{ m.content }}]{% endgeneration %}{% endfor %}",
    "{{ messages | tojson(ensure_ascii=True, sort_keys=True) }}",
)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["none", "tools"])
def test_variables_of_templates_are_transformers(model_folder, tmp_path, source, tools):
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    for path in folder.glob("chat_template*"):
        path.unlink()
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"chat_template": source, "cls_token": "<c>"}
    config["extra_special_tokens"] = {"image_token": "<img>"}
    path.write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    messages = [
        {"role": "user", "content": "é"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [{"a": 1}]},
    ]
    want = theirs.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True
    )
    assert load_tokenizer(folder).chat(messages, tools=tools) == want


def test_descriptions_of_tools_count_in_what_a_template_may_write(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    for path in folder.glob("chat_template*"):
        path.unlink()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": "{{ tools[0] }}{{ documents[0] }}"}))
    long = "a" * (chat_renderer.MOST_CHARACTERS // 2 + 1)
    messages = [{"role": "user", "content": "a"}]
    assert load_tokenizer(folder).chat(messages, tools=[long], documents=[long]) == 2 * long


def test_a_token_that_only_the_map_of_special_tokens_has(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    for path in folder.glob("chat_template*"):
        path.unlink()
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"chat_template": "{{ bos_token }}"}
    config.pop("bos_token", None)
    path.write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    assert load_tokenizer(folder).chat([{"role": "user", "content": "a"}]) == "<s>"


def test_missing_and_broken_files_are_named(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\.json; get it"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 'a' * 10**9 }}", r"1 s or 1024 MiB|more than 1024 MiB"),
        ("{{ 'aaaa' * 900000000 }}", r"1 s or 1024 MiB|more than 1024 MiB"),
        ("{{ 'a' | center(2000000000) }}", r"1 s or 1024 MiB|more than 1024 MiB"),
        ("{{ '%2000000000d' % 1 }}", r"1 s or 1024 MiB|more than 1024 MiB"),
        (
            "{% set x = namespace(t='ab') %}{% for a in range(99) %}{% set x.t = x.t ~ x.t %}"
            "{% endfor %}",
            "MiB",
        ),
        ("{{ 'a' * 9000000 }}", "writes more than 4,194,3.. characters"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "1 s"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for a in range(10**6) %}{% endfor %}", "failed"),
        (["x"], "is damaged .TypeError"),
        ([{"name": "default"}], "is damaged .KeyError: 'template'"),
        (3, "a chat template that is a int"),
    ],
)
def test_hostile_templates_are_refused(model_folder, tmp_path, monkeypatch, template, reason):
    monkeypatch.setattr(chat_renderer, "RENDER_S", 1.0)
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    for path in folder.glob("chat_template*"):
        path.unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(InputError, match=reason):
        load_tokenizer(folder).chat([{"role": "user", "content": "x"}])


def test_files_of_before_tokenizer_json_are_read(texts, hf_tokenizer, tmp_path):
    parts = json.loads(hf_tokenizer.backend_tokenizer.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(parts["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in parts["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    tokenizer = load_tokenizer(tmp_path)
    for text in texts:
        assert tokenizer.encode(text) == reference.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_tokenizer_that_panics_is_one_line(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": "(?<n>a)\\g<n>*(((((a+)+)+)+)+)+$(?<=(a|bc)+)("},
        "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(folder)


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [{"rope_theta": "many"}, {"rms_norm_eps": [1]}, {"num_key_value_heads": "2"},
     {"rope_scaling": LLAMA3 | {"factor": None}}, {"rope_scaling": LLAMA3 | {"factor": True}},
     {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": "8192"}},
     {"rope_scaling": "linear"}, {"hidden_size": "64"}, {"vocab_size": 3.5}],
)  # fmt: skip
def test_values_of_another_type_in_a_configuration_are_one_line(fields):
    from jaxsr.models.llama.config import LlamaConfig

    plain = {"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16,
             "num_hidden_layers": 1, "num_attention_heads": 2}  # fmt: skip
    LlamaConfig.from_hf(plain)
    LlamaConfig.from_hf(plain | {"rope_scaling": LLAMA3})
    with pytest.raises(InputError):
        LlamaConfig.from_hf(plain | fields)


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_a_tokenizer_that_multiplies_texts_is_refused(model_folder, tmp_path, part):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    content[part] = {"type": "Sequence", f"{part}s": [double] * 40}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"a {part} that makes texts .* times as long"):
        load_tokenizer(folder)


@pytest.mark.parametrize("kind", ["BPE", "Unigram", "WordLevel"])
def test_the_digest_is_of_what_decoding_depends_on(kind, texts):
    """It stays through a file, and tells tokens, their ids and the decoder apart."""
    tokenizers = pytest.importorskip("tokenizers")

    def trained():
        inner = tokenizers.Tokenizer(getattr(tokenizers.models, kind)())
        options = {"unk_token": "<unk>"} if kind == "Unigram" else {}
        trainer = getattr(tokenizers.trainers, f"{kind.replace('BPE', 'Bpe')}Trainer")(
            vocab_size=120, special_tokens=["<unk>"], show_progress=False, **options
        )
        inner.train_from_iterator(texts * 4, trainer)
        return inner

    inner = trained()
    digest = Tokenizer(inner=inner).digest
    read = tokenizers.Tokenizer.from_str(inner.to_str())
    assert Tokenizer(inner=read).digest == digest
    read.normalizer = tokenizers.normalizers.Lowercase()
    read.encode_special_tokens = True
    assert Tokenizer(inner=read).digest == digest
    read.decoder = tokenizers.decoders.ByteLevel()
    others = {Tokenizer(inner=read).digest}
    inner.add_tokens(["unheard"])
    others.add(Tokenizer(inner=inner).digest)
    inner.add_special_tokens(["unheard"])  # which the text then lacks
    others.add(Tokenizer(inner=inner).digest)
    assert len(others) == 3 and digest not in others

"""Tokenizers and chat templates of folders against `transformers`."""

import base64
import json
import shutil
import sys
import venv

import jinja2
import pytest
from tokenizers import pre_tokenizers

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


def test_special_tokens_of_the_class_reach_templates(tmp_path):
    """As of microsoft/DialoGPT, whose files name none of GPT-2's."""
    transformers = pytest.importorskip("transformers")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*letters, "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    source = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    messages = [{"role": "user", "content": "Hi"}] * 2
    want = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert "<|endoftext|>" in want
    for _ in range(2):  # made, then read from the cache
        assert load_tokenizer(tmp_path).chat(messages) == want


@pytest.mark.parametrize("in_files", [False, True], ids=["a list", "files"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["none", "tools"])
def test_a_template_for_tools_is_used_with_tools(model_folder, tmp_path, in_files, tools):
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    for path in folder.glob("chat_template*"):
        path.unlink()
    sources = {"default": "{{ messages[0].content }}", "tool_use": "{{ tools | tojson }}"}
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    if in_files:
        (folder / "chat_template.jinja").write_text(sources["default"])
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(sources["tool_use"])
    else:
        config["chat_template"] = [{"name": k, "template": v} for k, v in sources.items()]
    path.write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    messages = [{"role": "user", "content": "é"}]
    want = theirs.apply_chat_template(messages, tools=tools, tokenize=False)
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


def test_templates_find_jinja2_where_python_itself_does_not(tmp_path, monkeypatch):
    venv.create(tmp_path, with_pip=False)  # as with libraries in PYTHONPATH or the user's folder
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    template, messages = "{{ messages[0].content | upper }}", [{"role": "user", "content": "hi"}]
    variables = {"tools": None, "documents": None}
    expected = jinja2.Template(template).render(messages=messages)
    assert chat_renderer.Renderer().render(template, messages, variables) == expected
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(chat_renderer.TemplateFailure, match=r"jinja2 cannot be imported .No mod"):
        chat_renderer.Renderer().render(template, messages, variables)


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


def _template(*, pieces=1, ids=1):
    special = {"<s>": {"id": "<s>", "ids": [0] * ids, "tokens": ["<s>"] * ids}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * pieces + [text]
    pair = [text, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
CHARSMAP = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"x" * 10**5 + b"\0").decode()
HANZI = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
         "strip_accents": True, "lowercase": True}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [DOUBLE] * 40}),
        ("normalizer", {"pattern": {"String": "a"}, "content": "a" * 100}),  # tells no type
        ("normalizer", {"type": "Prepend", "prepend": "x" * 1000}),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 9}),
        ("normalizer", {"type": "Sequence", "normalizers": [HANZI] * 9}),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 2000}),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTES] * 40}),
        ("post_processor", _template(pieces=2000, ids=20)),
        ("post_processor", _template(ids=10**5)),
        ("post_processor", {"type": "Sequence", "processors": [BYTES, _template(pieces=10**4)]}),
        ("decoder", {"type": "Sequence", "decoders": [DOUBLE] * 40}),
        ("decoder", {"type": "Sequence", "decoders": [{"type": "BPEDecoder", "suffix": ""}] * 40}),
    ],
)  # fmt: skip
def test_a_tokenizer_that_multiplies_texts_is_refused(model_folder, tmp_path, part, value):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {part: value}))
    with pytest.raises(InputError, match=f"a {part} of .* that makes texts .* times as long"):
        load_tokenizer(folder)


@pytest.mark.parametrize("place", ["added_tokens", "vocab", "end_of_word_suffix"])
def test_a_token_longer_than_any_is_refused(model_folder, tmp_path, place):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    if place == "added_tokens":
        content[place].append({**content[place][-1], "id": 2000, "content": "x" * 10**5})
    elif place == "vocab":
        content["model"][place]["x" * 10**5] = 2000
    else:
        content["model"][place] = "x" * 10**5
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="has a token of 100,000 characters, more than 1024"):
        load_tokenizer(folder)


def test_what_transformers_makes_of_a_file_is_judged_too(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    path = folder / "tokenizer_config.json"
    added = {"9000": {"content": "x" * 10**5, "special": True}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens_decoder": added}))
    with pytest.raises(InputError, match="has a token of 100,000 characters, more than 1024"):
        load_tokenizer(folder)


def test_a_file_s_padding_and_truncation_count_for_nothing(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    plain = load_tokenizer(folder).encode("Hello there")
    content["padding"] = {
        "strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": 10**9,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>",
    }  # fmt: skip
    content["truncation"] = {
        "max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(folder).encode("Hello there") == plain


def test_a_panic_while_decoding_is_one_line(model_folder, tmp_path):
    folder = shutil.copytree(model_folder("llama"), tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["decoder"] = {"type": "Strip", "content": "a", "start": 5, "stop": 10**9}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(folder)
    with pytest.raises(InputError, match=r"cannot join tokens .*give another with --tokenizer"):
        tokenizer.decode([tokenizer.inner.token_to_id("a")])


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

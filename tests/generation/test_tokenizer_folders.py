"""Folders of every form of tokenizer, read as transformers' AutoTokenizer reads them."""

import functools
import importlib.metadata
import itertools
import json
import os
import random
import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

from jaxsr.errors import InputError, UserError
from jaxsr.models.llama import tokenizer as module
from jaxsr.models.llama.tokenizer import load_tokenizer

CORPUS = [
    "Hello world, this is a test of 123 numbers and 4567 more.",
    "naïve café – 東京 🙂 don't can't won't",
    "def f(x):\n    return x + 1\n",
    "  leading spaces and   runs\t\ttabs",
    "user assistant system the quick brown fox",
] * 20
TEXTS = (
    "Hello world", "  two  spaces ", "<s>Hello</s> there <|user|>x<|new|> y", "naïve 東京🙂 don't",
    "1234 5", "a\n\nb\t c", "", "Hello <|user|> <|new|>world </s>",
)  # fmt: skip
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>"]
ALPHABET = pre_tokenizers.ByteLevel.alphabet()
WORDS = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def byte_level(*before):
    made = Tokenizer(models.BPE())
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not before)
    made.pre_tokenizer = pre_tokenizers.Sequence([*before, bytes_])
    made.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=500, special_tokens=SPECIAL, initial_alphabet=ALPHABET)
    made.train_from_iterator(CORPUS, trainer)
    return made


def with_bytes(*, prepends):
    """A SentencePiece BPE with tokens for bytes, as Llama 2's file and as newer ones have it."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    codes = [f"<0x{code:02X}>" for code in range(256)]
    made.train_from_iterator(CORPUS, BpeTrainer(vocab_size=700, special_tokens=SPECIAL[:3] + codes))
    content = json.loads(made.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    made = Tokenizer.from_str(json.dumps(content))
    if prepends:
        made.pre_tokenizer = None
        replace = normalizers.Replace(" ", "▁")
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


def unigram():
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>")
    made.train_from_iterator(CORPUS, trainer)
    return made


def word_piece():
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    made.train_from_iterator(CORPUS, WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL))
    return made


KINDS = {
    "llama3": lambda: byte_level(pre_tokenizers.Split(Regex(WORDS), "isolated")),
    "gpt2": byte_level,
    "digits": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True)),
    "llama2": lambda: with_bytes(prepends=True),
    "gemma": lambda: with_bytes(prepends=False),
    "unigram": unigram,
    "word piece": word_piece,
}
CLASSES = (
    "PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizer", "LlamaTokenizerFast",
    "Qwen2Tokenizer", "GPT2Tokenizer", "GemmaTokenizer", None,
)  # fmt: skip
MODELS = ("llama", "qwen2", "qwen3", "gpt2", "mistral", "gemma", "phi3")
NEW = {"content": "<|new|>", "special": True, "lstrip": False, "rstrip": False}
FIELDS = {
    "plain": {},
    "begins": {"add_bos_token": True},
    "begins with nothing": {"add_bos_token": False},
    "ends": {"add_eos_token": True},
    "prefix": {"add_prefix_space": True},
    "not legacy": {"legacy": False},
    "splits": {"split_special_tokens": True},
    "added": {"added_tokens_decoder": {"900": NEW | {"normalized": False, "single_word": False}}},
    "extra": {"additional_special_tokens": ["<|new|>"]},
    "another end": {"eos_token": "<|im_end|>"},
}
FORMS = [*itertools.product(KINDS, CLASSES, MODELS, FIELDS)]
random.Random(0).shuffle(FORMS)


@functools.cache
def tokenizer_of(kind):
    return KINDS[kind]()


@pytest.fixture
def folder_of(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # nothing of earlier runs

    def make(kind, name, model, fields):
        tokenizer_of(kind).save(str(tmp_path / "tokenizer.json"))
        config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        config |= {"tokenizer_class": name} if name else {}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | FIELDS[fields]))
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
        return tmp_path

    return make


def read_by_transformers(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def same(ours, theirs):
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        plain = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, raw=False) == plain, text
        assert ours.decode(plain) == theirs.backend_tokenizer.decode(plain)


@pytest.mark.sample(12)
@pytest.mark.parametrize(("kind", "name", "model", "fields"), FORMS[:800])
def test_a_folder_is_read_as_transformers_reads_it(kind, name, model, fields, folder_of):
    folder = folder_of(kind, name, model, fields)
    try:
        theirs = read_by_transformers(folder)
    except Exception:  # a class that no such file fits
        pytest.skip("transformers reads it neither")
    same(load_tokenizer(folder), theirs)


@pytest.mark.parametrize("fields", ["plain", "splits", "added"])
def test_what_transformers_makes_is_stored(fields, folder_of, tmp_path, monkeypatch):
    folder = folder_of("llama2", "LlamaTokenizer", "llama", fields)
    stored = tmp_path / "cache" / "jaxsr" / "tokenizers"
    theirs = read_by_transformers(folder)
    same(load_tokenizer(folder), theirs)
    made = module._made_by_transformers
    monkeypatch.setattr(
        module, "_made_by_transformers", lambda *_: pytest.fail("transformers was asked again")
    )
    same(load_tokenizer(folder), theirs)
    monkeypatch.setattr(module, "_made_by_transformers", made)
    (file,) = stored.iterdir()
    file.write_bytes(file.read_bytes().replace(b"tokenizer", b"tokeniser"))
    same(load_tokenizer(folder), theirs)
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{version(name)}.1")
    load_tokenizer(folder)
    assert len([*stored.iterdir()]) == 2  # of another version of transformers
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"add_eos_token": True}))
    same(load_tokenizer(folder), read_by_transformers(folder))
    assert len([*stored.iterdir()]) == 3


def older_folder(folder, tokens):
    """A folder of GPT-2's files of these tokens, without tokenizer.json."""
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(
    "fields",
    [
        {"vocab": "VOCAB", "merges": "MERGES"},
        {"vocab": "VOCAB"},
        {"init_inputs": ["VOCAB", "MERGES"]},
        {"extra": {"vocab": ["VOCAB"]}},
        {"gguf_file": "VOCAB"},
        {"mecab_kwargs": {"mecab_option": "-r VOCAB"}},
        {"fast_tokenizer_files": ["tokenizer.4.0.0/../VOCAB"]},
    ],
)
def test_no_field_opens_a_file_of_another_folder(file, fields, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    other = older_folder(tmp_path / "other", "zyx")
    folder = older_folder(tmp_path / "m", "abc")
    paths = json.dumps(fields).replace("VOCAB", str(other / "vocab.json"))
    fields = json.loads(paths.replace("MERGES", str(other / "merges.txt")))
    contents = {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}}
    contents[file] = contents.get(file, {}) | fields
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    field = next(iter(fields))
    with pytest.raises(InputError, match=f"{file} builds its tokenizer with {field}=") as refusal:
        load_tokenizer(folder)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_places_on_the_maker_s_machine_count_for_nothing(file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    other = older_folder(tmp_path / "other", "cba")
    folder = older_folder(tmp_path / "m", "abc")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    plain = load_tokenizer(folder).encode("abcab")
    places = {"vocab_file": str(other / "vocab.json"), "merges_file": str(other / "merges.txt")}
    places |= {"name_or_path": str(other), "special_tokens_map_file": "/home/x/map.json"}
    content = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    texts = {"unk_token": "</s>", "chat_template": "{{ '/etc/passwd' }}", "errors": "replace"}
    (folder / file).write_text(json.dumps(content | places | texts))
    assert load_tokenizer(folder).encode("abcab") == plain == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("name", [*module._FILES, *module._OLDER, "chat_template.jinja"])
@pytest.mark.parametrize("device", [True, False])
def test_pipes_and_devices_in_a_folder_are_never_opened(name, device, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = older_folder(tmp_path / "m", "abc")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (folder / name).unlink(missing_ok=True)
    if device:
        (folder / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(folder / name)
    try:
        load_tokenizer(folder).encode("abc")
    except UserError as error:
        assert "\n" not in str(error)  # some folders are whole without the file


def test_every_file_of_every_class_is_refused_or_left_out(tmp_path):
    import transformers

    from jaxsr.models.transformers_files import tokenizer_arguments

    sources = (Path(transformers.__file__).parent / "models").rglob("tokenization_*.py")
    texts = [path.read_text() for path in sources]
    tables = [t for text in texts for t in re.findall(r"VOCAB_FILES_NAMES = \{(.*?)\}", text, re.S)]
    fields = {field for table in tables for field in re.findall(r'"(\w+)":', table)}
    assert len(fields) > 10
    for field in fields:
        for value in ("/dev/zero", "outside", ["outside"]):
            try:
                kept = tokenizer_arguments(tmp_path / "tokenizer_config.json", {field: value})
            except InputError:
                continue
            assert json.loads(kept) == {}, field


def test_a_file_is_read_where_the_class_is_code_of_the_folder(folder_of):
    folder = folder_of("gpt2", "OwnTokenizer", "gpt2", "plain")
    plain = [load_tokenizer(folder / "tokenizer.json").encode(text) for text in TEXTS]
    config = folder / "tokenizer_config.json"
    auto_map = {"AutoTokenizer": ["own.OwnTokenizer", None]}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"auto_map": auto_map}))
    (folder / "own.py").write_text("raise SystemExit(3)")
    assert [load_tokenizer(folder).encode(text) for text in TEXTS] == plain

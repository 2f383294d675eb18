"""Tokenizers of GGUF files against those of transformers that they were made from."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import gguf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from jaxsr.errors import InputError
from jaxsr.models.llama.gguf_file import open_gguf
from jaxsr.models.llama.gguf_tokenizer import _SPLITS, stop_ids
from jaxsr.models.llama.tokenizer import load_tokenizer
from tests.generation.conftest import TEXTS

WORDS = ["the", "capital", "of", "France", "is", "Paris", "Hello", "how", "are", "you", "people"]
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def write_tokenizer(path, architecture="llama", **fields):
    """A file of a tokenizer alone; `fields` as in its header."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in fields.items():
        key = "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.add_tensor("t", np.ones(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pieces(*, gemma=False):
    """Texts and scores of a small SentencePiece vocabulary: the pieces of words, best first."""
    texts = ["<unk>", "<s>", "</s>", *BYTES]
    learned = []
    for word in WORDS:
        for end in range(2, len(word) + 1):
            learned.append(word[:end])
        learned += [f"▁{word[:end]}" for end in range(1, len(word) + 1)]
    learned = sorted(dict.fromkeys(learned), key=len)
    letters = sorted(
        {c for text in (*WORDS, *TEXTS) for c in text.replace(" ", "▁") if ord(c) < 127}
    )
    texts += learned + [c for c in [*letters, "▁"] if c not in learned]
    if gemma:
        texts += ["  ", "   "]
    # The converter writes SentencePiece's scores: 0, -1, -2, … in the order of learning.
    scores = [-float(i) for i in range(len(texts))]
    return texts, scores


def types(texts):
    kinds = [3 if t in ("<s>", "</s>") else 2 if t == "<unk>" else 1 for t in texts]
    return [6 if t in BYTES else k for t, k in zip(texts, kinds, strict=True)]


@pytest.mark.parametrize("prefixed", [True, False])
def test_sentencepiece_is_that_of_the_model(prefixed, tmp_path):
    from transformers.tokenization_utils_base import generate_merges

    texts, scores = pieces()
    vocab = {t: i for i, t in enumerate(texts)}
    merges = generate_merges(vocab, dict(zip(texts, scores, strict=True)))
    # The tokenizer.json of Llama 2, Mistral and Phi 3.
    reference = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    space = normalizers.Replace(" ", "▁")
    reference.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), space]) if prefixed else space
    )
    ending = [decoders.Strip(" ", 1, 0)] if prefixed else []
    reference.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ending]
    )
    reference.add_special_tokens(["<s>", "</s>"])
    write_tokenizer(
        tmp_path / "m.gguf", model="llama", tokens=texts, scores=scores, token_type=types(texts),
        bos_token_id=1, eos_token_id=2, unknown_token_id=0, add_space_prefix=prefixed,
    )  # fmt: skip
    tokenizer = load_tokenizer(tmp_path / "m.gguf")
    for text in (*TEXTS, "Hello</s> you", "the people of Paris"):
        ids = reference.encode(text).ids
        assert tokenizer.encode(text, raw=False) == ids
        assert tokenizer.encode(text) == [1, *ids]
        assert tokenizer.decode(ids) == reference.decode(ids)
    assert tokenizer.special == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_a_text_begins_and_ends_as_the_header_says(begins, ends, tmp_path):
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    texts, scores = pieces()
    vocab = {t: i for i, t in enumerate(texts)}
    merges: Any = generate_merges(vocab, dict(zip(texts, scores, strict=True)))
    reference = LlamaTokenizer(vocab, merges, add_bos_token=begins, add_eos_token=ends)
    write_tokenizer(
        tmp_path / "m.gguf", model="llama", tokens=texts, scores=scores, token_type=types(texts),
        bos_token_id=1, eos_token_id=2, unknown_token_id=0, add_bos_token=begins,
        add_eos_token=ends,
    )  # fmt: skip
    tokenizer = load_tokenizer(tmp_path / "m.gguf")
    for text in ("the people", "Hello"):
        assert tokenizer.encode(text) == reference(text)["input_ids"]
        assert tokenizer.encode(text)[-1:] == ([2] if ends else tokenizer.encode(text)[-1:])
        plain = reference(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode(text, raw=False) == plain


def test_every_field_of_the_format_is_known(tmp_path):
    """llama.cpp's converter writes what `gguf` names; a file with all of it is still read."""
    texts, scores = pieces()
    of_lists = {"tokens": texts, "scores": scores, "token_type": types(texts)}
    names = [n for n in vars(gguf.Keys.Tokenizer).values() if str(n).startswith("tokenizer.ggml.")]
    fields: dict[str, Any] = {n.removeprefix("tokenizer.ggml."): 0 for n in names} | of_lists
    fields |= {"model": "llama", "pre": "default", "chat_template": "{{ x }}"}
    del fields["merges"]
    write_tokenizer(tmp_path / "m.gguf", **fields)
    assert load_tokenizer(tmp_path / "m.gguf").encode("the", raw=False)


def test_gemma_stores_runs_of_spaces_and_no_merges(tmp_path):
    from transformers import GemmaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    texts, scores = pieces(gemma=True)
    spelled = [t.replace(" ", "▁") for t in texts]
    vocab = {t: i for i, t in enumerate(spelled)}
    merges: Any = generate_merges(vocab, {t: -i for t, i in vocab.items()})
    reference = GemmaTokenizer(vocab=vocab, merges=merges, unk_token="<unk>", bos_token="<s>",
                               eos_token="</s>", pad_token="<unk>", mask_token="<unk>")  # fmt: skip
    write_tokenizer(
        tmp_path / "m.gguf", "gemma3", model="llama", tokens=texts, scores=scores,
        token_type=types(texts), bos_token_id=1, eos_token_id=2, unknown_token_id=0,
        add_space_prefix=False, add_bos_token=True,
    )  # fmt: skip
    tokenizer = load_tokenizer(tmp_path / "m.gguf")
    for text in (*TEXTS, "the   people  of Paris"):
        ids = reference.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, raw=False) == ids
        assert tokenizer.encode(text) == [1, *ids]


@pytest.mark.parametrize("rule", ["llama-bpe", "qwen2", "tekken", "gpt-4o", "deepseek-v3", "bloom"])
def test_byte_level_splits_by_the_rule_of_the_file(rule, tmp_path):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splits = [pre_tokenizers.Split(Regex(r), "isolated") for r in _SPLITS[rule]]
    inner = Tokenizer(models.BPE(ignore_merges=rule in ("llama-bpe", "tekken")))
    inner.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator([*TEXTS * 3, *WORDS * 3], trainer)
    import json

    learned = json.loads(inner.to_str())["model"]
    texts = sorted(learned["vocab"], key=learned["vocab"].get)
    merges = [" ".join(m) if isinstance(m, list) else m for m in learned["merges"]]
    write_tokenizer(
        tmp_path / "m.gguf", model="gpt2", pre=rule, tokens=texts, merges=merges,
        token_type=[1] * len(texts), add_bos_token=False,
    )  # fmt: skip
    tokenizer = load_tokenizer(tmp_path / "m.gguf")
    for text in TEXTS:
        assert tokenizer.encode(text) == inner.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "rwkv"}, "a tokenizer of kind 'rwkv'"),
        ({"model": "gpt2", "pre": "new", "merges": ["a b"]}, "splits text by the rule 'new'"),
        ({"model": "gpt2", "merges": ["a b"]}, "splits text by the rule 'default'"),
        ({"model": "gpt2", "pre": "gpt-2", "merges": ["a c"]}, "has a damaged tokenizer"),
        ({"model": "gpt2", "pre": "gpt-2", "merges": [1, 2]}, "merges is not a list of texts"),
        ({"model": "gpt2", "pre": "gpt-2", "merges": ["ab"]}, "merges has 'ab', where two texts"),
        ({"model": "llama"}, "has no field 'tokenizer.ggml.scores'"),
        ({"model": "llama", "scores": [0.0]}, "has no score for each of 3 tokens"),
        ({"model": "llama", "scores": [0.0] * 3, "bos_token_id": 7}, "is 7, but there are 3"),
        (
            {"model": "llama", "scores": [0.0] * 3, "token_type": [1] * 9},
            "token_type is not a list",
        ),
        ({"model": "llama", "scores": [0.0] * 3, "chat_template": 3}, "that is not text"),
        ({"model": "llama", "suppress_tokens": [1]}, r"tokenizer.ggml.suppress_tokens = \[1\] is"),
        (
            {"model": "llama", "scores": [0.0] * 3, "add_eos_token": True},
            "add_eos_token is True, but there is no eos_token_id",
        ),
    ],
)
def test_what_cannot_be_read_is_named_with_a_workaround(fields, message, tmp_path):
    write_tokenizer(tmp_path / "m.gguf", tokens=["a", "b", "ab"], **fields)
    with pytest.raises(InputError, match=message) as refusal:
        load_tokenizer(tmp_path / "m.gguf")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        (["a", "</s>", "<|im_end|>"], (1, 2)),
        (["a", "</s>", "<|end|>", "<|eot_id|>"], (1, 3, 2)),
        (["a", "</s>", "<|end|>", "<|return|>", "<|call|>"], (1, 3, 4)),
        (["<end_of_turn>", "</s>", "b"], (1, 0)),
    ],
)
def test_outputs_end_at_the_tokens_that_llama_cpp_knows(tmp_path, texts, ends):
    fields: dict[str, Any] = {"tokens": texts, "token_type": [3] * len(texts), "eos_token_id": 1}
    write_tokenizer(tmp_path / "m.gguf", **fields)
    assert stop_ids(open_gguf(tmp_path / "m.gguf")) == ends
    write_tokenizer(tmp_path / "more.gguf", **fields, eos_token_ids=[1, 0], fim_pad_token_id=0)
    assert stop_ids(open_gguf(tmp_path / "more.gguf")) == tuple(dict.fromkeys((1, 0, *ends)))
    write_tokenizer(tmp_path / "bad.gguf", **fields, eot_token_id="end")
    with pytest.raises(InputError, match=r"eot_token_id is 'end', but there are \d tokens"):
        stop_ids(open_gguf(tmp_path / "bad.gguf"))
    fields["token_type"] = [1] * len(texts)
    write_tokenizer(tmp_path / "plain.gguf", **fields)
    assert stop_ids(open_gguf(tmp_path / "plain.gguf")) == (1,)

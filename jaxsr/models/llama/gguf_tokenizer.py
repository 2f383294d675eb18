"""The tokenizer in a GGUF file: SentencePiece's BPE with scores, or byte-level BPE with merges.

A file names the rule by which text is split before byte-level BPE; the rules are those of
https://github.com/ggml-org/llama.cpp (src/llama-vocab.cpp) and of the models' own tokenizer.json.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxsr.errors import InputError
from jaxsr.models.llama.gguf_file import GGUFFile

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _WORDS + r"\p{N}{1,3}" + _REST
_QWEN2 = _WORDS + r"\p{N}" + _REST
_TEKKEN = _LOWER + "|" + _UPPER + r"|\p{N}" + _SYMBOLS
_GPT4O = _LOWER + _ENDING + "|" + _UPPER + _ENDING + r"|\p{N}{1,3}" + _SYMBOLS
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

_LLAMA3_NAMES = (
    "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "dbrx", "smaug-bpe", "chatglm-bpe", "glm4",
)  # fmt: skip
_SPLITS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(_LLAMA3_NAMES, (_LLAMA3,)),
    **dict.fromkeys(
        ("qwen2", "stablelm2", "deepseek-r1-qwen", "kormo", "megrez", "hunyuan"), (_QWEN2,)
    ),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), (_GPT4O,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), (_BLOOM,)),
}
_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_PLAIN = ("gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "mellum", "trillion")
_WITHOUT_MERGES = (*_LLAMA3_NAMES[:4], "tekken")
"""Rules whose models take a word as it is where it is a token."""
_CONTROL, _USER_DEFINED = _ADDED = 3, 4
_SPACE = "▁"
_STOPS = (
    "eos_token_id", "eos_token_ids", "eot_token_id", "eom_token_id", "fim_pad_token_id",
    "fim_rep_token_id", "fim_sep_token_id",
)  # fmt: skip
_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}


_FRONT = "tokenizer.ggml."
_FIELDS = frozenset(
    {
        *_IDS.values(), *_STOPS, "add_bos_token", "add_eos_token", "add_space_prefix", "merges",
        "model", "pre", "scores", "token_type", "tokens",
        # llama.cpp uses these for other tokenizers and for filling in the middle alone, or never.
        "add_mask_token", "add_padding_token", "add_sep_token", "add_unknown_token",
        "added_tokens", "cls_token_id", "fim_mid_token_id", "fim_pre_token_id",
        "fim_suf_token_id", "mask_token_id", "middle_token_id", "precompiled_charsmap",
        "prefix_token_id", "remove_extra_whitespaces", "seperator_token_id", "suffix_token_id",
        "token_type_count",
    }
)  # fmt: skip
"""Fields that are read, or change nothing here."""


def build(file: GGUFFile) -> Any:
    """The `tokenizers.Tokenizer`, with the tokens that a text begins and ends with.

    Raises:
      InputError: the tokenizer is of another kind, has a field that is not read, or is damaged.
    """
    from tokenizers import processors

    kind = file.need("tokenizer.ggml.model")
    kinds = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _sentencepiece}
    if kind not in kinds:
        raise InputError(
            f"{file.path} has a tokenizer of kind {kind!r:.40}; byte-level BPE ('gpt2') and "
            "SentencePiece ('llama') are read. Give the model's tokenizer.json with --tokenizer"
        )
    for name, value in file.fields.items():
        if name.startswith(_FRONT) and name.removeprefix(_FRONT) not in _FIELDS:
            raise InputError(
                f"{file.path}: the field {name:.80} = {value!r:.60} is not understood; give the "
                "model's tokenizer.json with --tokenizer"
            )
    texts = _texts(file, "tokens")
    try:
        inner = kinds[kind](file, texts)
        _add_tokens(inner, file, texts)
    except InputError:
        raise
    except Exception as error:  # tokenizers raises bare Exception
        raise InputError(
            f"{file.path} has a damaged tokenizer ({str(error).splitlines()[0]:.200}); give "
            "the model's tokenizer.json with --tokenizer"
        ) from error
    added = dict(_added(file, kind, len(texts)))
    around = [name for name in ("bos", "$A", "eos") if name in added or name == "$A"]
    inner.post_processor = processors.TemplateProcessing(
        single=" ".join(around), special_tokens=[*added.items()]
    )
    return inner


def _added(file: GGUFFile, kind: Any, count: int) -> Iterator[tuple[str, int]]:
    """The tokens that a text begins and ends with."""
    split = file.fields.get("tokenizer.ggml.pre")
    begins = kind == "llama" or (kind == "gpt2" and split in _WITHOUT_MERGES)
    for name, usual in (("bos", begins), ("eos", False)):
        stated = file.fields.get(f"tokenizer.ggml.add_{name}_token")
        index = _token_id(file, f"{name}_token_id", count)
        if stated and index is None:
            raise InputError(
                f"{file.path}: tokenizer.ggml.add_{name}_token is {stated!r:.40}, but there is no "
                f"{name}_token_id; give the model's tokenizer.json with --tokenizer"
            )
        if index is not None and (usual if stated is None else stated):
            yield name, index


def special_tokens(file: GGUFFile) -> dict[str, str]:
    """Texts of the special tokens that the header names, as chat templates call them."""
    texts = _texts(file, "tokens")
    ids = {name: _token_id(file, key, len(texts)) for name, key in _IDS.items()}
    return {name: texts[index] for name, index in ids.items() if index is not None}


def stop_ids(file: GGUFFile) -> tuple[int, ...]:
    """Tokens that end an output: those that the header names, and those that llama.cpp knows by
    their texts, for many a header names one that its chat template never writes.
    """
    texts, kinds = (file.fields.get(f"tokenizer.ggml.{n}") for n in ("tokens", "token_type"))
    count = len(texts) if isinstance(texts, list) else 2**31
    ids = []
    for name in _STOPS:
        stated = file.fields.get(f"{_FRONT}{name}")
        values = stated if isinstance(stated, list) else [stated]
        ids += [_checked_id(file, name, value, count) for value in values]
    if isinstance(texts, list) and isinstance(kinds, list):
        special = {t: i for i, (t, k) in enumerate(zip(texts, kinds, strict=False)) if k in _ADDED}
        ends = _TOOL_ENDS if special.keys() >= {*_TOOL_ENDS} else (*_ENDS, *_TOOL_ENDS)
        ids += [special.get(text) for text in ends]
    return tuple(dict.fromkeys(i for i in ids if i is not None))


_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>",
    "_<EOT>", "<|end_of_text|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
_TOOL_ENDS = ("<|return|>", "<|call|>")
"""Ends of gpt-oss, whose `<|end|>` ends a part of an answer."""


def _texts(file: GGUFFile, name: str) -> list[str]:
    texts = file.need(f"tokenizer.ggml.{name}")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"{file.path}: tokenizer.ggml.{name} is not a list of texts; fetch it again"
        )
    if texts and (longest := max(map(len, texts))) > LONGEST_TOKEN:
        raise InputError(
            f"{file.path}: tokenizer.ggml.{name} has a text of {longest:,} characters, more than "
            f"{LONGEST_TOKEN}; give the model's tokenizer.json with --tokenizer"
        )
    return texts


LONGEST_TOKEN = 1024
"""Characters, more than in any vocabulary: joining tokens is tried at each of them."""


def _token_id(file: GGUFFile, name: str, count: int) -> int | None:
    return _checked_id(file, name, file.fields.get(f"{_FRONT}{name}"), count)


def _checked_id(file: GGUFFile, name: str, value: Any, count: int) -> int | None:
    if value is not None and not (type(value) is int and 0 <= value < count):
        raise InputError(
            f"{file.path}: tokenizer.ggml.{name} is {value!r:.40}, but there are {count} tokens; "
            "give the model's tokenizer.json with --tokenizer"
        )
    return value


def _merges(file: GGUFFile) -> list[tuple[str, str]]:
    pairs = [merge.partition(" ") for merge in _texts(file, "merges")]
    if single := next((first for first, space, _ in pairs if not space), None):
        raise InputError(
            f"{file.path}: tokenizer.ggml.merges has {single!r:.40}, where two texts are merged; "
            "give the model's tokenizer.json with --tokenizer"
        )
    return [(first, second) for first, _, second in pairs]


def _byte_level(file: GGUFFile, texts: Sequence[str]) -> Any:
    import tokenizers
    from tokenizers import decoders, models

    name = file.fields.get("tokenizer.ggml.pre", "default")
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(texts)},
            merges=_merges(file),
            fuse_unk=False,
            ignore_merges=name in _WITHOUT_MERGES,
        )
    )
    inner.pre_tokenizer = _splitter(file, name)
    inner.decoder = decoders.ByteLevel()
    return inner


def _splitter(file: GGUFFile, name: Any) -> Any:
    from tokenizers import Regex, pre_tokenizers

    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    if name in _SPLITS:
        splits = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in _SPLITS[name]]
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, bytes_only])
    if name == "falcon":
        threes = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
        return pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), plain, threes])
    if name in _PLAIN:
        return plain
    raise InputError(
        f"{file.path} splits text by the rule {name!r:.60}, which is not known here; "
        "give the model's tokenizer.json with --tokenizer"
    )


def _sentencepiece(file: GGUFFile, texts: Sequence[str]) -> Any:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    architecture = str(file.fields.get("general.architecture"))
    gemma = architecture.startswith("gemma")
    if gemma:  # a run of spaces is stored as spaces
        texts = [_SPACE * len(t) if " " in t and not t.strip(" ") else t for t in texts]
    vocab = {text: index for index, text in enumerate(texts)}
    if "tokenizer.ggml.merges" in file.fields:
        merges = _merges(file)
    else:
        merges = _merges_by_score(file, vocab, by_place=gemma)
    unknown = _token_id(file, "unknown_token_id", len(texts))
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges,
            unk_token=None if unknown is None else texts[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    space = normalizers.Replace(" ", _SPACE)
    prefixed = file.fields.get("tokenizer.ggml.add_space_prefix", not gemma)
    if gemma:
        inner.normalizer = space
        inner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        inner.normalizer = (
            normalizers.Sequence([normalizers.Prepend(_SPACE), space]) if prefixed else space
        )
    if prefixed:
        decoding.append(decoders.Strip(" ", 1, 0))
    inner.decoder = decoders.Sequence(decoding)
    return inner


def _merges_by_score(
    file: GGUFFile, vocab: Mapping[str, int], *, by_place: bool
) -> list[tuple[str, str]]:
    """Pairs of tokens that make a token, the best first.

    SentencePiece joins the pair whose token scores highest. Gemma's scores do not follow the order
    of its merges, its tokens do.
    """
    scores = file.need("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) < len(vocab):
        raise InputError(
            f"{file.path}: tokenizer.ggml.scores has no score for each of {len(vocab)} tokens; "
            "give the model's tokenizer.json with --tokenizer"
        )
    pairs = []
    for text, index in vocab.items():
        score = -index if by_place else scores[index]
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in vocab and right in vocab:
                pairs.append((-score, vocab[left], vocab[right], left, right))
    return [(left, right) for *_, left, right in sorted(pairs)]


def _add_tokens(inner: Any, file: GGUFFile, texts: Sequence[str]) -> None:
    """Control tokens and the user's own, which text is searched for as they are."""
    from tokenizers import AddedToken

    kinds = file.fields.get("tokenizer.ggml.token_type", [])
    if not isinstance(kinds, list) or len(kinds) > len(texts):
        raise InputError(
            f"{file.path}: tokenizer.ggml.token_type is not a list of {len(texts)} numbers; give "
            "the model's tokenizer.json with --tokenizer"
        )
    for number, add in ((_USER_DEFINED, inner.add_tokens), (_CONTROL, inner.add_special_tokens)):
        special = number == _CONTROL
        add(
            [
                AddedToken(text, special=special, normalized=False)
                for text, kind in zip(texts, kinds, strict=False)
                if kind == number
            ]
        )

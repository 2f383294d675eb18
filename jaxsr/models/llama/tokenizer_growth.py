"""How long a tokenizer.json can make a text: a file of kilobytes must not fill the memory."""

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError, counted
from jaxsr.interop.annotations import JsonObject
from jaxsr.models.llama.gguf_tokenizer import LONGEST_TOKEN

_SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")
_MOST_GROWTH = 64
"""Times that a text may become longer; Unicode's decompositions take 18."""
_MOST_PARTS = 1024
"""Steps one after another, of which each may add a character to every token."""


def check_growth(inner: Any, content: JsonObject, source: Path) -> None:
    """Refuses what makes a text of any length of a short one.

    Args:
      inner: the `tokenizers.Tokenizer`, whose parts state their types; a file may leave them out.
      content: of its tokenizer.json.
      source: where it came from.

    Raises:
      InputError: a part, or a token, makes texts too long.
    """
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(inner, name)
        parts = [] if part is None else [*_parts(json.loads(part.__getstate__()))]
        growth = min(math.prod(map(_growth, parts[:_MOST_PARTS])), 2**62)
        if growth > _MOST_GROWTH or len(parts) > _MOST_PARTS:
            raise InputError(
                f"{source} has a {name} of {counted(len(parts), 'part')} that makes texts "
                f"{growth:,} times as long; get it again, or give another with --tokenizer"
            )
    model = content["model"]
    tokens = [token if isinstance(token, str) else token[0] for token in model.get("vocab", ())]
    texts = [*(value for value in model.values() if isinstance(value, str)), *tokens]
    texts += [token["content"] for token in content.get("added_tokens") or ()]
    if (longest := max(map(len, texts), default=0)) > LONGEST_TOKEN:
        raise InputError(
            f"{source} has a token of {longest:,} characters, more than "
            f"{LONGEST_TOKEN}; get it again, or give another with --tokenizer"
        )


def _parts(part: JsonObject) -> Iterator[JsonObject]:
    """The parts of a part of tokenizer.json that follow each other."""
    inner = next((part[name] for name in _SEQUENCES if name in part), None)
    if inner is None:
        yield part
    for each in inner or ():
        yield from _parts(each)


def _growth(part: JsonObject) -> int:
    """How many times as long a part makes a text at most, as tokenizer.json states it."""
    match part:
        case {"type": "TemplateProcessing", "single": list(pieces), "special_tokens": dict(named)}:
            names = [p["SpecialToken"]["id"] for p in pieces if "SpecialToken" in p]
            ids = sum(len(named[name]["ids"]) for name in names)
            return max(1, len(pieces) - len(names) + ids)
        case {"type": "Precompiled", "precompiled_charsmap": str(text)}:
            content = base64.b64decode(text)
            replacements = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
            return max(1, max(map(len, replacements)) // 64)  # the longest of NFKC has 33 bytes
        case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(content)} if text:
            return max(1, -(-len(content) // len(text)))
        # An expression, or an empty text, may match between any two characters.
        case {"type": "Replace" | "Prepend"}:
            return 1 + len(str(part.get("content", part.get("prepend", ""))))
        case {"type": "BPEDecoder", "suffix": ""} | {"type": "CTC", "word_delimiter_token": ""}:
            return 2
        case {"type": "ByteLevel" | "BertNormalizer"}:
            return 2
    return 1

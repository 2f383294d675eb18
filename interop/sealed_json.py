"""JSON texts that carry a digest of themselves, so that damage is noticed when they are read.

A sealed text is one JSON object (NaN as Python writes it). Its first entry is `digest`: the first
16 hexadecimal digits of the SHA-256 of everything behind that entry.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.errors import DamagedFileError

DIGITS = 16
"""Hexadecimal digits of a digest: 64 bits, enough against accidents."""

_HEAD = '{"digest": "'
_BODY = len(_HEAD) + DIGITS + len('",')


def short_digest(content: bytes | memoryview) -> str:
    """The first `DIGITS` digits of the content's SHA-256."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def seal(
    content: Mapping[str, Any], *, indent: int | None = None, ensure_ascii: bool = True
) -> str:
    """The content as a sealed text of one JSON object.

    Args:
      content: values that JSON has; at least one entry; the name `digest` is not allowed.
      indent: spaces per level. Default: everything on one line.
      ensure_ascii: write other characters as escapes.
    """
    body = json.dumps(content, indent=indent, ensure_ascii=ensure_ascii)[1:]
    body = body if indent else f" {body}"
    return f'{_HEAD}{short_digest(body.encode())}",{body}'


def begins_sealed(content: bytes) -> bool:
    """Whether this is the beginning of a sealed text, be it a few bytes."""
    return content.startswith(_HEAD.encode()) or _HEAD.encode().startswith(content)


def unseal(content: bytes, *, source: Path | str) -> JsonObject:
    """The entries of a sealed text; space around it does not count.

    Raises:
      DamagedFileError: the text is not as `seal` made it.
    """
    try:
        text = content.decode().strip()
        digest = text[len(_HEAD) : len(_HEAD) + DIGITS]
        body = text[_BODY:]
        if f'{_HEAD}{digest}",{body}' == text and short_digest(body.encode()) == digest:
            values = json.loads(text)
            del values["digest"]
            return values
    except (ValueError, KeyError, RecursionError):
        pass
    raise DamagedFileError(
        f"{source} is damaged: its content ({len(content)} bytes) does not agree with the digest "
        "in it; restore it from a copy"
    )

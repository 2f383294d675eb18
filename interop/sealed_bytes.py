"""Files of bytes that carry a digest of themselves: damage is noticed when they are read."""

import hashlib
import logging
from pathlib import Path

from jaxsr.interop.atomic_write import atomic_write

_DIGEST_BYTES = 32

_LOG = logging.getLogger(__name__)


def read_sealed(path: Path) -> bytes | None:
    """The content, or None if there is no file or, with a warning, if it is damaged."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        _LOG.warning("%s is damaged and will be made anew", path)
        return None
    return body


def write_sealed(path: Path, content: bytes) -> None:
    """Writes the file and its folder; where that fails, it only warns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, hashlib.sha256(content).digest(), content)
    except OSError as error:
        _LOG.warning("%s is not kept: %s", path.name, error)

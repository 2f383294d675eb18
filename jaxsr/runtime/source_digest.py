"""Distinguishes edited copies of one version of jaxsr."""

import functools
import hashlib
import importlib.util
from pathlib import Path


@functools.cache
def source_digest(*packages: str) -> str:
    """SHA-256 of the Python files of packages, including subpackages; 64 hexadecimal digits.

    Args:
      packages: names of installed packages; their `__init__` is imported.
    """
    digest = hashlib.sha256()
    for package in packages:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        home = Path(spec.origin).parent
        for path in sorted(home.rglob("*.py")):
            digest.update(path.relative_to(home).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()

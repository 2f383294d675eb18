"""Where jaxsr keeps files on this machine."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Folder for files that can be made again: `$XDG_CACHE_HOME/jaxsr` or `~/.cache/jaxsr`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "jaxsr"

"""Texts of errors, as rows of results keep them."""

import re
import sys

NEEDS_X64 = re.compile(r"x64 (mode )?is off")
"""In the refusal of what runs in JAX's x64 mode."""


def without_folders(text: str) -> str:
    """Messages name files; results say nothing of the machine's folders."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return re.sub(r"/\S*/(?:site-packages/|tmp\w+/(?=[\w.-]+/config\.json))", "", text)

"""The documentation: `pip install -e '.[docs]' && sphinx-build -W docs build/docs`."""

import re
import sys
from pathlib import Path
from typing import Any

import jaxsr

sys.path.insert(0, str(Path(__file__).parent))

from generated_pages import write_commands, write_ops

project = "jaxsr"
author = "the jaxsr authors"
version = release = jaxsr.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["figures"]
html_theme = "furo"
html_title = "jaxsr"

myst_heading_anchors = 3
# Links to files of the repository, which are not pages of the site.
suppress_warnings = ["myst.xref_missing"]

# jaxtyping's shapes stay as written.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "code"  # docstrings are Markdown-like: `name` is code


def setup(app: Any) -> None:
    """Writes pages before Sphinx looks for them; keeps texts and types of docstrings readable."""
    pages = Path(__file__).parent / "generated"
    write_commands(pages)
    write_ops(pages)
    attributes: dict[str, list[str]] = {}

    # Napoleon would take what stands before a colon in an attribute's text for its type.
    def keep(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        if what in ("attribute", "data", "property"):
            attributes[name] = lines[:]

    def restore(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        lines[:] = attributes.pop(name, lines)

    app.connect("autodoc-process-docstring", keep, priority=100)
    app.connect("autodoc-process-docstring", restore, priority=900)

    def short(app: Any, what: str, name: str, obj: Any, options: Any, *signature: Any) -> Any:
        return tuple(
            text and re.sub(r"(jax\.)?jaxlib\._jax\.Array", "Array", text) for text in signature
        )

    app.connect("autodoc-process-signature", short)

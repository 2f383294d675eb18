"""The documentation: `pip install -e '.[docs]' && sphinx-build -W docs build/docs`."""

import re
import sys
from pathlib import Path
from typing import Any

import jaxsr
from jaxsr.interop.install import REPOSITORY

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
smartquotes_action = "qe"  # dashes are those of options
html_theme = "furo"
html_title = "jaxsr"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]

myst_heading_anchors = 3
# Links to files of the repository, which are not pages of the site.
suppress_warnings = ["myst.xref_missing"]

# jaxtyping's shapes stay as written.
add_module_names = False  # the modules are private: pages name the public ones
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
viewcode_follow_imported_members = False
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
        if lines and lines[0].startswith("Alias for field number"):  # Python's, not ours
            lines.clear()

    app.connect("autodoc-process-docstring", keep, priority=100)
    app.connect("autodoc-process-docstring", restore, priority=900)

    def mend(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
        body = re.sub(r"(jax\.)?jaxlib\._jax\.Array", "Array", context.get("body", ""))
        # Signatures with a factory are not parsed: their types keep Sphinx's "~module.".
        body = re.sub(r"~(?:[A-Za-z_]\w*\.)*(?=[A-Za-z_])", "", body)
        body = body.replace("&lt;factory&gt;", "…")
        body = f'<div class="page-{page.partition("/")[0]}">{body}</div>'  # for static/site.css
        context["body"] = re.sub(r'href="#((?:\.\./)?[\w/.-]+)"', repository_link, body)

    app.connect("html-page-context", mend)


PAGES = {"ARCHITECTURE.md": "architecture", "CHANGELOG.md": "changelog"}


def repository_link(match: re.Match[str]) -> str:
    """Sphinx makes an anchor of a link to a file that is not a page: a page, or the repository."""
    target = match[1].removeprefix("../")
    if not (Path(__file__).parents[1] / target).exists():
        return match[0]
    page = PAGES.get(target)
    return f'href="{page}.html"' if page else f'href="{REPOSITORY}/blob/main/{target}"'

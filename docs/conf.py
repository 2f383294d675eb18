"""The documentation: `pip install -e '.[docs]' && sphinx-build -W docs build/docs`."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jaxsr

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


COMMANDS = ("train", "restore", "evaluate", "detect", "generate", "check", "compare", "doctor")


def write_help(app: Any) -> None:
    """Writes every command's `--help` where `api/commands.md` includes it."""
    del app
    folder = Path(__file__).parent / "api" / "help"
    folder.mkdir(exist_ok=True)
    for command in COMMANDS:
        program = [sys.executable, "-m", f"jaxsr.{command}", "--help"]
        help_text = subprocess.run(program, capture_output=True, text=True, check=True).stdout
        (folder / f"{command}.txt").write_text(help_text)


def setup(app: Any) -> None:
    app.connect("builder-inited", write_help)

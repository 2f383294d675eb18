"""How to install a missing library on this machine, by how jaxsr itself was installed."""

import importlib.metadata
from pathlib import Path

DISTRIBUTION = "jaxsr-torchax"
"""The distribution's name; it is not on PyPI, where `jaxsr` is an unrelated package."""
REPOSITORY = "https://github.com/OWNER/jaxsr"
"""The repository's address. OWNER is a placeholder: the project has no public home yet."""

_ROOT = Path(__file__).resolve().parents[1]  # of a checkout


def install_extra(extra: str | None) -> str:
    """The command that installs an extra of pyproject.toml, or with None all that jaxsr needs.

    In a checkout that is `pip install -e '.[EXTRA]'`. A wheel has no checkout, so that pip is given
    the libraries' names.
    """
    if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "interop").is_dir():
        where = "." if Path.cwd() == _ROOT else str(_ROOT)
        return f"pip install -e {where}" if extra is None else f"pip install -e '{where}[{extra}]'"
    if extra is None:
        return f"install {DISTRIBUTION} again, without --no-deps"
    return f"pip install {' '.join(_libraries(extra))}"


def _libraries(extra: str) -> list[str]:
    """The libraries of an extra, quoted for a shell."""
    from packaging.requirements import Requirement

    parsed = [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or []]
    needed = [r for r in parsed if r.marker is not None and not r.marker.evaluate({"extra": ""})]
    return [
        f"'{str(r).partition(';')[0].strip()}'"
        for r in needed
        if r.marker is not None and r.marker.evaluate({"extra": extra})
    ]

"""The site builds without a warning, and its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_no_link_of_the_site_is_dead(tmp_path):
    pytest.importorskip("sphinx", reason="sphinx is not installed: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "sphinx", "-q", "--fail-on-warning", "docs", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT)
    texts = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    anchors = {path: set(re.findall(r'id="([^"]+)"', text)) for path, text in texts.items()}
    dead = []
    for path, text in texts.items():
        for link in re.findall(r'href="([^"]+)"', text):
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            missing = unquote(parts.fragment) not in anchors.get(target, set())
            if not target.exists() or (parts.fragment and target in anchors and missing):
                dead.append((str(path.relative_to(tmp_path)), link))
    assert not dead
    assert not any(
        "jaxlib._jax" in text for path, text in texts.items() if "_modules" not in str(path)
    )


def test_the_page_of_variables_lists_those_that_the_code_reads():
    files = (path for name in ("jaxsr", "interop", "ops") for path in (ROOT / name).rglob("*.py"))
    read = {name for path in files for name in re.findall(r"JAXSR_[A-Z_]+", path.read_text())}
    page = (ROOT / "docs" / "variables.md").read_text()
    assert read == set(re.findall(r"JAXSR_[A-Z_]+", page))

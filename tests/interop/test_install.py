"""Advice on missing libraries works where it is read: in a checkout, and beside a wheel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsr.interop import install

ROOT = Path(__file__).resolve().parents[2]


def test_a_checkout_is_named_by_its_path(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert install.install_extra("video") == "pip install -e '.[video]'"
    assert install.install_extra(None) == "pip install -e ."
    monkeypatch.chdir(tmp_path)
    assert install.install_extra("video") == f"pip install -e '{ROOT}[video]'"


def test_without_a_checkout_the_libraries_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(install, "_ROOT", tmp_path)
    stated = ["numpy>=2", "av>=18.1; extra == 'video'", "jax[tpu]<0.12,>=0.10; extra == 'tpu'"]
    monkeypatch.setattr(install.importlib.metadata, "requires", lambda name: stated)
    assert install.install_extra("video") == "pip install 'av>=18.1'"
    assert install.install_extra("tpu") == "pip install 'jax[tpu]<0.12,>=0.10'"
    assert install.install_extra(None) == "install jaxsr-torchax again, without --no-deps"


def test_one_place_says_how_to_install():
    for folder in ("jaxsr", "interop", "ops"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            assert path.name == "install.py" or "pip install -e" not in text, path
            assert "jaxsr-torchax[" not in text, path
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert "install jaxsr-torchax" not in path.read_text().replace("'", ""), path


@pytest.mark.parametrize("command", ["doctor", "restore", "train", "generate"])
def test_a_missing_library_is_one_line(command):
    code = (
        "import sys; sys.modules['tyro'] = None; sys.modules['jaxtyping'] = None; "
        f"sys.argv = ['jaxsr', {command!r}, '--help']; "
        "from jaxsr.__main__ import program; program()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"JAXSR_ACTIVITY": "0"},
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and "not installed; pip install -e" in line, done.stderr


def test_the_repository_has_one_address():
    for name in ("examples/colab.ipynb", "examples/launch/tpu_slice.sh"):
        assert install.REPOSITORY in (ROOT / name).read_text()

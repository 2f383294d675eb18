"""Help and mistyped words load neither torch nor JAX: they are answered at once."""

import subprocess
import sys

import pytest

HELP = [
    "restore", "detect", "evaluate", "generate", "check", "doctor",
    "train", "train span", "train super-resolution", "train mshnet", "train detection",
    "train fast-srgan",
    "compare", "compare ops", "compare trace", "compare traces", "compare engines",
]  # fmt: skip
FRAMEWORKS = {"torch", "jax", "jaxlib", "transformers", "flax", "cv2", "scipy"}


def answered(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs the command of these words, which must load no framework."""
    code = (
        f"import sys; from importlib import import_module; "
        f"status = import_module('jaxsr.{words[0]}').main({words[1:]!r}); "
        f"loaded = {FRAMEWORKS!r} & set(sys.modules); assert not loaded, loaded; sys.exit(status)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", HELP)
def test_help_loads_no_framework(command):
    done = answered([*command.split(), "--help"])
    assert done.returncode == 0, done.stderr
    assert "usage: python -m jaxsr." in done.stdout


@pytest.mark.parametrize("command", HELP)
def test_a_mistyped_word_loads_no_framework(command):
    done = answered([*command.split(), "--mispelt"])
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("jaxsr: ")

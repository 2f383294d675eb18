"""Help and mistyped words load neither torch nor JAX: they are answered at once."""

import os
import subprocess
import sys
from dataclasses import fields

import pytest

from jaxsr.runtime.help_page import field_texts
from jaxsr.training.find_task import TASKS, find_options

HELP = [
    "restore", "detect", "evaluate", "generate", "check", "export", "doctor",
    "train", "train span", "train super-resolution", "train mshnet", "train detection",
    "train fast-srgan",
    "compare", "compare ops", "compare trace", "compare traces", "compare engines",
]  # fmt: skip
FRAMEWORKS = {"torch", "jax", "jaxlib", "transformers", "flax", "cv2", "scipy", "numpy", "PIL"}


def answered(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs the command of these words, which must load no framework."""
    code = (
        f"import sys; from importlib import import_module; "
        f"status = import_module('jaxsr.{words[0]}').main({words[1:]!r}); "
        f"loaded = {FRAMEWORKS!r} & set(sys.modules); assert not loaded, loaded; sys.exit(status)"
    )
    environment = os.environ | {"COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize("command", HELP)
def test_help_loads_no_framework(command):
    done = answered([*command.split(), "--help"])
    assert done.returncode == 0, done.stderr
    assert "usage: python -m jaxsr." in done.stdout
    for empty in ("(default: None)", "(default: '')", "(default: )"):
        assert empty not in done.stdout
    assert "helptext" not in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout


@pytest.mark.parametrize("command", HELP)
def test_a_mistyped_word_loads_no_framework(command):
    done = answered([*command.split(), "--mispelt"])
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("jaxsr: ")


def test_help_of_training_names_every_task_and_groups_the_options():
    text = answered(["train", "--help"]).stdout
    words = " ".join(text.split())
    for word in ("fast-srgan", "span", "mshnet", "super-resolution", "detection", "module:Class"):
        assert word in words
    titles = ["options", "preset", "model", "data", "optimisation", "device", "output"]
    places = [text.index(f"╭─ {title} ") for title in titles]
    assert places == sorted(places)
    assert places[0] < text.index("--crop ") < text.index("--batch ") < places[1]
    assert places[1] < text.index("--preset STR") < text.index("--config PATH") < places[2]
    assert text.index("╭─ optimisation ") < text.index("--milestones ") < text.index("╭─ device ")
    assert "--network STR" in answered(["train", "super-resolution", "--help"]).stdout


def test_every_option_has_a_sentence_as_one_paragraph():
    for name in TASKS:
        kind = find_options(name).Config
        texts = field_texts(kind)
        for field in fields(kind):
            assert texts[field.name].endswith("."), field.name
            assert "\n" not in texts[field.name]

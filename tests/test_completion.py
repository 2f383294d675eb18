"""The script of `jaxsr --completion` in real shells."""

import shutil
import subprocess

import pytest

from jaxsr.__main__ import COMMANDS
from jaxsr.runtime.completion import completion_script
from jaxsr.training.find_task import TASKS, find_options

ASK = """
ask() {
  [ -n "$ZSH_VERSION" ] && emulate -L sh  # as bashcompinit calls a function
  COMP_CWORD=$(($# - 1)); COMPREPLY=(); COMP_WORDS=("$@"); _jaxsr; echo "${COMPREPLY[@]}"
}
"""


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("jaxsr ''", " ".join(COMMANDS)),
        ("jaxsr tr", "train"),
        ("jaxsr train s", "span super-resolution"),
        ("jaxsr train --adv", "--adversarial-share --adversarial-steps"),
        ("jaxsr train mshnet --warm", "--warmup-steps --warmup-epochs"),
        ("jaxsr train span --pre", "--preset"),
        ("jaxsr train span --model.blo", "--model.block"),
        ("jaxsr compare tra", "trace traces"),
        ("jaxsr compare traces --o", "--out"),
        ("jaxsr restore --engine ''", "jax torch"),
        ("jaxsr restore --format ''", "png jpeg webp tiff"),
        ("jaxsr export --format ''", "stablehlo onnx"),
        ("jaxsr restore --dtype ''", "float32 bfloat16"),
        ("jaxsr train --dtype ''", "float32 bfloat16"),
        ("jaxsr train --preset qu", ""),
        ("jaxsr train span --lr 1 --schedule co", "constant cosine"),
        ("jaxsr restore photo", ""),
    ],
)
def test_words_are_completed(shell, words, offered):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    flags = ["-f"] if shell == "zsh" else ["--norc"]
    tasks = {task: find_options(task).Config for task in TASKS}
    script = f"{completion_script(COMMANDS, tasks)}{ASK}ask {words}"
    done = subprocess.run([shell, *flags, "-c", script], capture_output=True, text=True, check=True)
    found = done.stdout.split()
    if shell == "zsh":  # whose own completion leaves out what does not begin as the word
        word = words.rpartition(" ")[2].strip("'")
        found = [name for name in found if name.startswith(word)]
    assert sorted(found) == sorted(offered.split())
    assert done.stderr == ""

"""The first blocks of two tutorials run one after another in an empty folder."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def first_blocks(page: str) -> tuple[str, list[str]]:
    """Returns the page's first Python block and the commands of its first shell block."""
    text = (DOCS / page).read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[0].replace("\\\n", " ")
    return code, [line.partition("  #")[0] for line in commands.splitlines()]


def run(command: str, folder: Path) -> str:
    """Runs a command as a user types it; returns its standard output."""
    words = ["bash", "-c", command.replace("python", sys.executable, 1)]
    done = subprocess.run(words, check=False, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.md", "ops.md"])
def test_the_code_of_a_page_runs_in_order(page):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    names: dict = {}
    for code in blocks:
        exec(compile(code, page, "exec"), names)
    assert blocks and (page != "ops.md" or names["batch"].masks.shape == (8, 224, 224, 1))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_task_of_ones_own_trains_resumes_and_helps(tmp_path):
    code, commands = first_blocks("own-task.md")
    (tmp_path / "my_task.py").write_text(code)
    assert len(commands) == 3
    help_page = [run(command, tmp_path) for command in commands][-1]
    assert "--width" in help_page and "Channels of the hidden layer." in help_page
    lines = (tmp_path / "runs" / "mine" / "metrics.jsonl").read_text().splitlines()
    losses = [row["network/loss"] for row in map(json.loads, lines) if "network/loss" in row]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_network_of_ones_own_trains_restores_compares_and_compiles(tmp_path):
    code, commands = first_blocks("own-network.md")
    (tmp_path / "my_nets.py").write_text(code)
    shutil.copy(DOCS / "figures" / "cat.jpg", tmp_path / "photo.jpg")
    assert len(commands) == 4
    for command in commands:
        if "--aot" in command and importlib.util.find_spec("libtpu") is None:
            continue
        training = "jaxsr.train" in command
        run(f"{command} --steps 3 --batch 8 --crop 32" if training else command, tmp_path)
    assert (tmp_path / "better" / "photo.jpg").is_file()

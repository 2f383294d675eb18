"""The first blocks of docs/own-task.md run one after another in an empty folder."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-task.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_pages_task_trains_resumes_and_helps(tmp_path):
    text = PAGE.read_text()
    (tmp_path / "my_task.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[0].splitlines()
    assert len(commands) == 3
    for command in commands:
        words = ["bash", "-c", command.replace("python", sys.executable, 1)]
        run = subprocess.run(words, check=False, cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 0, f"{command}\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
    assert "--width" in run.stdout and "Channels of the hidden layer." in run.stdout
    lines = (tmp_path / "runs" / "mine" / "metrics.jsonl").read_text().splitlines()
    losses = [row["network/loss"] for row in map(json.loads, lines) if "network/loss" in row]
    assert losses[-1] < 0.5 * losses[0]

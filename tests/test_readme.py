"""README's blocks run one after another, as they stand, in a copy of what a clone has."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
INSTALLATION = "python3 -m venv"
"""CI runs these lines itself."""


def shortened(line: str) -> str:
    """The same command, for fewer steps."""
    return re.sub(r"--steps \d+", "--steps 3 --batch 2 --crop 32", line)


def test_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    sections = {part.partition("\n")[0]: part.count("\n") for part in text.split("\n## ")[1:]}
    for title, most in {"Install": 18, "Four doors": 50, "Commands": 12}.items():
        assert sections[title] < most, title


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_blocks_run_in_order(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copytree(ROOT / "docs" / "figures", tmp_path / "docs" / "figures")
    commands = []
    for language, text in BLOCKS:
        if language == "python":
            commands.append([sys.executable, "-c", text])
            continue
        lines = [line for line in text.splitlines() if not line.startswith(INSTALLATION)]
        commands += [["bash", "-c", shortened(line)] for line in lines]
    assert len(commands) >= 9
    for command in commands:
        run = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 0, f"{command[-1]}\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
    assert (tmp_path / "better" / "cat.jpg").is_file()
    assert (tmp_path / "mine" / "cat.jpg").is_file()
    assert (tmp_path / "found" / "overlays" / "infrared.png").is_file()


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text()):
        assert link.startswith("https://") or (ROOT / link).exists(), link

"""`docs/figures/training_run.py`: which steps it draws, and what it refuses."""

import importlib.util
from pathlib import Path

import pytest

from jaxsr.errors import InputError
from jaxsr.interop.sealed_json import seal

PATH = Path(__file__).parents[1] / "docs" / "figures" / "training_run.py"
SPEC = importlib.util.spec_from_file_location("training_run", PATH)
assert SPEC and SPEC.loader
training_run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(training_run)


def test_a_damaged_line_of_a_run_is_not_drawn(tmp_path):
    metrics, out = tmp_path / "metrics.jsonl", tmp_path / "run.png"
    lines = [seal({"step": step, "network/loss": 1 / step}) for step in range(1, 30)]
    lines.append(seal({"step": 29, "validation/iou": 0.5}))
    metrics.write_text("\n".join(lines))
    training_run.plot(training_run.Options(metrics=(metrics,), out=out))
    assert out.read_bytes().startswith(b"\x89PNG")
    lines[1] = lines[1].replace("0.5", "0.4")
    metrics.write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2 is damaged"):
        training_run.plot(training_run.Options(metrics=(metrics,), out=out))


def test_a_branch_takes_the_place_of_the_steps_after_it(tmp_path):
    paths = tmp_path / "run.jsonl", tmp_path / "branch.jsonl"
    for path, steps in zip(paths, ((1, 2, 2, 3, 4), (3, 4, 5)), strict=True):
        path.write_text("\n".join(seal({"step": step, "run": path.stem}) for step in steps))
    rows = [(row["step"], row["run"]) for row in training_run.read_logged_rows(paths)]
    followed = [(1, "run"), (2, "run"), (2, "run")]
    assert rows == followed + [(step, "branch") for step in (3, 4, 5)]

"""A label or an index that is out of range ends the run, in both engines and in one line."""

import sys
from pathlib import Path

import pytest

from jaxsr.train import main

FILE = '''
import numpy as np
from torch import nn
from torch.nn import functional as F

import jaxsr


class Labels(jaxsr.Task):
    """The fifth step, or the validation, has one value that it should not have."""

    class Config(jaxsr.TaskConfig):
        value: int = 7
        where: str = "label"

    def network(self):
        return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 4))

    def loss(self, network, batch):
        out = network(batch["x"])
        if self.config.where == "one_hot":
            return (out - F.one_hot(batch["y"], 4)).square().mean()
        if self.config.where == "divisor":
            return (out[:, 0] - 12 // (batch["y"] - 7)).square().mean()
        return F.cross_entropy(out, batch["y"])

    def train_data(self):
        return lambda step: self.rows(step, step == 4 and self.config.where != "validation")

    def validation_data(self):
        rows = self.rows(0, self.config.where == "validation")
        return [{name: array[i] for name, array in rows.items()} for i in range(8)]

    def rows(self, step, wrong):
        rng = np.random.default_rng(step)
        rows = {"x": rng.integers(0, 10, (8, 3)), "y": rng.integers(0, 4, 8)}
        rows["y"][0] = 0 if self.config.where == "one_hot" else -100  # ignored
        if wrong:
            rows["x" if self.config.where == "token" else "y"][3] = self.config.value
        return {name: array.astype(np.int32) for name, array in rows.items()}
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "labels_task.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("labels_task", None)


def error_of(capsys, *options: str) -> str:
    """The last line of a run that fails, of eight rows a step and a report every third."""
    common = ["--batch", "8", "--steps", "9", "--log-every", "3", "--save-every", "9"]
    assert main(["labels_task:Labels", *common, "--out", "run", *options]) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


slow = pytest.mark.slow
TOKEN, ONE_HOT = ("--where", "token", "--value", "-3"), ("--where", "one_hot")


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ((), "takes indices from 0 to 3 or ignore_index=-100, got 7"),
        (("--engine", "torch"), "takes indices from 0 to 3 or ignore_index=-100, got 7"),
        pytest.param(("--mesh", "2", "--batch-norm", "local"), "got 7", marks=slow),
        pytest.param(("--mesh", "fsdp=2", "--accumulate", "4"), "got 7", marks=slow),
        pytest.param(("--mesh", "2", "--dtype", "bfloat16"), "got 7", marks=slow),
        pytest.param(TOKEN, "takes indices from 0 to 9, got -3", marks=slow),
        pytest.param((*TOKEN, "--engine", "torch"), "to 9, got -3", marks=slow),
        pytest.param(ONE_HOT, "takes indices from 0 to 3, got 7", marks=slow),
        pytest.param((*ONE_HOT, "--engine", "torch"), "0 to 3, got 7", marks=slow),
    ],
)
def test_a_wrong_value_is_named_with_its_step(options, rule, capsys):
    error = error_of(capsys, *options)
    assert "labels_task.py:" in error and rule in error
    assert "at step 5; the state of step 4 is saved. Mend the labels" in error
    assert Path("run/checkpoints/4").exists()
    assert "index" not in Path("run/metrics.jsonl").read_text()


@pytest.mark.parametrize("engine", ["jax", pytest.param("torch", marks=slow)])
def test_in_validation(engine, capsys):
    error = error_of(capsys, "--where", "validation", "--validate-every", "2", "--engine", engine)
    assert "labels_task.py:" in error
    # torch looks at a batch of the validation before training
    assert ("got 7 in the validation of step 2" if engine == "jax" else "Target 7") in error
    assert engine == "torch" or Path("run/checkpoints/2").exists()


@pytest.mark.parametrize("engine", ["jax", pytest.param("torch", marks=slow)])
def test_an_integer_divided_by_zero(engine, capsys):
    error = error_of(capsys, "--where", "divisor", "--engine", engine)
    assert "labels_task.py:" in error and "divides integers by 0 at step 5; the state of" in error

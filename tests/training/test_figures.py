"""Figures of a task's own: not finite, of NumPy's types, missing, or followed by an error."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import jaxsr
from jaxsr.errors import UserError
from jaxsr.training.validation import ValidationResult

ENGINES = ["jax", "torch"]
ROWS = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)


class Regression(jaxsr.Task):
    """Four numbers to their sum."""

    metric = "mae"

    class Config(jaxsr.TaskConfig):
        batch = 8
        steps = 4
        tensorboard = False
        validate_every = 2

    def network(self):
        return nn.Linear(4, 1)

    def loss(self, network, batch):
        return (network(batch["x"]) - batch["y"]).square().mean()

    def train_data(self):
        return {"x": ROWS, "y": ROWS.sum(1, keepdims=True)}


class Recall(Regression):
    metric = "loss"

    def loss(self, network, batch):
        positives = (batch["y"] > 1e9).float()
        return super().loss(network, batch), {"recall": positives.sum() / positives.sum()}


class NumPyFigures(Regression):
    def validate(self, network):
        return ValidationResult({"mae": np.abs(network(ROWS)).mean()})


class OtherFigure(Regression):
    metric = "loss"

    def validate(self, network):
        return ValidationResult({"mae": 0.5})


class Raises(Regression):
    def validate(self, network):
        return ValidationResult({"mae": [0.5][int(torch.tensor(3))]})


class Renamed(Regression):
    metric = "error"

    def validate(self, network):
        return ValidationResult({"error": 1.0})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_figure_that_is_not_finite_is_recorded(tmp_path, engine):
    jaxsr.train(Recall, out=tmp_path / "run", engine=engine)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    recalls = [line["network/recall"] for line in lines if "network/recall" in line]
    assert recalls == ["nan"] * 4


def test_figures_may_be_of_numpys_types(tmp_path):
    run = jaxsr.train(NumPyFigures, out=tmp_path / "run")
    assert run.validation["mae"] > 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("task", "message"),
    [(OtherFigure, r"\(mae\) lack 'loss', .* or let `metric` name"), (Raises, "IndexError")],
)
def test_steps_before_a_validation_that_fails_are_saved(tmp_path, capsys, task, message, engine):
    with pytest.raises(UserError, match=message):
        jaxsr.train(task, out=tmp_path / "run", engine=engine)
    assert "the state of step 2 is saved" in capsys.readouterr().err
    assert Path(tmp_path, "run/checkpoints/2").is_dir()


def test_a_resume_may_rank_by_another_figure(tmp_path, monkeypatch, capsys):
    jaxsr.train(NumPyFigures, out=tmp_path / "run")
    for name in ("metric", "validate"):
        monkeypatch.setattr(NumPyFigures, name, getattr(Renamed, name))
    run = jaxsr.train(NumPyFigures, out=tmp_path / "run", resume=True, steps=8)
    assert run.validation == {"error": 1.0}
    assert "damaged" not in capsys.readouterr().err

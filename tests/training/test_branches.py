"""Branches whose options give optimisers other links than the run that they leave."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import jaxsr

ROWS = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)


class Regression(jaxsr.Task):
    """Four numbers to their sum."""

    class Config(jaxsr.TaskConfig):
        batch = 8
        steps = 4
        optimizer = "adam"
        lr = 1e-2
        tensorboard = False

    def network(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(self, network, batch):
        return (network(batch["x"]) - batch["y"]).square().mean()

    def train_data(self):
        return {"x": ROWS, "y": ROWS.sum(1, keepdims=True)}


def weights_of(out, **options):
    return load_file(jaxsr.train(Regression, out=out, **options).weights)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of four steps without clipping and with, and the weights of one of eight steps."""
    folder = tmp_path_factory.mktemp("runs")
    jaxsr.train(Regression, out=folder / "plain")
    jaxsr.train(Regression, out=folder / "clipped", clip_norm=1e9)
    return folder, weights_of(folder / "whole", steps=8)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", {"clip_norm": 1e9}),
        ("clipped", {}),
        ("plain", {"weight_decay": 1e-30}),
        ("plain", {"optimizer": "adamw", "weight_decay": 1e-30}),
        ("plain", {"lr_factor": ["0.*=1"]}),
        ("clipped", {"clip_norm": 1e9, "weight_decay": 1e-30, "lr_factor": ["0.*=1"]}),
    ],
)
def test_links_without_effect_leave_the_run(runs, tmp_path, name, options):
    folder, expected = runs
    branch = weights_of(tmp_path / "branch", branch_from=folder / name, steps=8, **options)
    for key, array in expected.items():
        np.testing.assert_allclose(branch[key], array, rtol=1e-5, atol=1e-7)


def test_an_average_begins_at_the_parameters(runs, tmp_path):
    folder, _ = runs
    start = load_file(folder / "plain/network.safetensors")
    options = {"branch_from": folder / "plain", "steps": 5}
    moved = weights_of(tmp_path / "moved", **options)
    averaged = weights_of(tmp_path / "averaged", ema=0.999, **options)
    decay = min(0.999, (1 + 4) / (10 + 4))  # after four steps, see --ema
    for key, array in start.items():
        expected = decay * array + (1 - decay) * moved[key]
        np.testing.assert_allclose(averaged[key], expected, rtol=1e-5, atol=1e-6)
    last = weights_of(tmp_path / "last", branch_from=tmp_path / "averaged", steps=6, ema=0.0)
    whole = weights_of(tmp_path / "whole", branch_from=tmp_path / "moved", steps=6)
    for key, array in whole.items():
        np.testing.assert_array_equal(last[key], array)


def test_another_network_is_refused(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(Regression, "network", lambda self: torch.nn.Linear(4, 1))
    with pytest.raises(jaxsr.interop.errors.CheckpointError, match="belongs to another run"):
        jaxsr.train(Regression, out=tmp_path / "run", branch_from=runs[0] / "plain", steps=8)

"""Arrays of a task's `constants`: whole in every slice and on every device."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import jaxsr
from jaxsr.errors import InputError

NUMBERS = np.random.default_rng(0)
ROWS = NUMBERS.normal(size=(16, 4)).astype(np.float32)
CODES = NUMBERS.normal(size=(8, 3)).astype(np.float32)


class Unprepared(jaxsr.Task):
    """Moves results to the nearest of eight codes."""

    class Config(jaxsr.TaskConfig):
        batch = 16
        steps = 1
        lr = 1.0
        shuffle = False
        tensorboard = False

    def network(self):
        return nn.Linear(4, 3)

    def constants(self):
        return {"codes": CODES}

    def loss(self, network, batch):
        distances = (network(batch["x"])[:, None] - batch["codes"]).square().sum(-1)
        return distances.min(1).values.mean() * batch.get("factor", 1)

    def train_data(self):
        return {"x": ROWS}


class Nearest(Unprepared):
    def prepare(self, batch, key):
        return {"x": batch["x"] * 1.0, "codes": batch["codes"], "factor": np.float32(1)}


class Doubled(Nearest):
    def prepare(self, batch, key):
        return {"x": batch["x"], "codes": batch["codes"] * 2}


class Renamed(Nearest):
    def prepare(self, batch, key):
        return {"x": batch["x"], "twice": batch["codes"] * 2}

    def loss(self, network, batch):
        return super().loss(network, {**batch, "codes": batch["twice"]})


@pytest.fixture(scope="module")
def expected():
    """Weights after a step of float64 torch."""
    torch.manual_seed(0)
    network = nn.Linear(4, 3).double()
    rows, codes = (torch.from_numpy(array).double() for array in (ROWS, CODES))
    distances = (network(rows)[:, None] - codes).square().sum(-1)
    distances.min(1).values.mean().backward()
    assert network.weight.grad is not None
    return (network.weight - network.weight.grad).detach().numpy()


CASES = {
    "whole": {},
    "slices": {"accumulate": 2},
    "more slices": {"accumulate": 4},
    "devices": {"mesh": "2", "batch_norm": "local"},
    "slices on devices": {"mesh": "2", "batch_norm": "local", "accumulate": 2},
    "torch": {"engine": "torch"},
    "torch in slices": {"engine": "torch", "accumulate": 2},
}


@pytest.mark.parametrize("task", [Nearest, Unprepared])
@pytest.mark.parametrize("case", CASES)
def test_the_loss_sees_all_of_them(case, task, expected, tmp_path):
    run = jaxsr.train(task, out=tmp_path / "run", optimizer="sgd", **CASES[case])
    np.testing.assert_allclose(load_file(run.weights)["weight"], expected, rtol=1e-5, atol=1e-6)


class Number(Nearest):
    def prepare(self, batch, key):
        return {"x": batch["x"], "codes": batch["codes"], "factor": 1.0}


class Tree(Unprepared):
    def constants(self):
        return {"tables": {"codes": CODES}}


@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize(("task", "kind"), [(Number, "factor as a float"), (Tree, "tables as a")])
def test_the_loss_takes_arrays_alone(tmp_path, engine, task, kind):
    with pytest.raises(InputError, match=f"the loss's batch has {kind}"):
        jaxsr.train(task, out=tmp_path / "run", engine=engine)


@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Renamed, r"16 rows of x and 8 of twice, .* hand on"),
        (Doubled, "prepare changed the constant codes"),
    ],
)
def test_changed_ones_are_refused_where_they_would_be_cut(tmp_path, engine, task, message):
    with pytest.raises(InputError, match=message):
        jaxsr.train(task, out=tmp_path / "run", engine=engine, accumulate=2)

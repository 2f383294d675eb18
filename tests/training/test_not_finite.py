"""A loss that is not finite: both engines stop, keep the last good state, and say so in a line."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import torch
from torch import Tensor, nn

from jaxsr.interop.train.objective import Batch, Objective, Phase, Player
from jaxsr.interop.train.optimizers import OptimizerConfig
from jaxsr.interop.train.torch_step import NonFiniteError, TorchStep
from jaxsr.train import main
from tests.training.test_survival import TINY

DIVERGES = ("--optimizer", "sgd", "--lr", "1e12", "--warmup-steps", "0")


@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_the_state_before_the_failing_step_is_saved(engine, tmp_path, capsys):
    out = tmp_path / "run"
    options = [*TINY, "--out", str(out), "--engine", engine]
    assert main([*options, *DIVERGES, "--steps", "20"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("jaxsr: generator/") and "Lower --lr" in error
    step = int(error.split(" at step ")[1].split(";")[0])
    assert step > 1 and f"the state of step {step - 1} is saved" in error
    checkpoints = {int(path.name) for path in (out / "checkpoints").iterdir()}
    assert step - 1 in checkpoints
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "generator/loss" in line]
    assert set(range(1, step)) <= set(steps)
    # The state of a run that ends before the failing step.
    short = tmp_path / "short"
    shorter = ("--out", str(short), "--engine", engine, "--steps", str(step - 1))
    assert main([*TINY, *DIVERGES, *shorter]) == 0
    saved, expected = (state_at(folder, step - 1) for folder in (out, short))
    jax.tree.map(np.testing.assert_array_equal, saved, expected)


def state_at(run: Path, step: int) -> Any:
    """The arrays of a checkpoint as they lie on disk."""
    return ocp.PyTreeCheckpointer().restore(run / "checkpoints" / str(step) / "state")


class Duel(Objective):
    """The second player's loss is not finite on a negative batch."""

    phases = (
        Phase(
            name="duel",
            players=(
                Player(network="first", loss="first_loss"),
                Player(network="second", loss="second_loss", through_shared=False),
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.second = nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(()))

    def share(self, batch: Batch) -> dict[str, Tensor]:
        self.seen = self.seen * 0.9 + batch["x"].sum().log()
        return {"out": self.first(batch["x"])}

    def first_loss(self, shared: Batch, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return shared["out"].square().mean(), {}

    def second_loss(self, shared: Batch, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.second(shared["out"]).mean() + batch["x"].sum().log(), {}


def test_torch_takes_back_what_earlier_players_did():
    torch.manual_seed(0)
    step = TorchStep(
        Duel(),
        {name: OptimizerConfig(lr=0.1) for name in ("first", "second")},
        {"first": 10, "second": 10},
        exported="first",
    )
    rows = np.random.default_rng(0).random((8, 3), dtype=np.float32)
    step.train_step("duel", {"x": rows})
    before = jax.tree.map(np.copy, step.state())
    with pytest.raises(NonFiniteError, match="second/loss is nan at step 2"):
        step.train_step("duel", {"x": -rows})
    jax.tree.map(np.testing.assert_array_equal, step.state(), before)
    step.train_step("duel", {"x": rows})
    assert step.step == 2


def test_without_the_check_the_step_never_stops():
    torch.manual_seed(0)
    configs: dict[str, OptimizerConfig] = dict.fromkeys(
        ("first", "second"), OptimizerConfig(lr=0.1)
    )
    step = TorchStep(
        Duel(), configs, dict.fromkeys(configs, 10), exported="first", check_finite=False
    )
    rows = np.random.default_rng(0).random((8, 3), dtype=np.float32)
    assert step.train_step("duel", {"x": -rows})["second/loss"].isnan()

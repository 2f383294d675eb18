"""What is refused of an objective of a user's."""

import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop.errors import InputError, UnsupportedTorchError
from jaxsr.interop.train.objective import Objective, Phase, Player, check_objective, checked_loss
from jaxsr.interop.train.options import OptimizerConfig
from jaxsr.interop.train.step import StepConfig, convert
from jaxsr.interop.train.torch_step import TorchStep

ONE = torch.ones(())


def player(network: str = "net", loss: str = "loss") -> tuple[Player, ...]:
    return (Player(network=network, loss=loss),)


class Fit(Objective):
    phases = (Phase(name="fit", players=player()),)

    def __init__(self):
        super().__init__()
        self.net, self.fixed = nn.Linear(1, 1), nn.Linear(1, 1).requires_grad_(False)

    def share(self, batch):
        return {}

    def loss(self, shared, batch):
        return ONE

    def short(self, batch):
        return ONE


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (Phase(name="fit", players=()), "'fit' of Fit has no player"),
        (Phase(name="fit", players=player("nett")), "trains 'nett'.*; its networks are net, fixed"),
        (Phase(name="fit", players=player("fixed")), "'fixed', but Linear has no parameter to"),
        (Phase(name="fit", players=player(loss="lose")), r"a method lose\(self, shared, batch\)"),
        (Phase(name="fit", players=player(loss="short")), r"a method short\(self, shared, batch"),
        (Phase(name="fit", players=player(), share="both"), r"a method both\(self, batch\)"),
    ],
)
def test_phases_name_what_there_is(phase, message):
    objective = Fit()
    check_objective(objective)
    objective.phases = (phase,)
    with pytest.raises(InputError, match=message):
        check_objective(objective)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.ones(2), r"loss of the objective returned shape \(2,\), torch.float32; return a"),
        (torch.tensor(1), "torch.int64"),
        (None, "returned None"),
        ((ONE, ONE), "returned Tensor with the loss"),
        ((ONE, {"rate": torch.ones(2)}), "reports 'rate', which is not a scalar"),
        ((ONE, {"loss": ONE}), "reports 'loss', a name that the step's own"),
    ],
)
def test_a_loss_is_a_scalar_and_scalars_to_log(result, message):
    assert checked_loss(ONE, "loss") == (ONE, {})
    assert checked_loss((ONE, {"rate": ONE}), "loss") == (ONE, {"rate": ONE})
    with pytest.raises(InputError, match=message):
        checked_loss(result, "loss")


class Pair(Objective):
    phases = (Phase(name="both", players=(*player("a", "first"), *player("b", "second"))),)

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(2, 2)
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def share(self, batch):
        return {"made": self.a(batch["x"])}

    def first(self, shared, batch):
        shared["seen"] = ONE
        return shared["made"].square().mean()

    def second(self, shared, batch):
        is_seen = ONE * ("seen" in shared)
        return self.b(batch["x"]).square().mean(), {"is_seen": is_seen}


@pytest.mark.parametrize(("names", "network"), [(("a", "b"), "b"), (("before", "a"), "a")])
def test_a_parameter_that_an_optimiser_would_not_move_is_refused(names, network):
    objective = Pair()
    one, other = (objective.get_submodule(name) for name in names)
    other.weight = one.weight
    with pytest.raises(UnsupportedTorchError, match=f"{network}.weight and .* of {network} would"):
        convert(objective, StepConfig())
    objective = Pair()
    objective.after = nn.ParameterList([objective.a.weight])  # the player's network comes first
    convert(objective, StepConfig())


def test_a_loss_of_torchs_engine_finds_nothing_that_another_put_into_what_is_shared():
    """As a compiled step has it."""
    names = ("a", "b")
    step = TorchStep(
        Pair(), dict.fromkeys(names, OptimizerConfig()), dict.fromkeys(names, 1), exported="a"
    )
    assert step.train_step("both", {"x": np.ones((3, 2), np.float32)})["b/is_seen"] == 0

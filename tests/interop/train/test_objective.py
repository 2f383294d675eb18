"""Refusals of a user's objective."""

import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop.errors import InputError, UnsupportedTorchError
from jaxsr.interop.mesh import make_mesh
from jaxsr.interop.train.objective import Objective, Phase, Player, check_objective, checked_loss
from jaxsr.interop.train.optimizers import make_optimizer
from jaxsr.interop.train.options import OptimizerConfig
from jaxsr.interop.train.step import StepConfig, TrainStep, convert, init_state
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


class Writing(Objective):
    """Two networks, and a loss that may write into the batch before the other reads it."""

    phases = (Phase(name="fit", players=(*player("one", "first"), *player("other", "second"))),)

    def __init__(self, writes):
        super().__init__()
        self.one, self.other = nn.Linear(2, 1), nn.Linear(2, 1)
        self.writes = writes

    def share(self, batch):
        self.write_in("share", batch)
        return {"y": self.one(batch["x"])}

    def first(self, shared, batch):
        self.write_in("first", batch)
        return shared["y"].square().mean()

    def second(self, shared, batch):
        self.write_in("second", batch)
        return self.other(batch["x"]).square().mean()

    def write_in(self, method, batch):
        if self.writes == (method, "value"):
            batch["x"][:1].mul_(3)
        elif self.writes == (method, "entry"):
            batch["x"] = batch["x"] * 3


def steps_of(objective):
    """One step of each engine on the same batch."""
    configs = {name: OptimizerConfig(lr=0.1) for name in ("one", "other")}
    model = convert(objective, StepConfig())
    optimizers = {name: make_optimizer(config, 10) for name, config in configs.items()}
    step = TrainStep(
        model, objective.phases[0], optimizers, prepare=lambda batch, _: batch, mesh=make_mesh(1)
    )
    state = init_state(model, optimizers, exported="one", seed=0, ema=False)
    engine = TorchStep(objective, configs, dict.fromkeys(configs, 10), exported="one")
    batch = {"x": np.ones((4, 2), np.float32)}
    return lambda: step(state, batch)[1], lambda: engine.train_step("fit", batch)


@pytest.mark.parametrize("kind", ["value", "entry"])
@pytest.mark.parametrize("method", ["share", "first"])
def test_a_write_into_a_batch_that_another_loss_reads_is_refused(method, kind):
    for step in steps_of(Writing((method, kind))):
        with pytest.raises(InputError, match=f"{method} of Writing changes 'x' of its arguments"):
            step()


@pytest.mark.parametrize("kind", ["value", "entry"])
def test_the_last_loss_may_write_into_its_batch(kind):
    of_jax, of_torch = (step() for step in steps_of(Writing(("second", kind))))
    for name in ("one/loss", "other/loss"):
        np.testing.assert_allclose(of_jax[name], of_torch[name], rtol=1e-6)


class Classes(Fit):
    def loss(self, shared, batch):
        return nn.functional.cross_entropy(self.net(batch["x"]).expand(-1, 3), batch["y"])


def test_torch_gets_labels_in_its_own_integers():
    """The data come as JAX holds them, with int32."""
    rows = {"x": np.ones((2, 1), np.float32), "y": np.array([0, 2], np.int32)}
    step = TorchStep(Classes(), {"net": OptimizerConfig()}, {"net": 1}, exported="net")
    metrics = step.train_step("fit", rows)
    assert metrics["net/loss"].item() == pytest.approx(np.log(3))  # three equal logits

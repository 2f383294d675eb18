"""Parameters on which a loss does not depend, against plain torch's loop."""

import copy

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Function

from jaxsr.interop.mesh import make_mesh
from jaxsr.interop.train.objective import Objective, Phase, Player
from jaxsr.interop.train.optimizers import OptimizerConfig, make_optimizer
from jaxsr.interop.train.step import StepConfig, TrainStep, convert, init_state
from jaxsr.interop.train.torch_step import TorchStep

CONFIGS = {
    "adamw": OptimizerConfig(lr=0.01, weight_decay=0.1),
    "adam with decay and clipping": OptimizerConfig(
        optimizer="adam", lr=0.01, weight_decay=0.1, clip_norm=0.5
    ),
    "sgd with momentum": OptimizerConfig(
        optimizer="sgd", lr=0.01, momentum=0.9, dampening=0.5, weight_decay=0.1
    ),
    "adagrad": OptimizerConfig(optimizer="adagrad", lr=0.01, weight_decay=0.1),
}


class Halved(Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


STEPS = {
    "zero_of_round": torch.round,
    "zero_of_decimals": lambda p: p.round(decimals=1),
    "zero_of_floor": torch.floor,
    "zero_of_ceil": torch.ceil,
    "zero_of_trunc": torch.trunc,
    "zero_of_sign": torch.sign,
    "zero_of_quotient": lambda p: torch.div(p, 0.3, rounding_mode="floor"),
    "zero_of_cut_quotient": lambda p: torch.div(p, 0.3, rounding_mode="trunc"),
}
"""Functions whose gradient is 0 in torch; `clip_grad_norm_` fails on that of `sgn`."""


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.main = nn.Linear(4, 1)
        self.computed = nn.Linear(4, 1)  # and dropped
        self.detached = nn.Linear(4, 1)
        self.untouched = nn.Parameter(torch.ones(3))
        self.zero = nn.Parameter(torch.ones(()))  # its gradient is 0, not None
        for name in STEPS:  # likewise
            self.register_parameter(name, nn.Parameter(torch.tensor(1.3)))

    def forward(self, x):
        x = Halved.apply(self.body(x).tanh())
        main = self.main(x) + self.detached(x).detach() + 0 * self.zero
        for name, step in STEPS.items():
            main = main + step(getattr(self, name))
        return {"main": main, "other": Halved.apply(self.computed(x))}


class Fit(Objective):
    phases = (Phase(name="fit", players=(Player(network="network", loss="loss"),)),)

    def __init__(self):
        super().__init__()
        self.network = Heads()

    def share(self, batch):
        return {}

    def loss(self, shared, batch):
        loss = self.network(batch["x"])["main"].square().mean()
        return loss, {}


def plain_torch(objective, config, batches, accumulate):
    make = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad}
    options = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        options |= {"momentum": config.momentum, "dampening": config.dampening}
    optimizer = make.get(config.optimizer, torch.optim.SGD)(objective.parameters(), **options)
    for x in batches:
        optimizer.zero_grad()
        for piece in range(accumulate):
            loss, _ = objective.loss({}, {"x": torch.from_numpy(x[piece::accumulate])})
            (loss / accumulate).backward()
        if config.clip_norm:
            nn.utils.clip_grad_norm_(objective.parameters(), config.clip_norm)
        optimizer.step()
    return {name: p.detach().numpy() for name, p in objective.named_parameters()}


@pytest.mark.parametrize(
    ("name", "accumulate", "devices", "dtype"),
    [
        *((name, 1, 1, "float32") for name in CONFIGS),
        ("adamw", 2, 1, "float32"),
        pytest.param("adamw", 1, 2, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_unused_parameters_stay_as_they_were(name, accumulate, devices, dtype):
    torch.manual_seed(0)
    config, objective, mesh = CONFIGS[name], Fit(), make_mesh(devices)
    batches = np.random.default_rng(0).normal(size=(3, 8, 4)).astype(np.float32)
    expected = plain_torch(copy.deepcopy(objective), config, batches, accumulate)

    options = StepConfig(accumulate=accumulate, dtype=dtype)
    step = TrainStep(
        convert(objective, options),
        objective.phases[0],
        {"network": make_optimizer(config, 10)},
        prepare=lambda batch, _: batch,
        mesh=mesh,
        config=options,
    )
    state = init_state(step.model, step.optimizers, exported="network", seed=0, ema=False)
    before = dict(state.params)
    engine = TorchStep(
        copy.deepcopy(objective), {"network": config}, {"network": 10}, exported="network",
        config=options,
    )  # fmt: skip
    run = jax.jit(step)
    for x in batches:
        state, metrics = run(state, {"x": x})
        of_torch = engine.train_step("fit", {"x": x})
        tolerance = 1e-4 if dtype == "float32" else 0.05
        for metric in ("network/grad_norm", "network/update_norm", "network/param_norm"):
            np.testing.assert_allclose(metrics[metric], of_torch[metric], rtol=tolerance)
    trained = dict(engine.objective.named_parameters())
    for key, value in expected.items():
        rtol, atol = (1e-5, 1e-6) if dtype == "float32" else (1e-7, 0.05)
        for got in (state.params[key], trained[key].detach()):
            np.testing.assert_allclose(got, value, rtol=rtol, atol=atol, err_msg=key)
        if not key.startswith(("network.body", "network.main", "network.zero")):
            assert np.array_equal(state.params[key], before[key])
            assert np.array_equal(trained[key].detach(), before[key])


class Alternating(Fit):
    """Two phases, of which each leaves the other's head alone."""

    phases = (
        Phase(name="fit", players=(Player(network="network", loss="loss"),)),
        Phase(name="other", players=(Player(network="network", loss="other"),)),
    )

    def share(self, batch):
        return self.network(batch["x"])

    def loss(self, shared, batch):
        return shared["main"].square().mean(), {}

    def other(self, shared, batch):
        return (shared["other"] - 1).square().mean(), {}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_parameter_of_another_phase_is_the_same_in_both_engines(name):
    torch.manual_seed(0)
    config, objective = CONFIGS[name], Alternating()
    steps = {
        phase.name: TrainStep(
            convert(objective, StepConfig()),
            phase,
            {"network": make_optimizer(config, 10)},
            prepare=lambda batch, _: batch,
            mesh=make_mesh(1),
        )
        for phase in objective.phases
    }
    first = steps["fit"]
    state = init_state(first.model, first.optimizers, exported="network", seed=0, ema=False)
    engine = TorchStep(objective, {"network": config}, {"network": 10}, exported="network")
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    for phase in ("fit", "fit", "other", "fit", "other"):
        before = {n: np.array(p) for n, p in state.params.items()}
        state, _ = jax.jit(steps[phase])(state, {"x": x})
        engine.train_step(phase, {"x": x})
        idle = "network.computed" if phase == "fit" else "network.main"
        for key, value in engine.objective.named_parameters():
            got = np.asarray(state.params[key])
            np.testing.assert_allclose(got, value.detach(), rtol=1e-4, atol=1e-6, err_msg=key)
            assert np.array_equal(got, before[key]) == key.startswith(
                (idle, "network.detached", "network.untouched")
            ) or key.startswith("network.zero")

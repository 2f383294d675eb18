"""What the compiled training step sends between devices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn
from torch.nn import functional as F

from jaxsr.interop.mesh import make_mesh, place, place_batch, replicated
from jaxsr.interop.step import StepConfig, convert, init_state, make_train_step
from jaxsr.models.objective import Objective, Phase, Player


class Distilled(Objective):
    """A small network with BatchNorm that learns to match a frozen, much larger one."""

    phases = (Phase(name="fit", players=(Player(network="student", loss="loss"),)),)

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.teacher = nn.Conv2d(3, 4, 3)
        self.unused = nn.Linear(100, 100)
        for frozen in (self.teacher, self.unused):
            frozen.requires_grad_(False)

    def share(self, batch):
        return {"out": self.student(batch["image"])}

    def loss(self, shared, batch):
        return F.mse_loss(shared["out"], self.teacher(batch["image"])), {}


def test_local_batch_norm_sends_gradients_and_statistics_once_and_nothing_frozen():
    torch.manual_seed(0)
    objective, mesh = Distilled(), make_mesh(8)
    config = StepConfig(batch_norm="local")
    model, optimizers = convert(objective, config), {"student": optax.sgd(0.1)}
    step = make_train_step(
        model, objective.phases[0], optimizers, prepare=lambda b, _: b, mesh=mesh, config=config
    )
    state = init_state(model, optimizers, exported="student", seed=0, ema=False)
    state = place(state, jax.tree.map(lambda _: replicated(mesh), state))
    images = np.random.default_rng(0).standard_normal((16, 3, 8, 8), np.float32)
    batch = place_batch({"image": images}, mesh)
    program = jax.jit(step).lower(state, batch).compile()

    sent = re.findall(r"= f32\[(\d*)\]\S* all-reduce(?:-start)?\(", program.as_text())
    learned = sum(p.numel() for p in objective.student.parameters())
    loss, statistics = 1, 2 * 4
    assert sent == [str(learned + statistics + loss)]

    after, metrics = program(state, batch)
    assert jnp.isfinite(metrics["student/loss"])
    for name, value in objective.teacher.named_parameters():
        np.testing.assert_array_equal(after.buffers[f"teacher.{name}"], value.detach())

"""optax optimisers against torch.optim: the same parameters after 50 steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from jaxsr.interop.train.optimizers import OptimizerConfig, make_optimizer, make_schedule
from jaxsr.interop.train.torch_step import make_torch_optimizer

STEPS = 50
CONFIGS = {
    "adam": OptimizerConfig(optimizer="adam", lr=1e-2),
    "adam, L2": OptimizerConfig(optimizer="adam", lr=1e-2, weight_decay=1e-1),
    "adam, betas and eps": OptimizerConfig(optimizer="adam", lr=1e-2, betas=(0.5, 0.9), eps=1e-4),
    "adamw": OptimizerConfig(optimizer="adamw", lr=1e-2, weight_decay=1e-1),
    "adamw, no decay": OptimizerConfig(optimizer="adamw", lr=1e-2),
    "sgd": OptimizerConfig(optimizer="sgd", lr=1e-1),
    "sgd, L2": OptimizerConfig(optimizer="sgd", lr=1e-1, weight_decay=1e-1),
    "sgd, momentum": OptimizerConfig(optimizer="sgd", lr=1e-2, momentum=0.9),
    "sgd, dampened": OptimizerConfig(optimizer="sgd", lr=1e-2, momentum=0.9, dampening=0.3),
    "sgd, nesterov": OptimizerConfig(
        optimizer="sgd", lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-2
    ),
    "adagrad": OptimizerConfig(optimizer="adagrad", lr=5e-2),
    "adagrad, L2": OptimizerConfig(optimizer="adagrad", lr=5e-2, weight_decay=1e-1),
    "adam, clipped": OptimizerConfig(optimizer="adam", lr=1e-2, clip_norm=0.3),
    "adamw, cosine after warm-up": OptimizerConfig(
        optimizer="adamw", lr=1e-2, schedule="cosine", warmup_steps=7, weight_decay=1e-2
    ),
}


def problem() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(6, 3)), "b": np.zeros(3), "unused_axis": rng.normal(size=(3,))}
    inputs, targets = rng.normal(size=(20, 6)), rng.normal(size=(20, 3))
    return {k: v.astype(np.float32) for k, v in params.items()}, inputs, targets


def jax_loss(params, inputs, targets):
    hidden = jnp.tanh(inputs @ params["w"] + params["b"]) * params["unused_axis"]
    return jnp.mean((hidden - targets) ** 2)


def torch_loss(params, inputs, targets):
    hidden = torch.tanh(inputs @ params["w"] + params["b"]) * params["unused_axis"]
    return torch.mean((hidden - targets) ** 2)


@pytest.mark.sample(10)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_fifty_steps_equal_torch(config):
    start, inputs, targets = problem()
    # float64 on both sides would hide nothing, but runs are float32: compare what users get.
    inputs, targets = inputs.astype(np.float32), targets.astype(np.float32)

    transform = make_optimizer(config, STEPS)
    params = jax.tree.map(jnp.asarray, start)
    state = transform.init(params)

    @jax.jit
    def step(params, state):
        grads = jax.grad(jax_loss)(params, inputs, targets)
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    theirs = {k: torch.nn.Parameter(torch.from_numpy(v.copy())) for k, v in start.items()}
    optimizer = make_torch_optimizer(config, list(theirs.values()))
    schedule = make_schedule(config, STEPS)
    for index in range(STEPS):
        params, state = step(params, state)
        optimizer.zero_grad()
        torch_loss(theirs, torch.from_numpy(inputs), torch.from_numpy(targets)).backward()
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(theirs.values()), config.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = np.asarray(schedule(index)).item()
        optimizer.step()

    for name, value in theirs.items():
        moved = np.abs(value.detach().numpy() - start[name]).max()
        assert moved > 1e-2, "a test in which nothing moves shows nothing"
        # 50 float32 steps of relative rounding 6e-8 each, amplified where Adam divides by small v.
        np.testing.assert_allclose(params[name], value.detach().numpy(), atol=2e-5 * moved)


def test_cosine_ends_where_torch_ends():
    config = OptimizerConfig(lr=0.5, schedule="cosine", final_lr=0.1)
    schedule = make_schedule(config, 40)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40, eta_min=0.1)
    for index in range(40):
        assert np.asarray(schedule(index)).item() == pytest.approx(
            theirs.get_last_lr()[0], rel=1e-5
        )
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of adam, adamw, sgd, adagrad, got 'lion'"),
        ({"lr": 0.0}, r"lr must be positive, got 0\.0"),
        ({"lr": float("nan")}, "lr must be positive, got nan"),
        ({"betas": (0.9, 1.0)}, r"betas must lie in \[0, 1\)"),
        ({"nesterov": True}, "nesterov needs a momentum above 0"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"schedule": "step"}, "schedule must be constant or cosine"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**options)

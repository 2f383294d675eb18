"""optax optimisers against torch.optim: the same parameters after 50 steps."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import torch

from jaxsr.interop.errors import InputError
from jaxsr.interop.train.optimizers import (
    OptimizerConfig,
    make_optimizer,
    make_schedule,
    updates_done,
)
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


def _torch_lr(config, steps):
    """The learning rates of torch's own scheduler, after as many updates as have been done."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.lr)
    of_torch = torch.optim.lr_scheduler
    match config.schedule:
        case "multistep":
            updates = [round(m * steps if m < 1 else m) for m in config.milestones]
            theirs = of_torch.MultiStepLR(optimizer, updates, gamma=config.gamma)
        case "exponential":
            rate = (config.final_lr / config.lr) ** (1 / steps)
            theirs = of_torch.ExponentialLR(optimizer, rate)
        case _:
            fall = round(config.decay_share * steps)
            stays = of_torch.ConstantLR(optimizer, 1.0)
            falls = of_torch.LinearLR(optimizer, 1.0, config.final_lr / config.lr, fall)
            theirs = of_torch.SequentialLR(optimizer, [stays, falls], [steps - fall])
    rates = []
    for _ in range(steps):
        rates.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    return rates


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "multistep", "milestones": (10, 0.75), "gamma": 0.3},
        {"schedule": "multistep", "milestones": (0.25, 10, 30), "gamma": 0.3},
        {"schedule": "exponential", "final_lr": 0.01},
        {"schedule": "wsd", "final_lr": 0.05, "decay_share": 0.3},
    ],
)
def test_schedules_are_torchs(options):
    config = OptimizerConfig(lr=0.5, **options)
    schedule = make_schedule(config, 40)
    rates = [np.asarray(schedule(index)).item() for index in range(40)]
    np.testing.assert_allclose(rates, _torch_lr(config, 40), rtol=1e-5)
    warm = make_schedule(dataclasses.replace(config, warmup_steps=5), 40)
    assert [np.asarray(warm(i)).item() for i in range(5)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5]
    )


def test_schedules_after_a_warm_up():
    def rates(**options):
        schedule = make_schedule(OptimizerConfig(lr=1.0, warmup_steps=10, **options), 40)
        return [round(np.asarray(schedule(index)).item(), 4) for index in range(40)]

    # Each milestone counts, those during the warm-up from its end on, and equal ones as often.
    steps = rates(schedule="multistep", milestones=(4, 8, 20, 0.5))
    assert steps[10:20] == [0.25] * 10 and steps[20:] == [0.0625] * 20
    stable = rates(schedule="wsd", decay_share=0.5)
    assert stable[10:21] == [1.0] * 11 and stable[-1] == 0.05
    assert rates(schedule="wsd", decay_share=1.0)[-1] == pytest.approx(1 / 30, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("optax:lion", {"weight_decay": 0.1}, lambda lr: optax.lion(lr, weight_decay=0.1)),
        ("optax:adamw", {"optimizer_args": '{"b1": 0.8, "weight_decay": 0.2}'},
         lambda lr: optax.adamw(lr, b1=0.8, weight_decay=0.2)),
        ("optax.contrib:muon", {}, optax.contrib.muon),
        ("optax:adafactor", {}, optax.adafactor),
    ],
)  # fmt: skip
def test_rules_of_optax_by_name(name, options, rule):
    config = OptimizerConfig(optimizer=name, lr=1e-2, schedule="cosine", **options)
    ours, theirs = make_optimizer(config, STEPS), rule(make_schedule(config, STEPS))
    start, inputs, targets = problem()
    moved = []
    for transform in (ours, theirs):
        params = jax.tree.map(jnp.asarray, start)
        state = transform.init(params)
        for _ in range(5):
            grads = jax.grad(jax_loss)(params, inputs, targets)
            updates, state = transform.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        moved.append(params)
        if transform is ours:
            assert updates_done(state) == 5
    jax.tree.map(np.testing.assert_array_equal, *moved)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "optax:none"}, "is not a rule of optax"),
        ({"optimizer": "optax:clip"}, "is not a rule of optax"),
        ({"optimizer": "optax:lyon"}, r"learning rate \(did you mean optax:lion\?\)"),
        ({"optimizer": "optax:muon"}, r"learning rate \(did you mean optax.contrib:muon\?\)"),
        ({"optimizer": "optax:sgd", "weight_decay": 0.1}, "takes no weight_decay"),
        ({"optimizer": "optax:lion", "optimizer_args": '{"beta": 1}'}, "does not take .*it has b1"),
        ({"optimizer": "optax:adam", "optimizer_args": '{"b1": "x"}'}, "does not take .*it has b1"),
        ({"optimizer": "optax:lbfgs"}, "a rule that needs more than gradients"),
    ],
)
def test_rules_that_optax_lacks(options, message):
    with pytest.raises(InputError, match=message):
        make_optimizer(OptimizerConfig(**options), 10)


@pytest.mark.parametrize(
    ("name", "arguments", "theirs"),
    [
        ("constant_schedule", {}, lambda: optax.constant_schedule(0.5)),
        ("cosine_onecycle_schedule", {"pct_start": 0.2},
         lambda: optax.cosine_onecycle_schedule(40, 0.5, pct_start=0.2)),
        ("warmup_cosine_decay_schedule", {"warmup_steps": 5},
         lambda: optax.warmup_cosine_decay_schedule(0.0, 0.5, 5, 40)),
        ("polynomial_schedule", {"end_value": 0.1, "power": 2},
         lambda: optax.polynomial_schedule(0.5, 0.1, 2, 40)),
        ("linear_schedule", {"init_value": 1, "end_value": 0, "transition_steps": 10},
         lambda: optax.linear_schedule(1, 0, 10)),
        ("piecewise_constant_schedule", {"boundaries_and_scales": {"10": 0.1}},
         lambda: optax.piecewise_constant_schedule(0.5, {10: 0.1})),
    ],
)  # fmt: skip
def test_schedules_of_optax(name, arguments, theirs):
    config = OptimizerConfig(
        lr=0.5, schedule=f"optax:{name}", schedule_args=json.dumps(arguments) if arguments else ""
    )
    ours, theirs = make_schedule(config, 40), theirs()
    np.testing.assert_array_equal([ours(i) for i in range(40)], [theirs(i) for i in range(40)])
    warm = make_schedule(dataclasses.replace(config, warmup_steps=4), 44)
    np.testing.assert_array_equal([warm(i) for i in range(4, 44)], [theirs(i) for i in range(40)])


@pytest.mark.parametrize(
    ("schedule", "arguments", "message"),
    [
        ("optax:none", "", "is not one of optax"),
        ("optax:adam", "", "is not one of optax [^(]*$"),
        ("optax:cosine_onecyle", "", "did you mean optax:cosine_onecycle_schedule"),
        ("optax:linear_schedule", "", "does not take no arguments .*it has init_value, end_value"),
        ("optax:linear_schedule", '{"end": 1}', "does not take .*it has init_value"),
        ("optax:linear_schedule", '{"end_value": "x"}', "does not take"),
        ("optax:linear_schedule", '{"end_value": -9}', "has the learning rate -"),
        (
            "optax:piecewise_constant_schedule",
            '{"boundaries_and_scales": {"a": 1}}',
            "does not take",
        ),
    ],
)
def test_schedules_that_optax_lacks(schedule, arguments, message):
    with pytest.raises(InputError, match=message) as error:
        make_schedule(OptimizerConfig(schedule=schedule, schedule_args=arguments), 40)
    assert "\n" not in str(error.value)


def test_torch_has_no_rules_of_optax():
    with pytest.raises(InputError, match="use --engine jax"):
        make_torch_optimizer(OptimizerConfig(optimizer="optax:lion"), [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "optax:lion", "optimizer_args": "b1=1"}, "optimizer_args is not JSON"),
        ({"optimizer": "optax:lion", "optimizer_args": "[1]"}, "must be a JSON object"),
        ({"optimizer_args": "{}x"}, "optimizer_args are for those of optax"),
        ({"optimizer": "os:system"}, "optimizer must be one of"),
        (
            {"schedule": "optax:linear_schedule", "schedule_args": "1"},
            "schedule_args must be a JSON",
        ),
        ({"schedule_args": '{"a": 1}'}, "schedule_args are for those of optax"),
        ({"schedule": "multistep"}, "needs milestones"),
        ({"schedule": "multistep", "milestones": (-5.0,)}, "must be above 0"),
        ({"schedule": "multistep", "milestones": (0.5, 1.5)}, "or shares of the run below 1"),
        ({"schedule": "exponential"}, "never reaches 0"),
        ({"schedule": "wsd", "decay_share": 0.0}, "decay_share must be above 0"),
        ({"gamma": 2.0}, "gamma must be at most 1"),
        ({"optimizer": "lion"}, "optimizer must be one of adam, adamw, sgd, adagrad, optax:NAME"),
        ({"lr": 0.0}, r"lr must be above 0, got 0\.0"),
        ({"lr": float("nan")}, "lr must be finite, got nan"),
        ({"betas": (0.9, 1.0)}, r"betas must be below 1, got 1\.0"),
        ({"nesterov": True}, "nesterov needs a momentum above 0"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
        ({"schedule": "step"}, "schedule must be one of constant, cosine"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**options)

"""MSHNet in JAX against the same weights in torch: logits, losses, gradients, steps, meshes."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxsr.interop import mesh as meshes
from jaxsr.interop import to_jax
from jaxsr.interop.train.optimizers import OptimizerConfig, make_optimizer
from jaxsr.interop.train.step import StepConfig, TrainStep, init_state
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.network import MSHNet
from jaxsr.training.mshnet import MSHNetObjective

THIN: Any = {"widths": (8, 12, 16), "blocks": (1, 1, 1), "attention_ratio": 4}


def _batch(rows=2, side=32, seed=0):
    random = np.random.default_rng(seed)
    image = random.normal(size=(rows, 3, side, side)).astype(np.float32)
    mask = np.zeros((rows, 1, side, side), np.float32)
    for row in range(1, rows):  # the first has no target
        top, left = random.integers(0, side - 4, 2)
        mask[row, 0, top : top + 3, left : left + 4] = 1
        image[row, :, top : top + 3, left : left + 4] += 3
    return {"image": image, "mask": mask}


def _torch(batch):
    return {name: torch.from_numpy(value) for name, value in batch.items()}


@pytest.mark.slow  # test_mshnet_canvas.py compares those of three scales
def test_logits_of_the_whole_network_agree():
    torch.manual_seed(0)
    network = MSHNet()
    image = _batch(side=64)["image"]
    with torch.no_grad():
        for _ in range(2):  # running statistics that are not 0 and 1
            network(torch.from_numpy(image))
        want = network.eval()(torch.from_numpy(image), "all")
    model = to_jax(network)
    got, _ = jax.jit(lambda p, b, x: model.apply(p, b, x, "all"))(
        model.params, model.buffers, image
    )
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def _gradients(objective, batch, phase):
    """Loss, metrics, gradients and buffers, by JAX and by torch."""
    model = to_jax(objective)
    plan = objective.phase(phase)

    def loss(params):
        shared, buffers = model.apply(params, model.buffers, batch, train=True, method=plan.share)
        (value, metrics), buffers = model.apply(
            params, buffers, shared, batch, train=True, method=plan.players[0].loss
        )
        return value, (metrics, buffers)

    (value, (metrics, buffers)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        model.params
    )
    objective.train()
    tensors = _torch(batch)
    shared = getattr(objective, plan.share)(tensors)
    want, want_metrics = getattr(objective, plan.players[0].loss)(shared, tensors)
    want.backward()
    assert float(value) == pytest.approx(float(want.detach()), abs=1e-5)
    for name, metric in want_metrics.items():
        assert float(metrics[name]) == pytest.approx(float(metric.detach()), abs=1e-5)
    return grads, buffers


@pytest.mark.parametrize(
    ("scales", "phase", "form"),
    [
        (2, "main", "corrected"),
        pytest.param(3, "main", "corrected", marks=pytest.mark.slow),
        pytest.param(3, "main", "paper", marks=pytest.mark.slow),
        pytest.param(3, "warmup", "corrected", marks=pytest.mark.slow),
        pytest.param(3, "warmup", "paper", marks=pytest.mark.slow),
    ],
)
def test_losses_and_gradients_agree(scales, phase, form):
    torch.manual_seed(1)
    few = {"widths": THIN["widths"][:scales], "blocks": THIN["blocks"][:scales]}
    objective = MSHNetObjective(MSHNetConfig(**THIN | few, loss=form))
    _hold_gradients(objective, *_gradients(objective, _batch(rows=3), phase))


@pytest.mark.slow
def test_losses_and_gradients_of_the_whole_network_agree():
    torch.manual_seed(2)
    objective = MSHNetObjective()
    _hold_gradients(objective, *_gradients(objective, _batch(side=64), "main"))


def _hold_gradients(objective, grads, buffers):
    norm = np.sqrt(
        sum(float((p.grad**2).sum()) for p in objective.parameters() if p.grad is not None)
    )
    squares = 0.0
    for name, parameter in objective.named_parameters():
        want = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        difference = np.linalg.norm(np.asarray(grads[name]) - want)
        # The second part is for single numbers that sum up to nearly nothing (the last bias, and
        # every bias before a BatchNorm, whose gradient is 0): a few roundings of the whole.
        assert difference <= 1e-4 * np.linalg.norm(want) + 1e-6 * norm, name
        squares += float(difference) ** 2
    assert np.sqrt(squares) <= 2e-5 * norm
    for name, buffer in objective.named_buffers():
        np.testing.assert_allclose(buffers[name], buffer, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [("adagrad", 0.05), ("adam", 5e-4)])
def test_twenty_steps_agree(optimizer):
    """Both optimisers from the same weights on the same batches, the loss followed throughout."""
    torch.manual_seed(3)
    objective = MSHNetObjective(MSHNetConfig(**THIN))
    config = OptimizerConfig(optimizer=optimizer[0], lr=optimizer[1])
    optimizers = {"network": make_optimizer(config, 20)}
    model = to_jax(objective)
    mesh = meshes.make_mesh(1)
    state = init_state(model, optimizers, exported="network", seed=0, ema=False)
    plan = objective.phase("main")
    step = jax.jit(TrainStep(model, plan, optimizers, prepare=lambda batch, key: batch, mesh=mesh))
    kind = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[optimizer[0]]
    theirs = kind(objective.network.parameters(), lr=optimizer[1])
    objective.train()
    for number in range(20):
        batch = _batch(rows=4, seed=number)
        state, metrics = step(state, batch)
        tensors = _torch(batch)
        loss, _ = objective.main_loss(objective.share(tensors), tensors)
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        # Adagrad at 0.05 moves every weight by 0.05 first, whatever its gradient's size, rounding
        # included: by step 20 torch in float32 and torch in float64 are 0.01 apart themselves.
        limit = 0.05 if optimizer[0] == "adagrad" and number > 5 else 1e-5
        assert float(metrics["network/loss"]) == pytest.approx(float(loss.detach()), abs=limit)


def _steps_on(devices, batch_norm, objective, count=2):
    optimizers = {"network": make_optimizer(OptimizerConfig(optimizer="sgd", lr=0.1), 10)}
    model, mesh = to_jax(objective), meshes.make_mesh(devices)
    state = init_state(model, optimizers, exported="network", seed=0, ema=False)
    state = meshes.place(state, meshes.tree_shardings(state, mesh))
    step = TrainStep(
        model,
        objective.phase("main"),
        optimizers,
        prepare=lambda batch, key: batch,
        mesh=mesh,
        config=StepConfig(batch_norm=batch_norm),
    )
    placed = meshes.place_batch(_batch(rows=8, seed=5), mesh)
    compiled = jax.jit(step).lower(state, placed).compile()
    for _ in range(count):
        state, metrics = compiled(state, placed)
    return state, metrics, compiled.as_text()


@pytest.mark.slow
def test_global_batch_norm_gives_the_same_on_one_and_eight_devices():
    torch.manual_seed(4)
    objective = MSHNetObjective(MSHNetConfig(**THIN))
    one, first, _ = _steps_on(1, "global", objective)
    eight, second, _ = _steps_on(8, "global", objective)
    assert float(first["network/loss"]) == pytest.approx(float(second["network/loss"]), rel=1e-4)
    for name, value in one.params.items():
        np.testing.assert_allclose(eight.params[name], value, atol=1e-4, err_msg=name)


@pytest.mark.slow  # tests/interop/aot/test_compile.py holds the same for a TPU
def test_local_batch_norm_takes_one_all_reduce():
    torch.manual_seed(5)
    objective = MSHNetObjective(MSHNetConfig(**THIN))
    state, metrics, program = _steps_on(8, "local", objective)
    reductions = re.findall(r"= \S+ all-reduce(?:-start)?\(", program or "")
    assert len(reductions) == 1, reductions
    assert int(state.failed_step) == 0 and jnp.isfinite(metrics["network/loss"])

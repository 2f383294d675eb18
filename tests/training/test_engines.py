"""The JAX engine against the torch engine, and one device against eight, in both phases."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import jaxsr
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.training.fast_srgan import FastSRGANTask
from jaxsr.training.presets.fast_srgan import FastSRGANRun
from tests.training.running import take_steps

SMALL = FastSRGANRun(
    model=FastSRGANConfig(
        width=8, depth=2, discriminator_width=8, discriminator_layers=3, perceptual_weight=0.0,
        pixel_weight=1.0, adversarial_weight=1e-2,
    ),
    steps=16,
    pretrain_steps=8,
    batch=8,
    crop=32,
    crops_per_photo=16,
    optimizer="adam",
    lr=1e-4,
    clip_norm=1.0,
    ema=0.9,
)  # fmt: skip
CONFIGS = {
    "as published": SMALL,
    "more steps": dataclasses.replace(SMALL, steps=40, pretrain_steps=20),
    "batch norm": dataclasses.replace(
        SMALL, model=dataclasses.replace(SMALL.model, norm="batch", discriminator_norm="batch")
    ),
    "luma, mobile": dataclasses.replace(
        SMALL,
        model=dataclasses.replace(
            SMALL.model, scale=1, channels=1, block="mobile", norm="none", predict="residual"
        ),
    ),
    "accumulated": dataclasses.replace(SMALL, accumulate=4, optimizer="adamw", schedule="cosine"),
}


# Where a run's programs take longest to compile; one of each kind stays in the quick suite.
slow = pytest.mark.slow
EVERY = [
    pytest.param(config, id=name, marks=[] if name == "as published" else [slow])
    for name, config in CONFIGS.items()
]


@functools.cache
def losses(config: FastSRGANRun) -> tuple[list[dict[str, float]], dict[str, np.ndarray]]:
    """Metrics of every step and the weights at the end."""
    return take_steps(FastSRGANTask, config)


def assert_close(found, wanted, rtol: float) -> None:
    for step, (a, b) in enumerate(zip(found, wanted, strict=True), start=1):
        assert a.keys() == b.keys()
        for name in a:
            if name.endswith(("logit", "grad_norm", "update_norm")):
                continue  # near 0 by nature, or dominated by few weights: the losses decide
            assert a[name] == pytest.approx(b[name], rel=rtol), (step, name)


@pytest.mark.parametrize("config", EVERY)
def test_jax_equals_torch(config):
    ours, our_weights = losses(config)
    theirs, their_weights = losses(dataclasses.replace(config, engine="torch"))
    assert {"generator/loss", "discriminator/loss"} <= ours[-1].keys()
    assert_close(ours, theirs, 1e-4)
    assert our_weights.keys() == their_weights.keys()
    for name, weight in their_weights.items():
        # 40 steps of 1e-4 move a weight by up to 4e-3; Adam turns the rounding of a gradient near
        # 0 into part of a step.
        np.testing.assert_allclose(our_weights[name], weight, atol=4e-4, err_msg=name)


@slow  # of other objectives in test_task.py
@pytest.mark.parametrize("config", EVERY)
def test_eight_devices_equal_one(config):
    config = dataclasses.replace(config, batch=8 * config.accumulate)
    one, _ = losses(config)
    eight, _ = losses(dataclasses.replace(config, mesh="8"))
    assert_close(eight, one, 1e-4)


@slow
def test_sharded_parameters_equal_replicated_ones():
    model = dataclasses.replace(SMALL.model, width=32)
    config = dataclasses.replace(SMALL, model=model, steps=20, pretrain_steps=10)
    plain, _ = losses(dataclasses.replace(config, mesh="8"))
    sharded, weights = losses(dataclasses.replace(config, mesh="data=4,fsdp=2"))
    assert_close(sharded, plain, 1e-4)
    assert weights["neck.0.weight"].shape == (32, 3, 3, 3)


@slow
def test_bfloat16_follows_float32():
    single, _ = losses(SMALL)
    half, weights = losses(dataclasses.replace(SMALL, dtype="bfloat16"))
    assert_close(half, single, 5e-2)  # 8 bits of mantissa through a dozen layers
    assert {w.dtype for w in weights.values()} == {np.dtype(np.float32)}


@slow
def test_local_batch_norm_trains_and_differs_from_global():
    config = dataclasses.replace(CONFIGS["batch norm"], mesh="4", batch=16)
    every, _ = losses(config)
    local, _ = losses(dataclasses.replace(config, batch_norm="local"))
    first = (every[0]["generator/loss"], local[0]["generator/loss"])
    assert first[0] != first[1]
    assert local[7]["generator/loss"] < local[0]["generator/loss"]
    with pytest.raises(ValueError, match="batch_norm=local needs whole parameters"):
        losses(dataclasses.replace(config, batch_norm="local", mesh="data=2,fsdp=2"))


@slow
def test_remat_changes_nothing_but_memory():
    plain, _ = losses(SMALL)
    again, _ = losses(dataclasses.replace(SMALL, remat=True))
    assert_close(again, plain, 1e-5)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x)))


class Language(jaxsr.Task):
    class Config(jaxsr.TaskConfig):
        batch = 8
        steps = 6
        lr = 0.1
        ema = 0.99
        tensorboard = False

    def network(self):
        return Tied()

    def loss(self, network, batch):
        return nn.functional.cross_entropy(network(batch["x"]).flatten(0, 1), batch["x"].flatten())

    def train_data(self):
        return {"x": np.random.default_rng(0).integers(0, 16, (32, 6))}


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_shared_weights_are_averaged_under_each_name(engine, tmp_path):
    run = jaxsr.train(Language, out=tmp_path / "run", engine=engine)
    arrays = load_file(run.weights)
    np.testing.assert_array_equal(arrays["embed.weight"], arrays["head.weight"])

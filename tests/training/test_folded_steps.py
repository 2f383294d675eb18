"""Ten training steps with lanes folded follow those of the plain networks."""

import dataclasses

import pytest

from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.training import fast_srgan, segmentation
from tests.training.running import take_steps

RUNS = {
    "fast-srgan": (
        fast_srgan,
        fast_srgan.FastSRGANRun(
            model=FastSRGANConfig(
                width=8, depth=2, discriminator_width=8, discriminator_layers=3,
                perceptual_weight=0.0, pixel_weight=1.0, adversarial_weight=1e-2,
            ),
            steps=10, pretrain_steps=5, batch=8, crop=32, crops_per_photo=16,
            optimizer="adam", lr=1e-4,
        ),
    ),
    "mshnet": (
        segmentation,
        segmentation.SegmentationRun(
            model=MSHNetConfig(widths=(4, 8, 16), blocks=(1, 1, 1), attention_ratio=4),
            steps=10, warmup_epochs=0, batch=8, base_size=32, crop_size=32, scenes=24,
            optimizer="adam", lr=1e-3, augment="patch", normalise="imagenet", evaluate="base",
        ),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", RUNS)
def test_ten_steps(family):
    module, config = RUNS[family]
    plain, _ = take_steps(module, dataclasses.replace(config, lane_folding="off"))
    folded, _ = take_steps(module, dataclasses.replace(config, lane_folding="on"))
    for step, (ours, theirs) in enumerate(zip(folded, plain, strict=True), start=1):
        for name in theirs:
            if name.endswith("loss"):
                # Rounding of sums in another order, carried over ten updates.
                assert ours[name] == pytest.approx(theirs[name], rel=1e-5), (step, name)
    assert plain[-1] != plain[0]

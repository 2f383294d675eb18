"""Ten training steps with lanes folded follow those of the plain networks."""

import dataclasses
import statistics

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


SEEDS = range(5)


@pytest.mark.slow
@pytest.mark.parametrize("family", RUNS)
def test_ten_steps(family):
    """Most runs stay together to rounding. In some, one value that enters a ReLU lies so near zero
    that rounding decides on which side; then runs part, as those of torch and of the plain network
    do (with seed 1, by 2e-5 at the tenth step). So the median counts, and all first losses.
    """
    module, config = RUNS[family]
    drifts = []
    for seed in SEEDS:
        seeded = dataclasses.replace(config, seed=seed)
        plain, _ = take_steps(module, dataclasses.replace(seeded, lane_folding="off"))
        folded, _ = take_steps(module, dataclasses.replace(seeded, lane_folding="on"))
        drift = [
            max(abs(ours[n] / theirs[n] - 1) for n in theirs if n.endswith("loss"))
            for ours, theirs in zip(folded, plain, strict=True)
        ]
        assert max(drift[:2]) <= 1e-6, (seed, drift)
        drifts.append(max(drift))
        assert plain[-1] != plain[0]
    assert statistics.median(drifts) <= 1e-5, drifts

"""Ten training steps with lanes folded follow those of the plain networks."""

import dataclasses
import statistics

import jax
import numpy as np
import pytest

from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.training.fast_srgan import FastSRGANTask
from jaxsr.training.mshnet import MSHNetTask
from jaxsr.training.presets.fast_srgan import FastSRGANRun
from jaxsr.training.presets.mshnet import MSHNetRun
from tests.training.running import take_steps

RUNS = {
    "fast-srgan": (
        FastSRGANTask,
        FastSRGANRun(
            model=FastSRGANConfig(
                width=8, depth=2, discriminator_width=8, discriminator_layers=3,
                perceptual_weight=0.0, pixel_weight=1.0, adversarial_weight=1e-2,
            ),
            steps=10, pretrain_steps=5, batch=8, crop=32, crops_per_photo=16,
            optimizer="adam", lr=1e-4,
        ),
    ),
    "mshnet": (
        MSHNetTask,
        MSHNetRun(
            model=MSHNetConfig(widths=(4, 8, 16), blocks=(1, 1, 1), attention_ratio=4),
            steps=10, warmup_epochs=0, batch=8, base_size=32, crop_size=32, scenes=24,
            optimizer="adam", lr=1e-3, augment="patch", normalise="imagenet", evaluate="base",
        ),
    ),
}  # fmt: skip


Steps = list[dict[str, float]]


def drift(ours: Steps, theirs: Steps) -> list[float]:
    """The largest relative difference of a loss, step by step."""
    return [
        max(abs(folded[n] / plain[n] - 1) for n in plain if n.endswith("loss"))
        for folded, plain in zip(ours, theirs, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", (0, 1))
@pytest.mark.parametrize("family", RUNS)
def test_ten_steps_in_float64(family, seed):
    """With rounding out of the way: MSHNet's loss itself is float32, hence its bound."""
    task, config = RUNS[family]

    def in_float64(run):
        run.objective.double()
        prepare = run.prepare
        run.prepare = lambda batch, key: {
            name: x.astype("float64") if x.dtype == "float32" else x
            for name, x in prepare(batch, key).items()
        }

    def steps(folding):
        return take_steps(
            task, dataclasses.replace(config, lane_folding=folding), change=in_float64
        )

    config = dataclasses.replace(config, seed=seed)
    with jax.enable_x64(True):
        plain, weights = steps("off")
        folded, _ = steps("on")
    assert {w.dtype for w in weights.values() if w.dtype.kind == "f"} == {np.dtype("float64")}
    assert max(drift(folded, plain)) <= (2.5e-7 if family == "mshnet" else 1e-14)
    assert plain[-1] != plain[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", RUNS)
def test_ten_steps_in_float32(family):
    """Most runs stay together to rounding. In some, one value that enters a ReLU lies so near zero
    that rounding decides on which side; then runs part, as those of torch and of the plain network
    do (with seed 1, by 2e-5 at the tenth step). So the median counts, and all first losses.
    """
    task, config = RUNS[family]
    drifts = []
    for seed in range(5):
        seeded = dataclasses.replace(config, seed=seed)
        plain, _ = take_steps(task, dataclasses.replace(seeded, lane_folding="off"))
        folded, _ = take_steps(task, dataclasses.replace(seeded, lane_folding="on"))
        drifts.append(drift(folded, plain))
        assert max(drifts[-1][:2]) <= 1e-6, (seed, drifts[-1])
    assert statistics.median(map(max, drifts)) <= 1e-5, drifts

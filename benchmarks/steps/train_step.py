"""Images per second of one Fast-SRGAN training step: jaxsr's jitted step against plain torch.

Every contender trains on the same prepared batch, without degradation.
"""

from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.harness.report import run_benchmark
from benchmarks.steps.race_steps import RaceOptions, Workload, race_steps


@dataclass(frozen=True, kw_only=True)
class Options(RaceOptions):
    """Options of the race."""

    phase: Literal["pretrain", "adversarial"] = "pretrain"
    """Phase of the step; the adversarial one has both players and no perceptual loss."""
    width: int = 64
    """Feature channels of the generator."""
    depth: int = 8
    """Blocks of the generator."""
    norm: Literal["instance", "batch", "none"] = "instance"
    """Normalisation of both networks."""
    batch: int = 8
    """Images per step."""
    crop: int = 96
    """High-resolution side in pixels; the input is a quarter of it."""


def workload(options: Options) -> Workload:
    """The published Fast-SRGAN by default."""
    import torch

    from jaxsr.interop.mesh import place_batch
    from jaxsr.models.fast_srgan.config import FastSRGANConfig
    from jaxsr.training.fast_srgan import fast_srgan_objective

    torch.manual_seed(0)
    config = FastSRGANConfig(
        width=options.width,
        depth=options.depth,
        norm=options.norm,
        discriminator_norm=options.norm,
        perceptual_weight=0.0,
        pixel_weight=1.0,
    )
    batch = _batch(options)
    return Workload(
        objective=fast_srgan_objective(config, phases=[options.phase]),
        phase=options.phase,
        exported="generator",
        torch_batch=batch,
        jax_batch=lambda mesh: place_batch(batch, mesh),
    )


def _batch(options: Options) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    rows, side = options.batch, options.crop
    batch = {
        "low": rng.uniform(-1, 1, (rows, 3, side // 4, side // 4)),
        "high": rng.uniform(-1, 1, (rows, 3, side, side)),
    }
    if options.phase == "adversarial":
        for name in ("label_real", "label_fake", "label_generator"):
            batch[name] = rng.uniform(0, 1, (rows, 1, 1, 1))
    return {name: array.astype(np.float32) for name, array in batch.items()}


def measure(options: Options) -> None:
    """Races the step."""
    race_steps("train_step", options, workload)


if __name__ == "__main__":
    run_benchmark(measure, Options)

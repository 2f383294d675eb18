"""Images per second of one Fast-SRGAN training step: jaxsr's jitted step against plain torch.

    python benchmarks/train_step.py [--platform cuda] [--dtype bfloat16] [--phase adversarial]

Every contender trains on the same prepared batch: degradation is left out on both sides. How they
are timed, `_step_race.py` says.
"""

from dataclasses import dataclass
from typing import Any, Literal

from _step_race import RaceOptions, Told, Workload, race_steps


@dataclass(frozen=True, kw_only=True)
class Options(RaceOptions):
    """What to measure."""

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


def workload(told: Told) -> Workload:
    """The published Fast-SRGAN by default."""
    import torch

    from jaxsr.interop.mesh import place_batch
    from jaxsr.models.fast_srgan.config import FastSRGANConfig
    from jaxsr.models.fast_srgan.objective import build_objective

    torch.manual_seed(0)
    config = FastSRGANConfig(
        width=told["width"],
        depth=told["depth"],
        norm=told["norm"],
        discriminator_norm=told["norm"],
        perceptual_weight=0.0,
        pixel_weight=1.0,
    )
    batch = _batch(told)
    return Workload(
        objective=build_objective(config, phases=[told["phase"]]),
        phase=told["phase"],
        exported="generator",
        torch_batch=batch,
        jax_batch=lambda mesh: place_batch(batch, mesh),
    )


def _batch(told: Told) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    rows, side = told["batch"], told["crop"]
    batch = {
        "low": rng.uniform(-1, 1, (rows, 3, side // 4, side // 4)),
        "high": rng.uniform(-1, 1, (rows, 3, side, side)),
    }
    if told["phase"] == "adversarial":
        for name in ("label_real", "label_fake", "label_generator"):
            batch[name] = rng.uniform(0, 1, (rows, 1, 1, 1))
    return {name: array.astype(np.float32) for name, array in batch.items()}


if __name__ == "__main__":
    race_steps("train_step", (__doc__ or "").splitlines()[0], Options, workload)

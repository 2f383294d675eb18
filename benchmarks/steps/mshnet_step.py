"""Images per second of one MSHNet training step: jaxsr's jitted step against plain torch.

jaxsr's step cuts, turns, scales and normalises its images on the device, from a data set that lives
there; torch's contenders get a finished batch.
"""

from dataclasses import dataclass
from typing import Literal

from benchmarks.harness.report import run_benchmark
from benchmarks.steps.race_steps import RaceOptions, Workload, race_steps


@dataclass(frozen=True, kw_only=True)
class Options(RaceOptions):
    """Options of the race."""

    batch: int = 4
    """Images per step."""
    crop: int = 256
    """Side in pixels."""
    augment: Literal["scale", "patch"] = "scale"
    """The paper's rescaling, flip and blur, or patches."""
    rounds: int = 5
    """Turns of each contender."""
    steps: int = 1
    """Steps timed in one turn."""


def workload(options: Options) -> Workload:
    """The main phase, on synthetic scenes."""
    import numpy as np

    from jaxsr.interop.mesh import place_batch, replicated
    from jaxsr.training.mshnet import MSHNetTask
    from jaxsr.training.presets.mshnet import MSHNetRun
    from jaxsr.training.task_run import TaskRun

    task = TaskRun(
        "mshnet",
        MSHNetTask,
        MSHNetRun(
            steps=100,
            warmup_epochs=0,
            batch=options.batch,
            optimizer="adam",
            lr=1e-3,
            base_size=options.crop,
            crop_size=options.crop,
            augment=options.augment,
            scenes=32,
        ),
    )
    images, masks = zip(*(task.task.images.read(i) for i in range(options.batch)), strict=True)

    def on_devices(mesh):
        with task.batches(0, host=0, hosts=1) as batches:
            return place_batch(next(batches), mesh) | dict(task.constants(replicated(mesh)))

    return Workload(
        objective=task.objective,
        phase="main",
        exported=task.exported,
        torch_batch={
            "image": np.stack(images).transpose(0, 3, 1, 2).astype(np.float32) / 255,
            "mask": np.stack(masks)[:, None].astype(np.float32),
        },
        jax_batch=on_devices,
        prepare=task.prepare,
    )


def measure(options: Options) -> None:
    """Races the step."""
    race_steps("mshnet_step", options, workload)


if __name__ == "__main__":
    run_benchmark(measure, Options)

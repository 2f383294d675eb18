"""The same training run with a loop of its own around the step of jaxsr.

python examples/denoise/own_loop.py runs/denoise 8
"""

import sys
from pathlib import Path

import jax
import torch
from in_torch import Denoiser, batch_of
from torch.nn import functional as F

from jaxsr.interop.checkpoint import Checkpoints
from jaxsr.interop.mesh import make_mesh, place, place_batch, select_platform, tree_shardings
from jaxsr.interop.train.objective import Objective, Phase, Player
from jaxsr.interop.train.optimizers import OptimizerConfig, make_optimizer
from jaxsr.interop.train.step import StepConfig, TrainStep, convert, init_state
from jaxsr.interop.weights import export_weights


class Denoising(Objective):
    """The network and its loss, in torch: the lines between `zero_grad` and `backward`."""

    phases = (Phase(name="fit", players=(Player(network="denoiser", loss="loss"),)),)

    def __init__(self) -> None:
        super().__init__()
        self.denoiser = Denoiser()

    def share(self, batch):
        return {"restored": self.denoiser(batch["noisy"])}

    def loss(self, shared, batch):
        return F.mse_loss(shared["restored"], batch["clean"]), {}


def main(out: Path, *, steps: int = 60, devices: int = 1) -> list[float]:
    """Trains, or goes on where `out` stopped; returns the losses of the steps it did."""
    torch.manual_seed(0)
    objective, mesh = Denoising(), make_mesh(devices)
    config = StepConfig()
    adamw = OptimizerConfig(optimizer="adamw", lr=3e-3, weight_decay=1e-2)

    model = convert(objective, config)
    optimizers = {"denoiser": make_optimizer(adamw, steps)}
    step = jax.jit(
        TrainStep(
            model,
            objective.phase("fit"),
            optimizers,
            prepare=lambda batch, key: batch,
            mesh=mesh,
            config=config,
        ),
        donate_argnums=0,
    )
    state = init_state(model, optimizers, exported="denoiser", seed=0, ema=False)
    state = place(state, tree_shardings(state, mesh))

    waiting = []
    with Checkpoints(out / "checkpoints") as checkpoints:
        restored = checkpoints.restore(state)
        first, state = restored if restored is not None else (0, state)
        for number in range(first, steps):
            state, metrics = step(state, place_batch(batch_of(number), mesh))
            waiting.append(metrics["denoiser/loss"])  # not fetched yet: the device runs ahead
            if (number + 1) % 20 == 0:
                checkpoints.save(number + 1, state)
    losses = [float(loss) for loss in waiting]
    weights = {**state.params, **state.buffers}
    network_weights = {name.removeprefix("denoiser."): array for name, array in weights.items()}
    export_weights(out / "denoiser.safetensors", network_weights)
    if losses:
        print(f"loss {losses[0]:.4f} at step {first}, {losses[-1]:.4f} after {steps} steps")
    return losses


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    select_platform("auto", simulated_devices=count)
    main(Path(sys.argv[1]), devices=count)

"""A training script as many people have one: plain PyTorch, one device.

python examples/denoise/in_torch.py
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Denoiser(nn.Module):
    """Takes noise off gray images by predicting it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.PReLU(),
            nn.Conv2d(width, 1, 3, padding=1),
        )

    def forward(self, noisy: Tensor) -> Tensor:
        return noisy - self.body(noisy)


def batch_of(step: int, *, size: int = 16, side: int = 24) -> dict[str, np.ndarray]:
    """Smooth random pictures, and with noise; a step's batch depends on its number alone."""
    rng = np.random.default_rng(step)
    rough = rng.uniform(-1, 1, (size, 1, side + 4, side + 4))
    smooth = sum(rough[..., i : i + side, j : j + side] for i in range(5) for j in range(5)) / 5
    noisy = smooth + 0.5 * rng.standard_normal(smooth.shape)
    return {"clean": smooth.astype(np.float32), "noisy": noisy.astype(np.float32)}


def main(steps: int = 60) -> tuple[list[float], Denoiser]:
    """Trains; returns the losses and the network."""
    torch.manual_seed(0)
    denoiser = Denoiser().train()
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=3e-3, weight_decay=1e-2)
    losses = []
    for step in range(steps):
        batch = {name: torch.from_numpy(array) for name, array in batch_of(step).items()}
        loss = F.mse_loss(denoiser(batch["noisy"]), batch["clean"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {steps} steps")
    return losses, denoiser.eval()


if __name__ == "__main__":
    main()

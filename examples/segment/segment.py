"""Segments ellipses on photographed textures with a network of segmentation_models_pytorch.

cd examples/segment && python -m jaxsr.train segment:Ellipses --mesh 8
"""

import numpy as np
import segmentation_models_pytorch as smp
import torch
from skimage import data
from torch.nn import functional as F
from torch.utils.data import Dataset

import jaxsr


class Scenes(Dataset):
    """An ellipse of one texture on another: scikit-image's brick, grass and gravel.

    Random numbers come from NumPy's global generator, which is seeded for each item and epoch.
    """

    def __init__(self, count: int, side: int) -> None:
        self.count, self.side = count, side
        self.textures = [data.brick(), data.grass(), data.gravel()]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict:
        ground, figure = (
            self._crop(self.textures[i]) for i in np.random.choice(3, 2, replace=False)
        )
        y, x = np.mgrid[: self.side, : self.side] / self.side
        centre, radius = np.random.uniform(0.3, 0.7, 2), np.random.uniform(0.1, 0.3, 2)
        inside = ((y - centre[0]) / radius[0]) ** 2 + ((x - centre[1]) / radius[1]) ** 2 < 1
        image = np.where(inside, figure, ground) / 255 - 0.5
        return {"image": image[None], "mask": inside[None].astype(np.float32)}

    def _crop(self, texture: np.ndarray) -> np.ndarray:
        top, left = np.random.randint(0, len(texture) - self.side, 2)
        return texture[top : top + self.side, left : left + self.side]


class Ellipses(jaxsr.Task):
    """Cross-entropy and Dice together, as is common; IoU over the whole validation data."""

    metric = "iou"
    best = "max"

    class Config(jaxsr.TaskConfig):
        steps = 400
        batch = 8
        lr = 1e-3
        encoder: str = "resnet18"
        """Name in segmentation_models_pytorch."""
        side: int = 96
        """Side of the scenes, in pixels, a multiple of 32."""

    def network(self):
        return smp.Unet(self.config.encoder, encoder_weights=None, in_channels=1)

    def loss(self, network, batch):
        logits, mask = network(batch["image"]), batch["mask"]
        likely = torch.sigmoid(logits)
        both, either = (likely * mask).sum((1, 2, 3)), (likely + mask).sum((1, 2, 3))
        dice = 1 - ((2 * both + 1) / (either + 1)).mean()
        return F.binary_cross_entropy_with_logits(logits, mask) + dice, {"dice": dice}

    def metrics(self, network, batch):
        found, mask = network(batch["image"]) > 0, batch["mask"] > 0.5
        return {"iou": ((found & mask).sum(), (found | mask).sum())}

    def pictures(self, network, batch):
        likely = torch.sigmoid(network(batch["image"]))
        return torch.cat([batch["image"] + 0.5, likely, batch["mask"]], dim=2)

    def train_data(self):
        return Scenes(256, self.config.side)

    def validation_data(self):
        return Scenes(52, self.config.side)

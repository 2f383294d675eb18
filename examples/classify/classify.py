"""Classifies handwritten digits with a model of timm, mixup and label smoothing.

cd examples/classify && python -m jaxsr.train classify:Digits --mesh 8
"""

import numpy as np
import timm
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import Dataset

import jaxsr

TRAINING = 1500
CLASSES = 10


class Pictures(Dataset):
    """Scikit-learn's digits, enlarged to 32 × 32, with labels as probabilities."""

    def __init__(self, part: slice) -> None:
        pictures, labels = load_digits(return_X_y=True)
        images = torch.tensor(pictures[part], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.images = F.interpolate(images, size=32, mode="bilinear") - 0.5
        self.labels = F.one_hot(torch.tensor(labels[part]), CLASSES).float()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict:
        return {"image": self.images[index], "target": self.labels[index]}


class Mixed(Dataset):
    """Mixup (Zhang et al. 2018): each picture with another, in a random share.

    The draws come from NumPy's global generator, which is seeded for each item.
    """

    def __init__(self, pictures: Dataset, alpha: float) -> None:
        self.pictures, self.alpha = pictures, alpha

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> dict:
        first, other = self.pictures[index], self.pictures[np.random.randint(len(self))]
        share = np.random.beta(self.alpha, self.alpha)
        return {name: share * first[name] + (1 - share) * other[name] for name in first}


class Digits(jaxsr.Task):
    """Labels may be probabilities: those of two digits, smoothed."""

    metric = "accuracy"
    best = "max"

    class Config(jaxsr.TaskConfig):
        steps = None
        epochs = 10
        batch = 48
        optimizer = "adamw"
        lr = 2e-3
        weight_decay = 0.05
        schedule = "cosine"
        model: str = "resnet18"
        """Name in timm."""
        mixup: float = 0.2
        """Parameter of the beta distribution that shares are drawn from."""
        smoothing: float = 0.1
        """Part of each label that is spread over all classes."""

    def network(self):
        return timm.create_model(self.config.model, in_chans=1, num_classes=CLASSES)

    def loss(self, network, batch):
        logits = network(batch["image"])
        return F.cross_entropy(logits, batch["target"], label_smoothing=self.config.smoothing)

    def metrics(self, network, batch):
        predicted = network(batch["image"]).argmax(1)
        return {"accuracy": (predicted == batch["target"].argmax(1)).float().mean()}

    def train_data(self):
        return Mixed(Pictures(slice(TRAINING)), self.config.mixup)

    def validation_data(self):
        return Pictures(slice(TRAINING, None))

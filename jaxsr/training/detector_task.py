"""Training detectors: infrared images with target masks in, a network that marks targets out.

This module has the parts that all detectors share: options, data and validation. The best model is
chosen by IoU on images taken from the training list, or on a list that the user gives; never on the
test list. Without a data set it trains on seeded synthetic scenes.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxsr.data.augment import make_augmentation
from jaxsr.data.host_cache import PixelCache
from jaxsr.data.infrared import Infrared, open_training
from jaxsr.data.infrared_items import InfraredItems
from jaxsr.data.input_form import IMAGENET, InputForm
from jaxsr.data.processors import available_cpus
from jaxsr.data.scenes import open_scenes
from jaxsr.errors import counted
from jaxsr.interop.annotations import JsonObject, PyTree
from jaxsr.interop.train.objective import Objective
from jaxsr.training.phases import phases_in_words
from jaxsr.training.presets.detectors import DetectorRun
from jaxsr.training.task import Task
from jaxsr.training.task_data import TaskData
from jaxsr.training.validation import Network, ValidationResult

_PICTURED = 4  # validation images in the preview
_PICTURED_PX = 192
_NATIVE_MULTIPLE_PX = 32  # multiple to which full-size images are padded, as in BasicIRSTD


class DetectorTask(Task):
    """Images with masks, and validation on some of them; subclasses add the networks."""

    exported = "network"
    metric = "iou"
    sample_name = "images"
    best = "max"
    config: Any
    title: str
    """Description of the network for the summary."""
    loss_in_words: str
    """Description of the loss for the summary."""

    def builder(self) -> JsonObject:
        """Returns the builder of the network, for the metadata of its weights."""
        raise NotImplementedError

    def train_data(self) -> TaskData:
        """Checks every image, and holds out a quarter of the scenes or part of the list."""
        config = self.config
        self.images, self.held_out = _open(config)
        gray = config.normalise == "dataset" or config.input_channels == 1 or self.images.gray
        normalisation = IMAGENET
        if config.normalise == "dataset":
            mean, deviation = (value / 255 for value in self.images.gray_statistics())
            normalisation = ((mean,) * 3, (deviation,) * 3)
        self._form = InputForm(
            mean=normalisation[0],
            deviation=normalisation[1],
            gray=gray,
            base=config.base_size,
            evaluate=config.evaluate,
            channels=config.input_channels,
            multiple=math.lcm(config.side_multiple, _NATIVE_MULTIPLE_PX),
        )
        self._augment = make_augmentation(
            crop=config.crop_size,
            base=config.base_size,
            kind=config.augment,
            zoom=config.zoom,
            contrast=config.contrast,
            policy=config.policy,
            normalisation=normalisation,
        )
        items = TaskData.open(
            InfraredItems(self.images, 1 if gray else 3),
            name=self.images.source,
            seed=config.seed,
            threads=available_cpus(),
        )
        # Images in host memory are stored decoded, in slots of their own.
        self._resident = config.cache in ("auto", "device") and items.fits_device(
            config.resident_gb, required=config.cache == "device"
        )
        return dataclasses.replace(items, resident=self._resident)

    def phases(self, objective: Objective) -> Sequence[tuple[str, int]]:
        return self.config.phases(len(self.images))

    def prepare(self, batch: Mapping[str, PyTree], key: jax.Array) -> Mapping[str, PyTree]:
        # Random numbers of a sample depend only on the seed and the sample's number.
        prepared = self._augment(batch, jax.random.key(self.config.seed))
        return prepared | {"image": prepared["image"][:, : self._form.channels]}

    def validate(self, network: Network) -> ValidationResult:
        from jaxsr.detection.detector import Detector
        from jaxsr.metrics.evaluation import evaluate

        detector = Detector(network.runner, self._form, batch=16)
        report = evaluate(detector, self.held_out).figures
        names = ("iou", "niou", "precision", "recall", "f1", "pd", "fa")
        metrics = {name: float(getattr(report, name)) for name in names}
        return ValidationResult(metrics, _picture(detector, self.held_out))

    def files(self) -> dict[str, str]:
        parts = {"train": self.images, "validation": self.held_out}
        return {
            f"{part}/{name}": f"{width}×{height} px, {targets} of targets"
            for part, images in parts.items()
            for name, (height, width), targets in zip(
                images.names, images.sizes.tolist(), images.target_pixels.tolist(), strict=True
            )
        }

    def describe(self) -> JsonObject:
        form = dataclasses.asdict(self._form)
        for name in ("channels", "multiple"):  # earlier versions read files that lack these entries
            if form[name] == getattr(InputForm, name):
                del form[name]
        form |= {name: list(form[name]) for name in ("mean", "deviation")}
        return {**self.builder(), "network": self.exported, "input": form}

    def summary(self, objective: Objective) -> Sequence[str]:
        config = self.config
        weights = sum(p.numel() for p in objective.get_submodule(self.exported).parameters())
        phases = phases_in_words(self.phases(objective))
        where = "on the device" if self._resident else "in host memory"
        return (
            f"{self.title}, {weights:,} parameters, {self.loss_in_words} loss; {phases}; "
            f"batch {config.batch} of {config.crop_size} px over mesh {config.mesh}",
            f"training on {counted(len(self.images), 'image')} of {self.images.source} "
            f"({self.images.split}), kept {where}; validating on {len(self.held_out)} "
            f"({self.held_out.split})",
        )


def _open(config: DetectorRun) -> tuple[Infrared, Infrared]:
    limit = 0 if config.cache == "off" else config.cache_bytes
    cache = PixelCache(limit, scratch_folder=config.scratch)
    if config.data is None:
        options = {"seed": config.seed, "side": config.base_size, "cache": cache}
        count = config.scenes
        return (
            open_scenes(count, **options),
            open_scenes(max(count // 4, 1), split="validation", **options),
        )
    return open_training(
        config.data,
        validation=config.val if config.val is not None else config.val_split,
        lists=config.lists,
        mask_threshold=config.mask_threshold,
        cache=cache,
    )


def _picture(detector: Any, data: Infrared) -> np.ndarray:
    """Draws image, mask and probability of a few validation images, one image per row."""
    import cv2

    rows = []
    step = max(len(data) // _PICTURED, 1)
    for index in range(0, len(data), step)[:_PICTURED]:
        image, mask = data.read(index)
        (likely,) = detector.probabilities([image])
        cells = [image, np.repeat(mask[..., None] * 255, 3, -1)]
        cells.append(np.repeat(np.rint(likely * 255).astype(np.uint8)[..., None], 3, -1))
        side = (_PICTURED_PX, _PICTURED_PX)
        rows.append(np.concatenate([cv2.resize(np.ascontiguousarray(c), side) for c in cells], 1))
    return np.concatenate(rows)

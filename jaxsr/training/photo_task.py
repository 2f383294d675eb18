"""Training super-resolution: photos in, a generator out, judged on photos it never saw.

This module has the parts that all generators share: the options of a run on photos, its data and
its validation. Figures are PSNR and SSIM on MATLAB's Y (BT.601, studio range) of 8-bit images, with
`scale` pixels cut from each border, as super-resolution papers report them. MATLAB's bicubic makes
the low-resolution images. Each figure comes with that of plain bicubic enlargement. LPIPS (AlexNet,
lower is better) joins them if its weights are installed and no photo is too small.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.data.batches import PhotoCrops
from jaxsr.data.device_cache import resident_bytes, resident_photos
from jaxsr.data.photos import open_training_photos
from jaxsr.data.transforms import DetailLoss, enlarge, make_preparation
from jaxsr.data.validation import ValidationPair, validation_pairs
from jaxsr.errors import counted
from jaxsr.interop.annotations import JsonObject, PyTree
from jaxsr.interop.out_of_memory import check_fits
from jaxsr.interop.train.objective import Objective
from jaxsr.metrics.means import mean_figures
from jaxsr.metrics.perceptual import LPIPS_SMALLEST, lpips_if_installed
from jaxsr.models.picture_objective import PictureObjective
from jaxsr.training.phases import phases_in_words
from jaxsr.training.run_folder import RUNS, check_out_apart
from jaxsr.training.task import Task
from jaxsr.training.validation import Network, ValidationResult

_GRID_SIDE = 192  # side in pixels of the centre crops in the validation grid
_GRID_ROWS = 4


class PhotoTask(Task):
    """Photos, and validation on some of them; subclasses add the networks."""

    exported = "generator"
    metric = "psnr_y"
    sample_name = "images"
    best = "max"
    config: Any
    title: str
    """Description of the network for the summary."""
    labels: Mapping[str, tuple[float, float]] | None = None
    """Ranges of the labels that a discriminator's losses draw for each sample."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._pairs: list[ValidationPair] = []
        self._lpips: Callable[[np.ndarray, np.ndarray], float] | None = None

    def networks(self) -> PictureObjective:
        """Builds the networks and losses."""
        raise NotImplementedError

    def builder(self) -> JsonObject:
        """Returns the builder of the network, for the metadata of its weights."""
        raise NotImplementedError

    def train_data(self) -> PhotoCrops:
        """Checks every photo, and holds some out for validation."""
        config = self.config
        self.photos, self.held_out = open_training_photos(
            config.data,
            config.val,
            built_in=config.built_in,
            crop=config.crop,
            val_crop=max(config.picture.scale * max(16, config.side_multiple), 16),
            on_bad_file=config.on_bad_file,
            held_out=config.held_out,
            cache_bytes=config.cache_bytes,
            scratch_folder=config.scratch,
        )
        check_out_apart(config.out or RUNS, data=config.data, val=config.val)
        if config.fractions != (1.0,):
            self.photos = self.photos.at_fractions(config.fractions, crop=config.crop)
        # Memory: uint8 batches ahead of the step, or float32 within it.
        check_fits(
            config.batch * config.crop**2 * 12,
            f"{config.batch} crops of {config.crop} px",
            advice="use a smaller --batch or --crop",
        )
        self._resident = resident_bytes(self.photos) <= config.resident_gb * 2**30
        return PhotoCrops(
            photos=self.photos,
            crop=config.crop,
            seed=config.seed,
            crops_per_photo=config.crops_per_photo,
            form="window" if self._resident else "image",
        )

    def constants(self) -> Mapping[str, PyTree]:
        return {"resident": resident_photos(self.photos)} if self._resident else {}

    def objective(self) -> PictureObjective:
        config, objective = self.config, self.networks()
        detail = DetailLoss(factors=config.detail_factors, noise=config.detail_noise)
        self._degrade = make_preparation(
            crop=config.crop,
            scale=config.picture.scale,
            channels=config.picture.channels,
            swap_colours=config.swap_colours,
            mixup=config.mixup,
            cutmix=config.cutmix,
            cutblur=config.cutblur,
            bicubic=config.bicubic,
            loss_of_detail=detail if config.picture.scale == 1 else None,
            degradation=config.degradation,
            labels=self.labels if objective.discriminator is not None else None,
            value_range=config.intensities,
        )
        return objective

    def phases(self, objective: Objective) -> Sequence[tuple[str, int]]:
        return self.config.phases

    def prepare(self, batch: Mapping[str, PyTree], key: jax.Array) -> Mapping[str, PyTree]:
        # Random numbers of a sample depend only on the seed and the sample's number.
        crops = {name: rows for name, rows in batch.items() if name != "resident"}
        return self._degrade(crops, jax.random.key(self.config.seed), batch.get("resident"))

    def validate(self, network: Network) -> ValidationResult:
        if not self._pairs:
            self._pairs = list(self._load_pairs())
            shortest = min(min(pair.high.shape[2:]) for pair in self._pairs)
            if shortest >= LPIPS_SMALLEST:
                self._lpips = lpips_if_installed()
        scale, intensities = self.config.picture.scale, self.config.intensities
        figures: list[dict[str, float]] = []
        rows: list[np.ndarray] = []
        for pair in self._pairs:
            low, high = _levels(pair.low, intensities), _levels(pair.high, intensities)
            bicubic = _bicubic(low, scale)
            output = _levels(network(pair.low), intensities)
            figures.append(
                {
                    **_judge(output, high, scale),
                    **{f"bicubic_{k}": v for k, v in _judge(bicubic, high, scale).items()},
                }
            )
            if self._lpips:
                for name, image in (("lpips", output), ("bicubic_lpips", bicubic)):
                    figures[-1][name] = self._lpips(*(_channels_last(x) for x in (image, high)))
            if len(rows) < _GRID_ROWS:
                rows.append(_grid_row((low, bicubic, output, high), scale))
        metrics = mean_figures(figures)
        metrics["gain_db"] = metrics["psnr_y"] - metrics["bicubic_psnr_y"]
        return ValidationResult(metrics, _stack(rows))

    def _load_pairs(self) -> Iterator[ValidationPair]:
        return validation_pairs(
            self.held_out,
            self.config.picture.scale,
            channels=self.config.picture.channels,
            longest_px=self.config.validation_px,
            multiple=self.config.side_multiple,
            value_range=self.config.intensities,
            degradation=self.config.degradation,
        )

    def files(self) -> dict[str, str]:
        parts = {"train": self.photos, "validation": self.held_out}
        return {
            f"{part}/{name}": f"{path.stat().st_size} bytes"
            for part, photos in parts.items()
            for name, path in zip(photos.names, photos.paths, strict=True)
        }

    def describe(self) -> JsonObject:
        return {
            **self.builder(),
            "network": self.exported,
            # Lists the training photos, so that an evaluation can leave them out.
            "held_out": self.held_out.names,
        }

    def summary(self, objective: Objective) -> Sequence[str]:
        scale = self.config.picture.scale
        weights = sum(p.numel() for p in objective.get_submodule(self.exported).parameters())
        return (
            f"{self.title} ×{scale}, {weights:,} parameters; "
            f"{phases_in_words(self.config.phases)}; "
            f"batch {self.config.batch} of {self.config.crop} px over mesh {self.config.mesh}",
            f"training on {counted(len(set(self.photos.paths)), 'photo')} from "
            f"{self.photos.source}, validating on {len(self.held_out)} held out; "
            f"PSNR and SSIM on MATLAB's Y, {scale} px border cut",
        )


def _levels(images: np.ndarray, intensities: tuple[float, float]) -> np.ndarray:
    """Converts black to white into uint8, rounded."""
    black, white = intensities
    levels = (jnp.asarray(images) - black) * (255 / (white - black))
    levels = jnp.clip(jnp.round(levels), 0, 255)
    return np.asarray(levels.astype(jnp.uint8))  # in XLA, which casts NaN without a warning


def _channels_last(images: np.ndarray) -> np.ndarray:
    return np.moveaxis(images[0], 0, -1)


def _bicubic(low: np.ndarray, scale: int) -> np.ndarray:
    """Enlarges with MATLAB's bicubic, as papers do; at scale 1 returns the input itself."""
    return np.asarray(enlarge(jnp.asarray(low), scale, convention="matlab")) if scale > 1 else low


def _judge(image: np.ndarray, truth: np.ndarray, scale: int) -> dict[str, float]:
    from jaxsr.ops.quality import psnr, ssim

    luma = "matlab" if image.shape[1] == 3 else None
    options = {"luma": luma, "crop_border": scale, "axes": (-2, -1), "channel": -3}
    return {
        "psnr_y": float(psnr(image, truth, **options)[0]),
        "ssim_y": float(ssim(image, truth, **options)[0]),
    }


def _grid_row(pictures: Sequence[np.ndarray], scale: int) -> np.ndarray:
    """Joins input (pixels enlarged), bicubic, output and truth side by side, centre-cropped."""
    low, *rest = pictures
    low = low.repeat(scale, axis=2).repeat(scale, axis=3)
    cells = []
    for picture in (low, *rest):
        height, width = picture.shape[2:]
        side = min(_GRID_SIDE, height, width)
        top, left = (height - side) // 2, (width - side) // 2
        cell = picture[0, :, top : top + side, left : left + side].transpose(1, 2, 0)
        cells.append(np.broadcast_to(cell, (side, side, 3)))
    return np.concatenate(cells, axis=1)


def _stack(rows: Sequence[np.ndarray]) -> np.ndarray:
    width = max(row.shape[1] for row in rows)
    return np.concatenate(
        [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0))) for row in rows]
    )

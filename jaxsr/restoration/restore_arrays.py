"""Restores images that are in memory, without touching the disk."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from jaxsr.errors import InputError, InputTypeError, MissingFileError
from jaxsr.restoration import colour
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import RestorationModel
from jaxsr.restoration.notes import Notes
from jaxsr.restoration.pictures import (
    CHANNELS,
    Kind,
    Picture,
    PictureError,
    read_picture,
    upright,
)
from jaxsr.restoration.pipeline import Work
from jaxsr.restoration.restorer import make_restorer
from jaxsr.runtime.runner import Runner

log = logging.getLogger(__name__)

_KINDS: dict[int, Kind] = {1: "gray", 2: "gray-alpha", 3: "rgb", 4: "rgb-alpha"}
_PILLOW: dict[str, Kind] = {
    "L": "gray", "LA": "gray-alpha", "RGB": "rgb", "RGBA": "rgb-alpha", "CMYK": "cmyk"
}  # fmt: skip


def as_picture(image: Any, index: int) -> Picture:
    """Converts a caller's array, Pillow image or path to a `Picture`.

    Raises:
      TypeError: not an array, Pillow image or path, or samples of another type.
      FileNotFoundError: there is no file at the path.
      ValueError: a shape that is not an image's, or a file that cannot be read.
    """
    if isinstance(image, str | Path):
        if not Path(image).is_file():
            raise MissingFileError(f"no file {image}; give the path of an image")
        try:
            return _as_shown(read_picture(Path(image)))
        except PictureError as error:
            raise InputError(f"{image}: {error}") from error
    if isinstance(image, Image.Image):
        kind = _PILLOW.get(image.mode)
        if kind is None:
            raise InputError(
                f"image {index} has Pillow mode {image.mode}; convert it to one of "
                f"{', '.join(_PILLOW)}"
            )
        pixels = np.asarray(image)
        return Picture(pixels=pixels.reshape(*pixels.shape[:2], CHANNELS[kind]), kind=kind)
    if not isinstance(image, np.ndarray):
        raise InputTypeError(
            f"image {index} has type {type(image).__name__}; give NumPy arrays, Pillow images or "
            "paths"
        )
    if image.dtype not in (np.uint8, np.uint16):
        raise InputTypeError(
            f"image {index} has dtype {image.dtype}; give uint8 (0…255) or uint16 (0…65535) samples"
        )
    pixels = image[..., None] if image.ndim == 2 else image
    if pixels.ndim != 3 or pixels.shape[2] not in _KINDS or 0 in pixels.shape:
        raise InputError(
            f"image {index} has shape {image.shape}; give (height, width) or "
            "(height, width, 1 to 4)"
        )
    return Picture(pixels=pixels, kind=_KINDS[pixels.shape[2]])


def _as_shown(picture: Picture) -> Picture:
    """A file's image upright, and RGB if it is CMYK: an array has no notes that say so."""
    pixels, kind = upright(picture.pixels, picture.notes.orientation), picture.kind
    if kind == "cmyk":  # without its profile, as in `jaxsr.data.decode`
        unit = 1 - colour.as_unit(pixels)
        pixels, kind = colour.as_samples(unit[..., :3] * unit[..., 3:], pixels.dtype), "rgb"
    notes = Notes(format=picture.notes.format, lossless=picture.notes.lossless)
    return Picture(pixels=np.ascontiguousarray(pixels), kind=kind, notes=notes)


class ArraySink:
    """Collects the rows of one result; `name` stands in the error of an image that fails."""

    def __init__(self, name: str = "image") -> None:
        self._name = name
        self._rows: list[np.ndarray] = []
        self._error: Exception | None = None

    def write(self, rows: np.ndarray) -> None:
        self._rows.append(rows)

    def finish(self) -> None:
        self._rows = [np.concatenate(self._rows)] if len(self._rows) > 1 else self._rows

    def fail(self, error: Exception) -> None:
        self._error = error

    @property
    def result(self) -> np.ndarray:
        """The restored samples, (height, width, channels).

        Raises:
          PictureError: the image could not be restored.
        """
        if self._error is not None:
            raise PictureError(f"{self._name}: {self._error}") from self._error
        return self._rows[0]


def restore_arrays(
    pictures: Sequence[Picture],
    model: RestorationModel,
    config: RestoreConfig,
    runner: Runner | None = None,
) -> list[np.ndarray]:
    """The restored samples of each image, (height, width, channels), or (height, width) for gray.

    Raises:
      ValueError: an image could not be restored.
    """
    sizes = {picture.pixels.shape[:2] for picture in pictures}
    restorer, _, tiler = make_restorer(
        model, config, sizes=sizes, alone=len(pictures) == 1, runner=runner
    )
    if tiler.note:
        log.warning(tiler.note)
    sinks = [ArraySink(f"image {index}") for index in range(len(pictures))]
    restorer.run(
        Work(pixels=picture.pixels, kind=picture.kind, sink=sink)
        for picture, sink in zip(pictures, sinks, strict=True)
    )
    results = [sink.result for sink in sinks]
    return [result[..., 0] if result.shape[-1] == 1 else result for result in results]

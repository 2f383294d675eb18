"""A detector over images of any sizes, a full batch at a time: images in, logits out.

Images of many sizes share a few compiled programs where the network takes them on one canvas, as
MSHNet does; another network needs one for each size. `jaxsr.data.input_form` says how images are
prepared. A weights file that jaxsr exported says how it was trained; for others the paper's way is
assumed.
"""

import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8

from jaxsr.data.batch_plan import Size, Together, plan
from jaxsr.data.input_form import Form, InputForm, probability_of, resize, scaled
from jaxsr.errors import InputError
from jaxsr.models.load import load_model
from jaxsr.models.registry import LoadedModel
from jaxsr.runtime.activity import set_done
from jaxsr.runtime.open_runner import open_runner
from jaxsr.runtime.options import ComputeOptions, LaneFolding
from jaxsr.runtime.runner import Runner

log = logging.getLogger(__name__)

_DEFAULTS = ComputeOptions()

_PROGRAM_PX = {"cpu": 1 << 20}
_PROGRAM_PX_ELSEWHERE = 1 << 26
"""Pixels computed in the time of compiling a program, roughly: seconds on either."""


class Detector:
    """Runs a detector's network over images of any sizes."""

    def __init__(
        self,
        runner: Runner,
        form: InputForm | None = None,
        *,
        batch: int = 8,
        scales: Sequence[float] = (1.0,),
    ) -> None:
        """Args:
        runner: of the network, (n, 3, H, W) to logits (n, 1, H, W). One that takes `size_B2` as
          `MSHNet.forward` does gets images of several sizes together, where it compiles.
        form: the form of the images that the network was trained on. Default: the paper's way.
        batch: images at once, a multiple of the runner's devices.
        scales: sizes at which the network sees each image, as factors; the mean of the
          probabilities counts.
        """
        self.form, self.batch, self._scales = form or InputForm(), batch, scales
        # torch is eager: a new size costs nothing, a larger canvas would.
        takes_sizes = "size_B2" in inspect.signature(runner.network.forward).parameters
        self._runner, self._shared = runner, runner.compiles and takes_sizes
        self._program_px = _PROGRAM_PX.get(runner.platform, _PROGRAM_PX_ELSEWHERE)

    def plan(self, sizes: Iterable[Size]) -> list[Together]:
        """Which images to run together, from all their heights and widths.

        Batches are full where sizes allow, and their shapes few.
        """
        return plan(
            [self.form.size(size) for size in sizes],
            batch=self.batch,
            multiple=self._runner.devices,
            shared=self._shared,
            program_px=self._program_px,
        )

    def start(
        self, together: Together, images: Sequence[UInt8[np.ndarray, "_ _ 3"]]
    ) -> Callable[[], list[Float32[np.ndarray, "_ _"]]]:
        """Starts one batch of a plan; calling the result waits for its logits, in order.

        Args:
          together: the batch.
          images: the images that it names.

        Raises:
          InputError: from the function that it returns: the network gives no such logits.
        """
        if [*self._scales] == [1]:
            return self._start(together, images, self.form)
        parts = [self._at(scale, together, images) for scale in self._scales]
        return lambda: [_mean(maps) for maps in zip(*(part() for part in parts), strict=True)]

    def _at(
        self, scale: float, together: Together, images: Sequence[UInt8[np.ndarray, "_ _ 3"]]
    ) -> Callable[[], list[Float32[np.ndarray, "_ _"]]]:
        """`start` of images at another scale; the logits are as large as those of scale 1."""
        form, is_native = self.form.at(scale), self.form.evaluate == "native"
        side = self.form.base
        sides: list[Size] = [image.shape[:2] if is_native else (side, side) for image in images]
        if is_native:
            images = [resize(image, scaled(image.shape[:2], scale)) for image in images]
        if is_native and self._shared:  # few programs: a canvas for each of the plan's
            canvas = form.size(scaled(together.canvas, scale))
            numbers = tuple(range(len(images)))
            parts = [replace(together, canvas=canvas, numbers=numbers, mixed=True)]
        else:
            sizes = [form.size(image.shape[:2]) for image in images]
            parts = plan(sizes, batch=together.rows, multiple=self._runner.devices)
        started = [self._start(part, [images[n] for n in part.numbers], form) for part in parts]

        def logits() -> list[np.ndarray]:
            maps = {}
            for part, collect in zip(parts, started, strict=True):
                maps |= dict(zip(part.numbers, collect(), strict=True))
            return [resize(maps[number], side) for number, side in enumerate(sides)]

        return logits

    def _start(
        self,
        together: Together,
        images: Sequence[UInt8[np.ndarray, "_ _ 3"]],
        form: InputForm,
    ) -> Callable[[], list[Float32[np.ndarray, "_ _"]]]:
        prepared = [form.prepare(image) for image in images]
        # Rows without an image repeat the first.
        planes = np.zeros((together.rows, len(prepared[0]), *together.canvas), np.float32)
        sizes = np.zeros((together.rows, 2), np.int32)
        for row in range(together.rows):
            picture = prepared[row if row < len(prepared) else 0]
            height, width = picture.shape[1:]
            planes[row, :, :height, :width], sizes[row] = picture, (height, width)
        named = {"size_B2": sizes} if together.mixed else {}
        collect = self._runner.submit(planes, **named)

        def logits() -> list[np.ndarray]:
            maps, expected = np.asarray(collect()), (together.rows, 1, *together.canvas)
            if maps.shape != expected:
                raise InputError(
                    f"the network gives {maps.shape} for images {planes.shape}, not logits "
                    f"{expected}; give a detector (networks that return images are for "
                    "python -m jaxsr.restore)"
                )
            batch = maps[:, 0]
            if form.evaluate == "base":
                return list(batch[: len(images)])
            return [
                batch[row, : image.shape[0], : image.shape[1]] for row, image in enumerate(images)
            ]

        return logits

    def run(
        self, batches: Iterable[Together], read: Callable[[int], Any]
    ) -> Iterator[tuple[Together, list, list[np.ndarray]]]:
        """Runs a plan: each batch, the images read for it, and its logits.

        The next batch is under way while the caller works on one.

        Args:
          batches: result of `plan`.
          read: the image of a number, or a tuple that begins with it.
        """
        done = 0
        started: deque[tuple[Together, list, Callable[[], list[np.ndarray]]]] = deque()
        for together in batches:
            samples = [read(number) for number in together.numbers]
            images = [s[0] if isinstance(s, tuple) else s for s in samples]
            started.append((together, samples, self.start(together, images)))
            if len(started) > 1:
                earlier, earlier_samples, logits = started.popleft()
                yield earlier, earlier_samples, logits()
                done += len(earlier.numbers)
                set_done(done)
        for together, samples, logits in started:
            yield together, samples, logits()

    def logits(
        self, images: Sequence[UInt8[np.ndarray, "_ _ 3"]]
    ) -> Iterator[Float32[np.ndarray, "_ _"]]:
        """Logits of each image, in order, at the size that `form` says."""
        results: dict[int, np.ndarray] = {}
        batches = self.plan(image.shape[:2] for image in images)
        for together, _, logits in self.run(batches, images.__getitem__):
            results |= dict(zip(together.numbers, logits, strict=True))
        yield from (results[number] for number in range(len(images)))

    def probabilities(
        self, images: Sequence[UInt8[np.ndarray, "_ _ 3"]]
    ) -> Iterator[Float32[np.ndarray, "_ _"]]:
        """Probability of a target at each of the images' own pixels, 0…1."""
        for image, logits in zip(images, self.logits(images), strict=True):
            yield self.form.probability(image, logits)


def _mean(maps: Sequence[Float32[np.ndarray, "h w"]]) -> Float32[np.ndarray, "h w"]:
    """The logits of the mean probability."""
    likely = np.mean([probability_of(logits) for logits in maps], axis=0, dtype=np.float64)
    likely = np.clip(likely, 1e-9, 1 - 1e-9)
    return np.log(likely / (1 - likely)).astype(np.float32)


def load_detector(
    model: str | Path | None,
    *,
    weights: Path | None = None,
    model_options: Mapping[str, Any] | None = None,
    trust_builder: bool = False,
    evaluate: Form | None = None,
    base: int | None = None,
    options: ComputeOptions = _DEFAULTS,
    batch: int = 8,
    lane_folding: LaneFolding = "auto",
    scales: Sequence[float] = (1.0,),
) -> Detector:
    """The detector that a user names.

    Args:
      model, weights, model_options, trust_builder: see `jaxsr.models.load.load_model`.
      evaluate, base: override the weights file's metadata.
      options: engine and device.
      batch: images at once, a multiple of the mesh's devices.
      lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.
      scales: see `Detector`.

    Raises:
      FileNotFoundError, ValueError: see `load_model`.
      InputError: the batch cannot be split over the mesh.
      DeviceError: the machine does not have the devices.
    """
    options.check_batch(batch)
    loaded = load_model(
        model,
        kind="detector",
        weights=weights,
        options=model_options,
        trust_builder=trust_builder,
    )
    if (loaded.family, (loaded.metadata or {}).get("phase")) == ("mshnet", "warmup"):
        log.warning(
            "%s: its weights are of the warm-up, before the fusion of the heads is trained, so few "
            "targets are found; give weights of a later step",
            weights or model,
        )
    runner = open_runner(loaded.network, options, lane_folding=lane_folding)
    form = form_of(loaded, evaluate=evaluate, base=base)
    return Detector(runner, form, batch=batch, scales=scales)


def form_of(loaded: LoadedModel, *, evaluate: Form | None, base: int | None) -> InputForm:
    """Form of the input that a network was trained on; see `load_detector`."""
    form = InputForm.from_description(loaded.metadata or {})
    return replace(
        form, evaluate=evaluate or form.evaluate, base=form.base if base is None else base
    )

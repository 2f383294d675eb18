"""Runs a network over pictures of any sizes, a full batch at a time.

Pictures of many sizes share a few compiled programs where the network takes them on one canvas, as
MSHNet does; another network needs one for each size.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8

from jaxsr.data.batch_plan import Size, Together, plan
from jaxsr.data.input_form import InputForm
from jaxsr.errors import InputError

Collect = Callable[[], np.ndarray]
"""Waits for a batch's logits."""

PROGRAM_PX = {"cpu": 1 << 20}
PROGRAM_PX_ELSEWHERE = 1 << 26
"""Pixels computed in the time of compiling a program, roughly: seconds on either."""


def submit_function(network: Callable[..., np.ndarray]) -> Callable[..., Collect]:
    """A function of arrays as a `submit` that computes when the result is collected."""
    return lambda *inputs, **named: lambda: network(*inputs, **named)


class BatchedNetwork:
    """A network function over pictures of any sizes."""

    def __init__(
        self,
        submit: Callable[..., Collect],
        form: InputForm | None = None,
        *,
        batch: int = 8,
        multiple: int = 1,
        shared: bool = False,
        program_px: int = PROGRAM_PX["cpu"],
    ) -> None:
        """Args:
        submit: starts a batch, float32 (n, 3, H, W), and returns what waits for its logits,
          (n, 1, H, W); `submit_function` makes one of a plain function.
        form: what the network was trained to see. Default: the paper's way.
        batch: pictures at once, a multiple of `multiple`.
        multiple: devices that a batch is split over.
        shared: whether `submit` takes `size_B2` as `MSHNet.forward` does, so that pictures of
          several sizes go together.
        program_px: pixels computed in the time of compiling a program.
        """
        self.form, self.batch = form or InputForm(), batch
        self._submit, self._multiple = submit, multiple
        self._shared, self._program_px = shared, program_px

    def plan(self, sizes: Iterable[Size]) -> list[Together]:
        """Which pictures to run together, from all their heights and widths.

        Batches are full where sizes allow, and their shapes few.
        """
        return plan(
            [self.form.size(size) for size in sizes],
            batch=self.batch,
            multiple=self._multiple,
            shared=self._shared,
            program_px=self._program_px,
        )

    def start(
        self, together: Together, images: Sequence[UInt8[np.ndarray, "_ _ 3"]]
    ) -> Callable[[], list[Float32[np.ndarray, "_ _"]]]:
        """Starts one batch of a plan; calling the result waits for its logits, in order.

        Args:
          together: the batch.
          images: the pictures that it names.

        Raises:
          InputError: from the function that it returns: the network gives no such logits.
        """
        prepared = [self.form.prepare(image) for image in images]
        # Rows without a picture repeat the first.
        planes = np.zeros((together.rows, len(prepared[0]), *together.canvas), np.float32)
        sizes = np.zeros((together.rows, 2), np.int32)
        for row in range(together.rows):
            picture = prepared[row if row < len(prepared) else 0]
            height, width = picture.shape[1:]
            planes[row, :, :height, :width], sizes[row] = picture, (height, width)
        named = {"size_B2": sizes} if together.mixed else {}
        collect = self._submit(planes, **named)

        def logits() -> list[np.ndarray]:
            maps, expected = np.asarray(collect()), (together.rows, 1, *together.canvas)
            if maps.shape != expected:
                raise InputError(
                    f"the network gives {maps.shape} for pictures {planes.shape}, not logits "
                    f"{expected}; give a detector (networks that return pictures are for "
                    "python -m jaxsr.restore)"
                )
            batch = maps[:, 0]
            if self.form.evaluate == "base":
                return list(batch[: len(images)])
            return [
                batch[row, : image.shape[0], : image.shape[1]] for row, image in enumerate(images)
            ]

        return logits

    def run(
        self, batches: Iterable[Together], read: Callable[[int], Any]
    ) -> Iterator[tuple[Together, list, list[np.ndarray]]]:
        """Runs a plan: each batch, what was read for it, and its logits.

        The next batch is under way while the caller works on one.

        Args:
          batches: what `plan` returned.
          read: the picture of a number, or a tuple that begins with it.
        """
        started: deque[tuple[Together, list, Callable[[], list[np.ndarray]]]] = deque()
        for together in batches:
            samples = [read(number) for number in together.numbers]
            images = [s[0] if isinstance(s, tuple) else s for s in samples]
            started.append((together, samples, self.start(together, images)))
            if len(started) > 1:
                earlier, earlier_samples, logits = started.popleft()
                yield earlier, earlier_samples, logits()
        for together, samples, logits in started:
            yield together, samples, logits()

    def logits(
        self, images: Sequence[UInt8[np.ndarray, "_ _ 3"]]
    ) -> Iterator[Float32[np.ndarray, "_ _"]]:
        """Logits of each picture, in order, at the size that `form` says."""
        results: dict[int, np.ndarray] = {}
        batches = self.plan(image.shape[:2] for image in images)
        for together, _, logits in self.run(batches, images.__getitem__):
            results |= dict(zip(together.numbers, logits, strict=True))
        yield from (results[number] for number in range(len(images)))

    def probabilities(
        self, images: Sequence[UInt8[np.ndarray, "_ _ 3"]]
    ) -> Iterator[Float32[np.ndarray, "_ _"]]:
        """Probability of a target at each of the pictures' own pixels, 0…1."""
        for image, logits in zip(images, self.logits(images), strict=True):
            yield self.form.probability(image, logits)

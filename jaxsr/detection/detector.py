"""A trained MSHNet and what its inputs must look like: pictures in, logits out.

Pictures are uint8 (height, width, 3), logits float32 (height, width), in one of two forms:

- `base`: the picture resized to base × base (Pillow's bilinear, as the papers evaluate), the logits
  of that size;
- `native`: the picture as it is, black added at the right and bottom up to a multiple of 32 pixels
  and cut off again, as BasicIRSTD does. Pictures of many sizes share a few compiled programs where
  the network takes them on one canvas, as MSHNet does; another network needs one for each size.

A weights file that jaxsr exported says how it was trained; for others the paper's way is assumed.
"""

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from jaxsr.data.infrared import to_gray
from jaxsr.detection.batching import Size, Together, plan
from jaxsr.errors import InputError

Form = Literal["base", "native"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)

_STEP_PX = 32
_PROGRAM_PX = {"cpu": 1 << 20}
_PROGRAM_PX_ELSEWHERE = 1 << 26
"""Pixels computed in the time of compiling a program, roughly: seconds on either."""

Collect = Callable[[], np.ndarray]
"""Waits for a batch's logits."""


@dataclass(frozen=True, kw_only=True)
class InputForm:
    """What a network was trained to see."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    """Mean of each channel, of pictures in 0…1."""
    deviation: tuple[float, ...] = IMAGENET_DEVIATION
    """Standard deviation of each channel."""
    gray: bool = False
    """Whether colours become luma first, in all three channels."""
    base: int = 256
    """Side in pixels that pictures are resized to."""
    evaluate: Form = "base"
    """Whether pictures are resized, or taken as they are."""

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.deviation) != 3:
            raise InputError(
                f"mean and deviation need 3 channels, got {self.mean} and {self.deviation}"
            )
        if not all(value > 0 for value in self.deviation):
            raise InputError(f"deviation must be positive, got {self.deviation}")
        if self.base < 16 or self.base % 16:
            raise InputError(f"base must be a positive multiple of 16 px, got {self.base}")
        if self.evaluate not in ("base", "native"):
            raise InputError(f"evaluate must be 'base' or 'native', got {self.evaluate!r}")

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "InputForm":
        """The form in a weights file's metadata, the paper's where it says none."""
        found = dict(description.get("input", {}))
        for name in ("mean", "deviation"):
            if name in found:
                found[name] = tuple(found[name])
        return cls(**found)

    def prepare(self, image: UInt8[np.ndarray, "h w 3"]) -> Float32[np.ndarray, "3 H W"]:
        """A picture as the network wants it."""
        height, width = image.shape[:2]
        if self.gray:
            image = np.repeat(to_gray(image)[..., None], 3, axis=-1)
        if self.evaluate == "base":
            image = resize(image, (self.base, self.base))
        levels = image.astype(np.float32) / 255
        levels = (levels - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)
        planes = np.ascontiguousarray(levels.transpose(2, 0, 1))
        rows, columns = self.size((height, width))
        if planes.shape[1:] == (rows, columns):
            return planes
        return np.pad(planes, ((0, 0), (0, rows - height), (0, columns - width)))

    def size(self, size: Size) -> Size:
        """Height and width that `prepare` gives a picture of this size."""
        if self.evaluate == "base":
            return self.base, self.base
        return size[0] + -size[0] % _STEP_PX, size[1] + -size[1] % _STEP_PX

    def mask(self, mask: UInt8[np.ndarray, "h w"]) -> UInt8[np.ndarray, "H W"]:
        """A mask at the size of the logits: nearest where pictures are resized."""
        if self.evaluate == "native":
            return mask
        nearest = Image.Resampling.NEAREST
        return np.asarray(Image.fromarray(mask).resize((self.base, self.base), nearest))


class Detector:
    """Runs a network over pictures of any sizes, a full batch at a time."""

    def __init__(
        self,
        network: Any,
        form: InputForm | None = None,
        *,
        engine: Literal["jax", "torch"] = "jax",
        mesh: int = 1,
        batch: int = 8,
        shared: bool = False,
        lane_folding: Literal["auto", "on", "off"] = "auto",
    ) -> None:
        """Args:
          network: the torch module, or a function from float32 (n, 3, H, W) to logits (n, 1, H, W).
          form: what it was trained to see. Default: the paper's way.
          engine: `jax` compiles a program for each shape, `torch` runs eagerly on the CPU.
          mesh: devices that a batch is split over.
          batch: pictures at once, a multiple of `mesh`.
          shared: whether a function takes `size_B2` as `MSHNet.forward` does, so that pictures of
            several sizes go together. Of a module that is known.
          lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.

        Raises:
          ValueError: the batch cannot be split over the mesh.
        """
        if batch < 1 or mesh < 1 or batch % mesh:
            raise InputError(f"batch={batch} must be a positive multiple of mesh={mesh}")
        if engine not in ("jax", "torch"):
            raise InputError(f"engine must be 'jax' or 'torch', got {engine!r}")
        self.form, self.batch = form or InputForm(), batch
        self._mesh, self._shared, self._program_px = mesh, shared, _PROGRAM_PX["cpu"]
        if not hasattr(network, "state_dict"):
            self._submit = lambda *inputs, **named: lambda: network(*inputs, **named)
        elif engine == "torch":
            # Eager: a new size costs nothing, a larger canvas would.
            self._submit, self._shared = _torch_runner(network), False
        else:
            import jax

            self._submit = _jax_runner(network, mesh, lane_folding)
            self._shared = "size_B2" in inspect.signature(network.forward).parameters
            self._program_px = _PROGRAM_PX.get(jax.default_backend(), _PROGRAM_PX_ELSEWHERE)

    def plan(self, sizes: Iterable[Size]) -> list[Together]:
        """Which pictures to run together, from all their heights and widths.

        Batches are full where sizes allow, and their shapes few.
        """
        return plan(
            [self.form.size(size) for size in sizes],
            batch=self.batch,
            multiple=self._mesh,
            shared=self._shared,
            program_px=self._program_px,
        )

    def start(
        self, together: Together, images: Sequence[UInt8[np.ndarray, "h w 3"]]
    ) -> Callable[[], list[Float32[np.ndarray, "H W"]]]:
        """Starts one batch of a plan; calling the result waits for its logits, in order.

        Args:
          together: the batch.
          images: the pictures that it names.
        """
        prepared = [self.form.prepare(image) for image in images]
        # Rows without a picture repeat the first.
        planes = np.zeros((together.rows, 3, *together.canvas), np.float32)
        sizes = np.zeros((together.rows, 2), np.int32)
        for row in range(together.rows):
            picture = prepared[row if row < len(prepared) else 0]
            height, width = picture.shape[1:]
            planes[row, :, :height, :width], sizes[row] = picture, (height, width)
        named = {"size_B2": sizes} if together.mixed else {}
        collect = self._submit(planes, **named)

        def logits() -> list[np.ndarray]:
            whole = np.asarray(collect())[:, 0]
            if self.form.evaluate == "base":
                return list(whole[: len(images)])
            return [
                whole[row, : image.shape[0], : image.shape[1]] for row, image in enumerate(images)
            ]

        return logits

    def run(
        self, batches: Iterable[Together], read: Callable[[int], Any]
    ) -> Iterator[tuple[Together, list[Any], list[np.ndarray]]]:
        """Runs a plan: each batch, what was read for it, and its logits.

        The next batch is under way while the caller works on one.

        Args:
          batches: what `plan` returned.
          read: the picture of a number, or a tuple that begins with it.
        """
        ahead: deque[tuple[Together, list[Any], Callable[[], list[np.ndarray]]]] = deque()
        for together in batches:
            given = [read(number) for number in together.numbers]
            images = [one[0] if isinstance(one, tuple) else one for one in given]
            ahead.append((together, given, self.start(together, images)))
            if len(ahead) > 1:
                before, read_for_it, collect = ahead.popleft()
                yield before, read_for_it, collect()
        for together, given, collect in ahead:
            yield together, given, collect()

    def logits(
        self, images: Sequence[UInt8[np.ndarray, "h w 3"]]
    ) -> Iterator[Float32[np.ndarray, "H W"]]:
        """Logits of each picture, in order, at the size that `form` says."""
        results: dict[int, np.ndarray] = {}
        batches = self.plan(image.shape[:2] for image in images)
        for together, _, logits in self.run(batches, images.__getitem__):
            results |= dict(zip(together.numbers, logits, strict=True))
        yield from (results[number] for number in range(len(images)))

    def probabilities(
        self, images: Sequence[UInt8[np.ndarray, "h w 3"]]
    ) -> Iterator[Float32[np.ndarray, "h w"]]:
        """Probability of a target at each of the pictures' own pixels, 0…1."""
        for image, logits in zip(images, self.logits(images), strict=True):
            yield self.probability(image, logits)

    def probability(
        self, image: UInt8[np.ndarray, "h w 3"], logits: Float32[np.ndarray, "H W"]
    ) -> Float32[np.ndarray, "h w"]:
        """Probability of a target at each of a picture's own pixels, from its logits."""
        # Half of the hyperbolic tangent does not overflow as an exponential does.
        likely = (0.5 + 0.5 * np.tanh(0.5 * logits)).astype(np.float32)
        if self.form.evaluate == "base":
            size = (image.shape[1], image.shape[0])
            resized = Image.fromarray(likely).resize(size, Image.Resampling.BILINEAR)
            likely = np.asarray(resized)
        return likely


def load_detector(
    weights: Path,
    *,
    engine: Literal["jax", "torch"] = "jax",
    mesh: int = 1,
    batch: int = 8,
    lane_folding: Literal["auto", "on", "off"] = "auto",
    evaluate: Form | None = None,
    base: int | None = None,
) -> Detector:
    """The detector of a weights file.

    Args:
      weights: a file that jaxsr exported, or a published checkpoint (see `load_mshnet`).
      engine, mesh, batch, lane_folding: see `Detector`.
      evaluate: takes the place of what the file says.
      base: takes the place of what the file says.

    Raises:
      FileNotFoundError, ValueError: the file is missing, or not an MSHNet's.
    """
    from dataclasses import replace

    from jaxsr.models.mshnet.checkpoint import load_mshnet

    network = load_mshnet(weights)
    form = InputForm.from_description(describe_file(weights))
    if evaluate is not None:
        form = replace(form, evaluate=evaluate)
    if base is not None:
        form = replace(form, base=base)
    return Detector(network, form, engine=engine, mesh=mesh, batch=batch, lane_folding=lane_folding)


def describe_file(weights: Path) -> dict[str, Any]:
    """What a weights file says of itself; nothing for files that jaxsr did not write."""
    if weights.suffix != ".safetensors":
        return {}
    from jaxsr.interop.weights import read_weights

    described = read_weights(weights)[1]
    family = described.get("family", "mshnet")
    if family != "mshnet":
        raise InputError(f"{weights} holds a {family}, not an mshnet; give a detector's weights")
    return described


def resize(image: UInt8[np.ndarray, "h w 3"], size: tuple[int, int]) -> UInt8[np.ndarray, "H W 3"]:
    """Pillow's bilinear resize to (height, width)."""
    if image.shape[:2] == size:
        return image
    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def _jax_runner(
    network: Any, mesh: int, lane_folding: Literal["auto", "on", "off"]
) -> Callable[..., Collect]:
    import jax

    from jaxsr.interop import mesh as meshes
    from jaxsr.interop.folding.policy import choose_folding
    from jaxsr.interop.module import to_jax

    devices = meshes.make_mesh(mesh)
    folding = choose_folding(lane_folding, devices.devices.flat[0])
    model = to_jax(network.eval(), lane_folding=folding)
    state = jax.device_put((model.params, model.buffers), meshes.replicated(devices))
    rows = meshes.batch_sharding(devices)
    run = jax.jit(lambda state, x, named: model.apply(*state, x, **named)[0], out_shardings=rows)

    def submit(x: np.ndarray, **named: np.ndarray) -> Collect:
        result = run(state, *jax.device_put((x, named), rows))
        return lambda: np.asarray(result)

    return submit


def _torch_runner(network: Any) -> Callable[..., Collect]:
    import torch

    network = network.eval()

    def submit(x: np.ndarray) -> Collect:
        with torch.inference_mode():
            result = network(torch.from_numpy(x)).numpy()
        return lambda: result

    return submit

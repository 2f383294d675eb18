"""A trained MSHNet and what its inputs must look like: pictures in, logits out.

Pictures are uint8 (height, width, 3), logits float32 (height, width), in one of two forms:

- `base`: the picture resized to base × base (Pillow's bilinear, as the papers evaluate), the logits
  of that size;
- `native`: the picture as it is, black added at the right and bottom up to a multiple of 32 pixels
  and cut off again, as BasicIRSTD does. Each new size is one more program to compile.

A weights file that jaxsr exported says how it was trained; for others the paper's way is assumed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from jaxsr.data.infrared import to_gray

Form = Literal["base", "native"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)

_STEP_PX = 32


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
            raise ValueError(
                f"mean and deviation need 3 channels, got {self.mean} and {self.deviation}"
            )
        if not all(value > 0 for value in self.deviation):
            raise ValueError(f"deviation must be positive, got {self.deviation}")
        if self.base < 16 or self.base % 16:
            raise ValueError(f"base must be a positive multiple of 16 px, got {self.base}")
        if self.evaluate not in ("base", "native"):
            raise ValueError(f"evaluate must be 'base' or 'native', got {self.evaluate!r}")

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
        if self.evaluate == "base":
            return planes
        return np.pad(planes, ((0, 0), (0, -height % _STEP_PX), (0, -width % _STEP_PX)))

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
    ) -> None:
        """Args:
          network: the torch module, or a function from float32 (n, 3, H, W) to logits (n, 1, H, W).
          form: what it was trained to see. Default: the paper's way.
          engine: `jax` compiles a program for each size, `torch` runs eagerly on the CPU.
          mesh: devices that a batch is split over.
          batch: pictures at once, a multiple of `mesh`.

        Raises:
          ValueError: the batch cannot be split over the mesh.
        """
        if batch < 1 or mesh < 1 or batch % mesh:
            raise ValueError(f"batch={batch} must be a positive multiple of mesh={mesh}")
        if engine not in ("jax", "torch"):
            raise ValueError(f"engine must be 'jax' or 'torch', got {engine!r}")
        self.form, self.batch = form or InputForm(), batch
        if not hasattr(network, "state_dict"):
            self._run = network
        else:
            self._run = _jax_runner(network, mesh) if engine == "jax" else _torch_runner(network)

    def logits(
        self, images: Sequence[UInt8[np.ndarray, "h w 3"]]
    ) -> Iterator[Float32[np.ndarray, "H W"]]:
        """Logits of each picture, in order, at the size that `form` says.

        Pictures of one size go together, so that batches are full where sizes allow.
        """
        prepared = [self.form.prepare(image) for image in images]
        results: dict[int, np.ndarray] = {}
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for number, planes in enumerate(prepared):
            by_shape.setdefault(planes.shape, []).append(number)
        for numbers in by_shape.values():
            for start in range(0, len(numbers), self.batch):
                part = numbers[start : start + self.batch]
                # A short batch is filled up with its first picture: one program for each size.
                filled = part + [part[0]] * (self.batch - len(part))
                outputs = np.asarray(self._run(np.stack([prepared[n] for n in filled])))
                results |= {n: outputs[row, 0] for row, n in enumerate(part)}
        for number, image in enumerate(images):
            whole = results[number]
            if self.form.evaluate == "base":
                yield whole
            else:
                yield whole[: image.shape[0], : image.shape[1]]

    def probabilities(
        self, images: Sequence[UInt8[np.ndarray, "h w 3"]]
    ) -> Iterator[Float32[np.ndarray, "h w"]]:
        """Probability of a target at each of the pictures' own pixels, 0…1."""
        for image, logits in zip(images, self.logits(images), strict=True):
            # Half of the hyperbolic tangent does not overflow as an exponential does.
            likely = (0.5 + 0.5 * np.tanh(0.5 * logits)).astype(np.float32)
            if self.form.evaluate == "base":
                size = (image.shape[1], image.shape[0])
                resized = Image.fromarray(likely).resize(size, Image.Resampling.BILINEAR)
                likely = np.asarray(resized)
            yield likely


def load_detector(
    weights: Path,
    *,
    engine: Literal["jax", "torch"] = "jax",
    mesh: int = 1,
    batch: int = 8,
    evaluate: Form | None = None,
    base: int | None = None,
) -> Detector:
    """The detector of a weights file.

    Args:
      weights: a file that jaxsr exported, or a published checkpoint (see `load_mshnet`).
      engine, mesh, batch: see `Detector`.
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
    return Detector(network, form, engine=engine, mesh=mesh, batch=batch)


def describe_file(weights: Path) -> dict[str, Any]:
    """What a weights file says of itself; nothing for files that jaxsr did not write."""
    if weights.suffix != ".safetensors":
        return {}
    from jaxsr.interop.weights import read_weights

    described = read_weights(weights)[1]
    family = described.get("family", "mshnet")
    if family != "mshnet":
        raise ValueError(f"{weights} holds a {family}, not an mshnet; give a detector's weights")
    return described


def resize(image: UInt8[np.ndarray, "h w 3"], size: tuple[int, int]) -> UInt8[np.ndarray, "H W 3"]:
    """Pillow's bilinear resize to (height, width)."""
    if image.shape[:2] == size:
        return image
    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def _jax_runner(network: Any, mesh: int) -> Callable[[np.ndarray], np.ndarray]:
    import jax

    from jaxsr.interop import mesh as meshes
    from jaxsr.interop.module import to_jax

    devices = meshes.make_mesh(mesh)
    model = to_jax(network.eval())
    state = jax.device_put((model.params, model.buffers), meshes.replicated(devices))
    rows = meshes.batch_sharding(devices)
    run = jax.jit(lambda state, x: model.apply(*state, x)[0], out_shardings=rows)
    return lambda x: np.asarray(run(state, jax.device_put(x, rows)))


def _torch_runner(network: Any) -> Callable[[np.ndarray], np.ndarray]:
    import torch

    network = network.eval()

    def run(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(x)).numpy()

    return run

"""`jaxsr.restore`: images in memory through a network. Heavy imports wait for the call."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


def restore(
    images: "np.ndarray | Image.Image | str | Path | Sequence[Any]",
    model: Any = None,
    *,
    weights: Path | None = None,
    scale: Literal[2, 4] | None = None,
    outscale: float | None = None,
    tiling: Literal["auto", "approximate", "off"] = "auto",
    tile: int | None = None,
    batch: int | None = None,
    ensemble: bool = False,
    engine: Literal["jax", "torch"] = "jax",
    mesh: int = 1,
    dtype: Literal["float32", "bfloat16"] = "float32",
    channels: Literal[1, 3] | None = None,
    value_range: tuple[float, float] | None = None,
) -> "np.ndarray | list[np.ndarray]":
    """Restores images in memory.

    Args:
      images: an image or several: uint8 or uint16 arrays (height, width) or (height, width, 1 to 4
        channels: gray, gray and alpha, RGB, RGB and alpha), Pillow images as they are, or paths of
        files, whose images are turned upright, and CMYK made RGB.
      model: a torch module, which keeps its mode and device, a run folder, a weights file,
        `package.module:Class`, or weights that come with jaxsr: `clean`, `photo` (for images saved
        as JPEG), `clean_x2`, `photo_x2`, or None for those that suit each image. See
        `jaxsr.models.load`.
      weights: file for a class or a module.
      scale: of the weights that are chosen for each image. Default: 4.
      outscale: size of the result relative to the source. Default: the network's own scale.
      tiling: `auto` cuts only if the result stays the same; `approximate` in any case; `off` never.
      tile: side of the largest tile in pixels. Default: from the network's memory needs.
      batch: tiles that each device computes at once. Default: 1 on a CPU, 8 elsewhere.
      ensemble: average over the eight flips and turns of each tile.
      engine: who computes.
      mesh: devices of JAX's default platform that a batch is split over.
      dtype: of the network's computation.
      channels: of the network's input, 1 or 3. Default: from the network.
      value_range: intensities of black and white for the network. Default: the family's, else 0 and
        1.

    Returns:
      An array for a single image, a list for several; depth and channels as they came.

    Raises:
      InputTypeError: something that is not an image.
      InputError: an image or the model is not usable; the message says which and why.
    """
    from torch import nn

    from jaxsr.interop.fork_guard import check_not_forked
    from jaxsr.interop.torch_evaluation import evaluating
    from jaxsr.restoration.config import (
        AUTO,
        RestoreConfig,
        check_scale,
        included_enlargers,
    )
    from jaxsr.restoration.kept_runners import kept_runner
    from jaxsr.restoration.models import find_model
    from jaxsr.restoration.restore_arrays import as_picture, restore_arrays
    from jaxsr.restoration.shipped import choose

    check_not_forked()
    chooses = model is None or model == AUTO
    check_scale(scale, chooses=chooses)
    config = RestoreConfig(
        scale=scale,
        outscale=outscale,
        tiling=tiling,
        tile=tile,
        batch=batch,
        ensemble=ensemble,
        engine=engine,
        mesh=str(mesh),
        dtype=dtype,
    )
    several = isinstance(images, list | tuple)
    pictures = [
        as_picture(image, index) for index, image in enumerate(images if several else [images])
    ]
    words = [choose(picture, included_enlargers(scale)) if chooses else "" for picture in pictures]
    results: list = [None] * len(pictures)
    with evaluating(model) if isinstance(model, nn.Module) else nullcontext():
        for word in dict.fromkeys(words):
            places = [place for place, chosen in enumerate(words) if chosen == word]
            network = find_model(
                word or model, weights=weights, channels=channels, value_range=value_range
            )
            runner = kept_runner(network, config, is_module=network.network is model)
            chosen_pictures = [pictures[place] for place in places]
            restored = restore_arrays(chosen_pictures, network, config, runner)
            for place, result in zip(places, restored, strict=True):
                results[place] = result
    return results if several else results[0]

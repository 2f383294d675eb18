"""Better pictures: `jaxsr.restore(images, model)` and `python -m jaxsr.restore INPUT…`.

Any torch network that turns pictures into pictures runs here, on JAX or on plain torch, tile by
tile with the result of the whole picture. The work is done in `jaxsr.restoration`.
"""

import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxsr.runtime.cli import parse_options, run_command, run_program

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

BAD_FILES = 1
"""Exit status where some files could not be restored and the others were."""


def restore(
    images: "np.ndarray | Image.Image | str | Path | Sequence[Any]",
    model: Any = None,
    *,
    weights: Path | None = None,
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
    """Restores pictures in memory.

    Args:
      images: a picture or several: uint8 or uint16 arrays (height, width) or (height, width, 1 to 4
        channels: gray, gray and alpha, RGB, RGB and alpha), Pillow images, or paths.
      model: a torch module, a run folder, a weights file, `package.module:Class`, or None for the
        weights that come with jaxsr; see `jaxsr.restoration.models`.
      weights: file for a class or a module.
      outscale: size of the result relative to the source. Default: the network's own scale.
      tiling: `auto` cuts only where that changes nothing; `approximate` in any case; `off` never.
      tile: side of the largest tile in pixels. Default: from the network's memory needs.
      batch: tiles that each device computes at once. Default: 1 on a CPU, 8 elsewhere.
      ensemble: average over the eight flips and turns of each tile.
      engine: who computes.
      mesh: devices of JAX's default platform that a batch is split over.
      dtype: what the network computes in.
      channels: 1 or 3, what the network takes. Default: found out.
      value_range: intensities of black and white for the network. Default: the family's, else 0 and
        1.

    Returns:
      An array for a single picture, a list for several; depth and channels as they came.

    Raises:
      TypeError: something that is no picture.
      ValueError: a picture or the model is not usable; the message says which and why.
    """
    from jaxsr.restoration.config import RestoreConfig
    from jaxsr.restoration.models import find_model
    from jaxsr.restoration.restore_arrays import as_picture, restore_arrays

    config = RestoreConfig(
        outscale=outscale,
        tiling=tiling,
        tile=tile,
        batch=batch,
        ensemble=ensemble,
        engine=engine,
        mesh=mesh,
        dtype=dtype,
    )
    single = not isinstance(images, list | tuple)
    pictures = [
        as_picture(image, index) for index, image in enumerate([images] if single else images)
    ]
    found = find_model(model, weights=weights, channels=channels, value_range=value_range)
    results = restore_arrays(pictures, found, config)
    return results[0] if single else results


class _CallableModule(types.ModuleType):
    """`jaxsr.restore` is this module, and the function in it."""

    __call__ = staticmethod(restore)


sys.modules[__name__].__class__ = _CallableModule


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    from jaxsr.restoration.config import RestoreConfig
    from jaxsr.restoration.restore_files import run

    config = parse_options(
        RestoreConfig,
        arguments,
        prog="python -m jaxsr.restore",
        description="Restores pictures and videos with a torch network, on JAX or on torch.",
    )
    if config.aot is not None:
        from jaxsr.restoration.aot import run as compile_ahead

        return compile_ahead(config)
    return run(config)


if __name__ == "__main__":
    run_program(main, "restore")

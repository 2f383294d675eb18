"""The options of `jaxsr.restore`, checked before any device is touched."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import tyro

from jaxsr.data.picture_limits import MAX_PIXELS
from jaxsr.errors import InputError
from jaxsr.interop.fields import number
from jaxsr.runtime.options import AotOptions, LaneFoldingOptions, ModelOptions

AUTO = "auto"
"""The word for weights chosen by image."""
FORMATS = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP", "tiff": "TIFF"}


_ENLARGERS = {2: ("clean_x2", "photo_x2"), 4: ("clean", "photo")}


def included_enlargers(scale: int | None) -> tuple[str, str]:
    """Names of the included weights for clean images and for those with JPEG's artefacts.

    Args:
      scale: 2 or 4. None: 4.
    """
    return _ENLARGERS[scale or 4]


def check_scale(scale: int | None, *, chooses: bool) -> None:
    """Refuses a scale beside a model, which has its own.

    Args:
      scale: that of the included weights, or None.
      chooses: whether they are chosen for each image.

    Raises:
      InputError: both are given.
    """
    if scale is not None and not chooses:
        raise InputError(
            f"scale={scale} chooses among included weights, and the model has a scale of its own; "
            "leave one of them out, or use outscale for the size of the result"
        )


@dataclass(frozen=True, kw_only=True)
class RestoreConfig(ModelOptions, LaneFoldingOptions, AotOptions):
    """Restores images and videos with a torch network, on JAX or on torch.

    Without --model it uses included weights, chosen for each file: one set for clean images, one
    for those with JPEG artefacts.
    """

    model_required: ClassVar[bool] = False

    inputs: tyro.conf.Positional[tuple[str, ...]] = ()
    """Images, videos, folders (searched recursively, structure kept) and globs."""
    out: Path = Path("restored")
    """Folder for the results, created if necessary."""
    channels: Literal[1, 3] | None = None
    """Channels of the network's input: 1 (luma, gray) or 3 (RGB). Default: the network's."""
    value_range: tuple[float, float] | None = None
    """Intensities of black and white in the network's images. Default: the family's, otherwise 0
    1."""
    scale: Literal[2, 4] | None = None
    """Scale of the included weights. Default: 4."""
    outscale: float | None = number(None, above=0, most=64)
    """Size of the result relative to the source. Default: the network's own scale."""
    suffix: str = ""
    """Suffix of each name, before its extension."""
    format: Literal["png", "jpeg", "webp", "tiff"] | None = None
    """Output format. Default: that of each input."""
    quality: int = number(95, least=1, most=100)
    """Quality of JPEG and lossy WebP, 1 to 100."""
    overwrite: bool = False
    """Replace existing results. Otherwise they are kept, and counted."""
    tiling: Literal["auto", "approximate", "off"] = "auto"
    """auto: cut images into tiles only if the result stays the same, and refuse an image that is
    too large to be computed whole. approximate: always cut. off: never cut."""
    tile: int | None = number(None, least=1, most=2**16)
    """Side of the largest tile in pixels. Default: chosen by the network's memory needs."""
    batch: int | None = number(None, least=1, most=2**14)
    """Tiles that each device computes at once. Default: 1 on a CPU, 8 elsewhere."""
    ensemble: bool = False
    """Average over the eight flips and turns of each tile: eight times the work."""
    max_pixels: int = number(MAX_PIXELS, least=1, most=2**40)
    """Refuse images of more pixels before they are decoded."""
    truth: Path | None = None
    """Folder of reference images under the same relative names; reports PSNR and SSIM."""
    report: Path | None = None
    """Folder for the figures. Default: report, in the folder of the results."""
    benchmark: tuple[str, ...] = ()
    """Measure the speed at these sizes, such as 1280x720, instead of restoring."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chooses and (self.weights or self.class_options()):
            raise InputError("--model auto takes jaxsr's own weights; leave other ones out")
        check_scale(self.scale, chooses=self.chooses)
        if "/" in self.suffix or "\\" in self.suffix:
            raise InputError(
                f"suffix is part of a file name, got {self.suffix!r}; use --out for folders"
            )
        if self.report is not None and self.truth is None:
            raise InputError("report needs images to compare with; name their folder with --truth")
        self.sizes()

    @property
    def chooses(self) -> bool:
        """Whether the weights are chosen for each image."""
        return self.model in (None, AUTO)

    def sizes(self) -> list[tuple[int, int]]:
        """Returns `benchmark` as (height, width) pairs."""
        sizes = []
        for text in self.benchmark:
            width, by, height = text.lower().replace("×", "x").partition("x")
            if not (by and width.isdecimal() and height.isdecimal() and int(width) * int(height)):
                raise InputError(f"benchmark takes sizes such as 1280x720, got {text!r}")
            sizes.append((int(height), int(width)))
        return sizes

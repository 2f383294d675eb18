"""The options of `jaxsr compare ops`."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from jaxsr.errors import InputError
from jaxsr.runtime.options import CheckedOptions, Platform

Operation = Literal["resize", "gaussian_blur", "mask_crop"]
Method = Literal["nearest", "bilinear", "bicubic", "lanczos", "area"]
Dtype = Literal["uint8", "float32", "bfloat16"]
METHODS: tuple[str, ...] = get_args(Method)
DTYPES: tuple[str, ...] = get_args(Dtype)


@dataclass(frozen=True, kw_only=True)
class OpsOptions(CheckedOptions):
    """Kernels of jaxsr, torch, torchvision, OpenCV, Pillow, SciPy, jax.image: precision, time."""

    operation: Operation = "resize"
    """The operation that the libraries compute."""
    images: Path | None = None
    """Folder of images. Default: photos that are included in the installation."""
    limit: int = 4
    """Maximum number of images, in order of their names."""
    size: tuple[int, int] = (1080, 640)
    """Height and width of the result of resize and mask_crop."""
    sigma: float = 1.5
    """Standard deviation of gaussian_blur in pixels."""
    methods: tuple[Method, ...] = ("bilinear",)
    """Interpolation methods of resize."""
    dtypes: tuple[Dtype, ...] = ("uint8", "float32", "bfloat16")
    """Dtypes of the images."""
    antialias: bool = False
    """Stretch the filter when shrinking, where a library leaves the choice."""
    convention: Literal["torch", "opencv", "pillow", "matlab"] = "torch"
    """Library whose rules jaxsr follows."""
    runs: int = 5
    """Timed runs after the first one."""
    platform: Platform = "auto"
    """Where jaxsr and jax.image compute; the other libraries run on the CPU."""
    out: Path = Path("runs/compare-ops")
    """Folder for comparison.json and comparison.png."""

    def __post_init__(self) -> None:
        for name, known in (("methods", METHODS), ("dtypes", DTYPES)):
            values = getattr(self, name)
            if not values or set(values) - set(known):
                raise InputError(f"{name} must be among {', '.join(known)}, got {values!r}")
        if min(self.size) < 1:
            raise InputError(f"size must be at least 1 on each side, got {self.size}")
        if not 0 < self.sigma < math.inf:
            raise InputError(f"sigma must be above 0, got {self.sigma}")
        self.check_at_least(1, "limit")
        self.check_at_least(5, "runs")

"""The options of `jaxsr compare ops`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxsr.errors import InputError
from jaxsr.interop.fields import number
from jaxsr.runtime.options import CheckedOptions, Platform

Operation = Literal["resize", "gaussian_blur", "mask_crop"]
Method = Literal["nearest", "bilinear", "bicubic", "lanczos", "area"]
Dtype = Literal["uint8", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class OpsOptions(CheckedOptions):
    """Compares precision and time of kernels of jaxsr and other libraries of image operations."""

    operation: Operation = "resize"
    """The operation that the libraries compute."""
    images: Path | None = None
    """Folder of images. Default: included photos."""
    limit: int = number(4, least=1)
    """Maximum number of images, in order of their names."""
    size: tuple[int, int] = number((1080, 640), least=1)
    """Height and width of the result of resize and mask_crop."""
    sigma: float = number(1.5, above=0)
    """Standard deviation of gaussian_blur in pixels."""
    methods: tuple[Method, ...] = ("bilinear",)
    """Interpolation methods of resize."""
    dtypes: tuple[Dtype, ...] = ("uint8", "float32", "bfloat16")
    """Dtypes of the images."""
    antialias: bool = False
    """Use antialiasing when shrinking, in the libraries that make it optional."""
    convention: Literal["torch", "opencv", "pillow", "matlab"] = "torch"
    """Library whose rules jaxsr follows."""
    runs: int = number(5, least=5)
    """Timed runs after the first one."""
    platform: Platform = "auto"
    """Platform of jaxsr and jax.image; the other libraries run on the CPU."""
    out: Path = Path("runs/compare-ops")
    """Folder for comparison.json and comparison.png."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("methods", "dtypes"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty; name one at least")

"""The options of `jaxsr.export`, checked before any framework is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxsr.errors import InputError
from jaxsr.runtime.options import Mark, ModelOptions, check_replaceable

PRODUCER = "jaxsr"
"""ONNX's `producer_name`, which follows the version of the format."""
LAST = b"\0jaxsr.export\0"
"""Ends the file of a program of jax.export, which reads what its tables point to, from the first
byte on."""
_MARKS = {
    "stablehlo": Mark(end=LAST),
    "onnx": Mark(rb"\x08.\x12" + bytes([len(PRODUCER)]) + PRODUCER.encode() + rb"\x1a"),
}

Device = Literal["cpu", "cuda", "rocm", "tpu"]


@dataclass(frozen=True, kw_only=True)
class ExportConfig(ModelOptions):
    """Writes a torch model as one file that runs without torch: StableHLO for JAX, or ONNX.

    The file contains the weights. Another process first runs it without torch and jaxsr, and
    compares the results with torch's.
    """

    out: Path
    """The file to write, such as net.stablehlo or net.onnx."""
    format: Literal["stablehlo", "onnx"] | None = None
    """stablehlo is for jax.export.deserialize; onnx is made by torch's exporter. Default: onnx if
    the name in --out ends in .onnx, otherwise stablehlo."""
    input: tuple[str, ...] = ()
    """Inputs as [NAME=][DTYPE:]SIZES[:LIMIT]: 1,3,224,224 or ids=int64:2,16:1000. Default: those of
    the model's library or family."""
    platforms: tuple[Device, ...] = ("cpu", "cuda", "tpu")
    """Platforms on which the StableHLO program can run."""
    fixed_batch: bool = False
    """Fix the batch size to that of the inputs. Default: the program takes a batch of any size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.platforms:
            raise InputError("platforms is empty; name one at least, such as --platforms cpu")
        if self.out.is_dir():
            raise InputError(f"out={self.out} is a folder; name a file in it")
        if not self.out.parent.is_dir():
            raise InputError(f"no folder {self.out.parent} for out={self.out}; create it first")
        check_replaceable("out", self.out, _MARKS[self.file_format])

    @property
    def file_format(self) -> Literal["stablehlo", "onnx"]:
        """The chosen format, or the format of the file's extension."""
        return self.format or ("onnx" if self.out.suffix.lower() == ".onnx" else "stablehlo")

"""The options of `jaxsr.check`, checked before any device is touched."""

from dataclasses import dataclass
from pathlib import Path

from jaxsr.errors import InputError
from jaxsr.runtime.options import AotOptions, LaneFolding, LaneFoldingOptions, ModelOptions


@dataclass(frozen=True, kw_only=True)
class CheckConfig(ModelOptions, LaneFoldingOptions, AotOptions):
    """Checks that a torch model computes the same in JAX, and measures its cost.

    Weights are random for a family's name, and for a class, a library's NAME or a configuration
    without --weights.
    """

    input: tuple[str, ...] = ()
    """Inputs as [NAME=][DTYPE:]SIZES[:LIMIT]: 1,3,224,224 or ids=int64:2,16:1000, whole numbers
    below LIMIT. Default: those of the model's library or family."""
    forward_only: bool = False
    """Skip gradients."""
    eval_only: bool = False
    """Skip training mode."""
    json: bool = False
    """Print one JSON object instead of tables."""
    html: Path | None = None
    """Also write a page with every submodule, coloured by its error, to this file."""
    mesh: str = "2"
    """Number of devices of the mesh to check, simulated on a CPU; 1 skips this check."""
    lane_folding: LaneFolding = "auto"
    """on: check the program whose narrow images are folded into a TPU's lanes. auto, off: the plain
    program; with --aot, auto folds if that chip gains from it."""

    def __post_init__(self) -> None:
        if self.engine == "torch":
            raise InputError("check compares both engines; leave --engine out")
        super().__post_init__()
        if self.aot is None and self.dtype != "float32":
            raise InputError(
                f"check compares float32 programs, got dtype={self.dtype}; leave --dtype out, or "
                "compile ahead of time with --aot v5e:1x1"
            )
        if self.aot is None and self.matmul_precision not in ("default", "highest"):
            raise InputError(
                "check computes float32 products in full, got "
                f"matmul_precision={self.matmul_precision}; leave it out, or compile ahead of time "
                "with --aot v5e:1x1"
            )

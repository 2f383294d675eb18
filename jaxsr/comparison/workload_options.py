"""Options of the model and inputs that both sides run."""

from dataclasses import dataclass
from pathlib import Path

from jaxsr.errors import InputError
from jaxsr.interop.fields import number
from jaxsr.runtime.options import ModelOptions


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(ModelOptions):
    """The model to run; the name of a family gives a small one with random weights."""

    image: Path | None = None
    """Image for networks that take one. Default: an included photo."""
    input: tuple[str, ...] = ()
    """Inputs as [NAME=][DTYPE:]SIZES[:LIMIT], for networks that do not take an image: 2,4,32,32 or
    ids=int64:2,16:1000, whole numbers below LIMIT. Default: an image, or the inputs that the
    model's library names."""
    size: int = number(64, least=16, most=2**14)
    """Side in pixels of the crop from the image's middle. Detectors resize the image to it."""
    prompt: str = "What is the capital of France?"
    """Prompt of a language model."""
    raw: bool = False
    """Pass the prompt without the model's chat template."""
    batch_size: int = number(1, least=1, most=4096)
    """Rows of a language model's batch; each has the prompt. Other batch sizes use other
    kernels."""
    steps: int = number(4, least=1, most=2**14)
    """Number of tokens that a language model generates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input and self.image is not None:
            raise InputError("input and image are two ways to say the same; give one of them")
        if not self.prompt:
            raise InputError("prompt is empty; give it some text")

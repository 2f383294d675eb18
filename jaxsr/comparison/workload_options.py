"""What is run on both sides, as options of the commands."""

from dataclasses import dataclass
from pathlib import Path

from jaxsr.errors import InputError
from jaxsr.runtime.options import ModelOptions


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(ModelOptions):
    """What is run: a model, or the name of a family for a small one with random weights."""

    image: Path | None = None
    """Picture for networks that take one. Default: one that comes with the installation."""
    size: int = 64
    """Side in pixels of the picture's middle that is used. Detectors resize the picture to it."""
    prompt: str = "What is the capital of France?"
    """For language models."""
    raw: bool = False
    """Feed the prompt without the model's chat template."""
    steps: int = 4
    """Tokens that a language model generates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(16, "size")
        self.check_at_least(1, "steps")
        if not self.prompt:
            raise InputError("prompt is empty; give it some text")

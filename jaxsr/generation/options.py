"""How tokens are chosen and when an output ends; the same for every engine."""

import math
from dataclasses import dataclass

from jaxsr.errors import InputError
from jaxsr.runtime.options import CheckedOptions


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(CheckedOptions):
    """Checked when built. Filters apply in this order: temperature, top-k, top-p."""

    max_new_tokens: int = 128
    """Tokens to generate at most for each prompt."""
    temperature: float = 0.0
    """What logits are divided by; 0 is greedy and makes the filters below pointless."""
    top_k: int | None = None
    """Only this many of the likeliest tokens stay; None keeps all."""
    top_p: float | None = None
    """The likeliest tokens stay until their probabilities reach this sum; None keeps all."""
    seed: int = 0
    """Of the random draws; each request draws with its own key, made of this and its number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "max_new_tokens")
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise InputError(f"temperature must be finite and not below 0, got {self.temperature}")
        if not -(2**31) <= self.seed < 2**31:
            raise InputError(f"seed must have 32 bits, from -2**31 to 2**31 - 1, got {self.seed}")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k must be at least 1, or None for all; got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p must lie in (0, 1], or None for all; got {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

"""Two language models' logits compared: tokens, each side's confidence, overlap, divergence."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.special import log_softmax

from jaxsr.interop.annotations import JsonObject

TOP = 10
"""Tokens whose overlap is counted."""


@dataclass(frozen=True, kw_only=True)
class TokenStep:
    """One step's logits on both sides, after the same tokens."""

    step: int
    first_token: int
    second_token: int
    first_margin: float
    """The first side's largest logit minus its second largest."""
    second_margin: float
    moved: float
    """Largest difference of any logit."""
    overlap: float
    """Share of the first side's `TOP` likeliest tokens among the second's."""
    divergence: float
    """Kullback-Leibler divergence of the second's distribution from the first's, in nats."""
    allowed: float
    """The movement of a logit by rounding, for the depth and dtypes of the run."""

    nan: bool = False
    """Whether logits of either side are NaN: then no figure of them means anything."""

    @property
    def agree(self) -> bool:
        return self.first_token == self.second_token and not self.nan

    @property
    def tie(self) -> bool:
        """Whether the tokens differ only because both sides score the two almost equally.

        Where a logit may move by m, the order of two of them is uncertain within 2 m. m is the
        change of the logits, as far as rounding explains it: a fault makes no tie.
        """
        margin = max(self.first_margin, self.second_margin)
        return not self.agree and not self.nan and margin <= 2 * min(self.moved, self.allowed)

    def as_row(self) -> JsonObject:
        return asdict(self) | {"agree": self.agree, "tie": self.tie}


def compare_logits(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], *, rounding: float
) -> list[TokenStep]:
    """Step by step.

    Args:
      pairs: logits of both runs in each step, (1, vocabulary).
      rounding: error allowed for rounding, relative to the logits' root mean square.
    """
    return [
        _step(number, np.asarray(a, np.float64)[0], np.asarray(b, np.float64)[0], rounding)
        for number, (a, b) in enumerate(pairs)
    ]


def _step(number: int, first: np.ndarray, second: np.ndarray, rounding: float) -> TokenStep:
    if np.isnan(first).any() or np.isnan(second).any():
        lost = float("inf")
        return TokenStep(
            step=number, first_token=int(first.argmax()), second_token=int(second.argmax()),
            first_margin=0.0, second_margin=0.0, moved=lost, overlap=0.0, divergence=lost,
            allowed=0.0, nan=True,
        )  # fmt: skip
    top = min(TOP, len(first))
    best = [set(np.argpartition(-logits, top - 1)[:top].tolist()) for logits in (first, second)]
    # Suppressed tokens have -inf, often on both sides.
    finite = np.isfinite(first)
    log_p, log_q = log_softmax(first)[finite], log_softmax(second)[finite]
    moved = np.subtract(first, second, where=first != second, out=np.zeros_like(first))
    return TokenStep(
        step=number,
        first_token=int(first.argmax()),
        second_token=int(second.argmax()),
        first_margin=_margin(first),
        second_margin=_margin(second),
        moved=float(np.abs(moved).max()),
        overlap=len(best[0] & best[1]) / top,
        divergence=max(0.0, float((np.exp(log_p) * (log_p - log_q)).sum())),
        allowed=rounding * float(np.sqrt(np.square(first[finite]).mean())),
    )


def _margin(logits: np.ndarray) -> float:
    low, high = np.partition(logits, -2)[-2:]
    return float(high - low)


def first_divergence(steps: Sequence[TokenStep]) -> TokenStep | None:
    """The first step whose tokens differ."""
    return next((step for step in steps if not step.agree), None)


def in_words(step: TokenStep, word: Callable[[int], str]) -> str:
    """One sentence about a step whose tokens differ."""
    if step.nan:
        return f"the logits of step {step.step} hold NaN: no token can be chosen by them"
    kind = (
        "a benign tie: on both sides the two best logits lie closer than rounding moves them"
        if step.tie
        else "no tie: rounding does not explain it"
    )
    return (
        f"first divergent token at step {step.step}: {word(step.first_token)} against "
        f"{word(step.second_token)}; margins {step.first_margin:.3g} and "
        f"{step.second_margin:.3g}, logits moved by up to {step.moved:.3g} ({kind})"
    )

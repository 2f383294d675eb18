"""Which operation of one run is which of the other's.

Where both streams are the same, position by position; elsewhere by the longest stretches of equal
(module, operation), so that one operation more or less does not shift those after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from jaxsr.comparison.calls import Call


@dataclass(frozen=True)
class Pair:
    """Two operations that are the same, or one that only one side has."""

    first: int | None
    """Position in the first stream; None where it lacks the operation."""
    second: int | None
    """Position in the second stream."""


def align(first: Sequence[Call], second: Sequence[Call]) -> list[Pair]:
    """Pairs in order of execution; what only one side has stands where it happened."""
    tokens_a, tokens_b = ([call.token for call in calls] for calls in (first, second))
    if tokens_a == tokens_b:
        return [Pair(k, k) for k in range(len(tokens_a))]
    pairs: list[Pair] = []
    matcher = SequenceMatcher(None, tokens_a, tokens_b, autojunk=False)
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        if kind == "equal":
            pairs += [Pair(a, b) for a, b in zip(range(a0, a1), range(b0, b1), strict=True)]
        else:
            pairs += [Pair(a, None) for a in range(a0, a1)]
            pairs += [Pair(None, b) for b in range(b0, b1)]
    return pairs

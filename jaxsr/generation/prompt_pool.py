"""Prompts that wait for a place, and which of them are fed together."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxsr.generation.decoder import MOST_PACKED
from jaxsr.generation.padding import bucket

PACKED_TOKENS = 256
"""Tokens that are fed together, if no prompt is longer: from here on products gain little by more,
and attention, which is computed between all of them, costs more."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt, and the parts of its random key."""

    index: int
    prompt: Sequence[int]
    number: int
    seed: int


class PromptPool:
    """Waiting prompts by length.

    The longest go first, so that rows of equal lengths run together, and their caches are read no
    further than necessary. Shorter prompts fill up a batch that is fed together.

    Args:
      requests: in any order.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        # Among equal lengths the first number is last, and taken first.
        self._sorted = sorted(requests, key=_order)

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt, 0 where none waits."""
        return len(self._sorted[-1].prompt) if self._sorted else 0

    def next(self, most: int) -> list[Request]:
        """The prompts to feed together, at most so many; they stay here."""
        return [self._sorted[place] for place in self._places(most)]

    def take(self, most: int) -> list[Request]:
        """`next`, which no longer wait."""
        return [self._sorted.pop(place) for place in self._places(most)]

    def _places(self, most: int) -> list[int]:
        """Places of the sorted list, from the highest down."""
        room = max(PACKED_TOKENS, bucket(max(self.longest, 1)))
        places, end = [], len(self._sorted)
        while len(places) < min(most, MOST_PACKED):
            # Longer ones than the last have been taken, or did not fit when there was more room.
            end = bisect_right(self._sorted, room, 0, end, key=lambda r: len(r.prompt)) - 1
            if end < 0:
                break
            places.append(end)
            room -= len(self._sorted[end].prompt)
        return places


def _order(request: Request) -> tuple[int, int]:
    return len(request.prompt), -request.index

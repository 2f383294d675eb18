"""Many prompts through one batch: several are fed together, and the batch shrinks at the end."""

from collections import deque
from collections.abc import Sequence

from jaxsr.generation.decoder import Batch
from jaxsr.generation.padding import rounded_slots
from jaxsr.generation.prompt_pool import PromptPool, Request
from jaxsr.generation.rounds import RequestPlace, Rounds

# Prompts that wait in order of length, for each row.
_POOLED = 16
# The share of rows that may stand idle until several prompts can be fed together.
_IDLE_SHARE = 8
# Fewer rows than these take as long.
_LEAST_ROWS = 8
# A cache is cut to this share of its slots or less: each size is a program to compile.
_SHRUNK = 0.5


class PackedRounds:
    """Generates from all that wait, with several prompts fed together.

    Long prompts go first, of so many at a time that outputs come about in order. Rows that ended
    are replaced together, because prompts fed together cost less. At the end rows that ended are
    left out of the batch.

    Args:
      rounds: who advances the batch and reports its outputs.
      rows: of the batch.
      context: of the network.
    """

    def __init__(self, rounds: Rounds, rows: int, *, context: int) -> None:
        self._rounds, self._rows, self._context = rounds, rows, context
        self._pool = PromptPool(())
        self._live: dict[int, RequestPlace] = {}
        self._free: list[int] = [*range(rows)]

    def run(self, waiting: deque[Request]) -> None:
        """Generates until all have ended.

        Args:
          waiting: requests, at least one, which are taken from here.
        """
        self._pool = self._next_pool(waiting)
        batch = self._start()
        while True:
            if waiting and not self._pool:
                self._pool = self._next_pool(waiting)
            if not self._pool and not self._live:
                return
            self._fit(batch)
            if not self._pool:
                self._free = []
            together = min(len(self._pool.next(self._rows)), max(1, self._rows // _IDLE_SHARE))
            while self._pool and (len(self._free) >= together or not self._live):
                self._free += self._admit(batch)
            if not self._live or (waiting and not self._pool):
                continue
            if self._pool:
                least = len(self._live) - together + len(self._free) + 1
            else:
                least = batch.rows // 2 + 1 if batch.rows > _LEAST_ROWS else 1
            self._free += self._rounds.advance(
                batch, self._live, self._rows, least_running=max(least, 1)
            )

    def _next_pool(self, waiting: deque[Request]) -> PromptPool:
        some = min(len(waiting), _POOLED * self._rows)
        return PromptPool(waiting.popleft() for _ in range(some))

    def _start(self) -> Batch:
        """An empty batch for the pool."""
        rounds, slots = self._rounds, self._slots_needed()
        return rounds.engine.start_empty(
            rounds.options, stop_ids=rounds.stop_ids, rows=self._rows, slots=slots
        )

    def _slots_needed(self) -> int:
        """Slots of the cache that live and waiting prompts need."""
        lengths = [len(state.request.prompt) for state in self._live.values()]
        need = max([*lengths, self._pool.longest]) + self._rounds.options.most_slots
        return rounded_slots(need, context=self._context)

    def _fit(self, batch: Batch) -> None:
        """Gives a batch the slots, and at the end the rows, that it needs."""
        rows = batch.rows
        while not self._pool and rows // 2 >= max(len(self._live), _LEAST_ROWS):
            rows //= 2
        need = self._slots_needed()
        slots = batch.slots if _SHRUNK * batch.slots < need <= batch.slots else need
        if (rows, slots) == (batch.rows, batch.slots):
            return
        keep = [*range(rows)] if rows == batch.rows else sorted(self._live)
        self._rounds.engine.resize(batch, keep, rows=rows, slots=slots)
        self._live = {place: self._live[row] for place, row in enumerate(keep) if row in self._live}

    def _admit(self, batch: Batch) -> list[int]:
        """Feeds the next prompts together into free places; returns those that ended at once."""
        members = self._pool.take(len(self._free))
        places = [self._free.pop(0) for _ in members]
        _, seconds = self._rounds.timed(self._feed, batch, places, members)
        new = {
            row: self._rounds.row_of(member, seconds)
            for row, member in zip(places, members, strict=True)
        }
        ended = self._rounds.settle(batch, new, self._rows, decoded=False)
        self._live |= {row: state for row, state in new.items() if row not in ended}
        return ended

    def _feed(self, batch: Batch, places: Sequence[int], members: Sequence[Request]) -> Batch:
        self._rounds.engine.admit_packed(
            batch,
            places,
            [member.prompt for member in members],
            [member.number for member in members],
            [member.seed for member in members],
        )
        return batch

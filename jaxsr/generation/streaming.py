"""Prints an output while it is generated."""

from collections.abc import Callable, Collection


class StreamPrinter:
    """Prints the text of new tokens; outputs come one after the other.

    Args:
      decode: text of token ids.
      stop_ids: tokens that are not printed.
      max_new_tokens: length at which an output ends.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], *, stop_ids: Collection[int], max_new_tokens: int
    ) -> None:
        self._decode, self._stop_ids, self._most = decode, stop_ids, max_new_tokens
        self._index: int | None = None
        self._ids: list[int] = []
        self._printed = ""

    def __call__(self, index: int, new: list[int]) -> None:
        """Prints what `new` tokens add to the output of prompt `index`."""
        if index != self._index:
            if self._index is not None:
                print("\n")
            self._index, self._ids, self._printed = index, [], ""
        self._ids = self._ids + new
        # An unfinished character decodes to U+FFFD; it is printed when it is complete.
        text = self._decode([i for i in self._ids if i not in self._stop_ids])
        text = text.removesuffix("\ufffd") if len(self._ids) < self._most else text
        if text.startswith(self._printed):
            print(text[len(self._printed) :], end="", flush=True)
            self._printed = text

"""Prints an output while it is generated."""

import sys
from collections.abc import Collection

from jaxsr.errors import printable_text
from jaxsr.generation.stop_text import StopText


def for_output(text: str) -> str:
    """A prompt or an output as it is; for a terminal without characters that control it."""
    return printable_text(text) if sys.stdout.isatty() else text


class StreamPrinter:
    """Prints the text of new tokens; outputs come one after the other.

    Args:
      texts: decodes token ids, and knows the texts that end an output.
      stop_ids: tokens that are not printed.
    """

    def __init__(self, texts: StopText, *, stop_ids: Collection[int]) -> None:
        self._texts, self._stop_ids = texts, stop_ids
        self._ids: list[int] = []
        self._printed = ""

    def __call__(self, index: int, new: list[int]) -> None:
        """Prints the text that `new` tokens add to the output."""
        self._ids += [token for token in new if token not in self._stop_ids]
        if len(self._ids) < 2:
            return  # The second token's program may compile for long; a sign shows that meanwhile.
        # Each byte of an unfinished character decodes to U+FFFD; it is printed when it is complete.
        self._print(self._texts.printable(self._ids).rstrip("\ufffd"))

    def end(self) -> None:
        """Prints the rest of an output that has ended."""
        text = self._texts.text(self._ids)
        if not text.startswith(self._printed):  # a decoder that changes earlier text
            self._printed = ""
            print()
        self._print(text)
        print("\n", flush=True)
        self._ids, self._printed = [], ""

    def _print(self, text: str) -> None:
        if text.startswith(self._printed):
            print(for_output(text[len(self._printed) :]), end="", flush=True)
            self._printed = text

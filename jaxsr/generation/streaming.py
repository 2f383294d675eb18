"""Prints outputs while they are generated."""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection

from jaxsr.errors import printable_text
from jaxsr.generation.stop_text import StopText


def for_output(text: str) -> str:
    """A prompt or an output as it is; for a terminal without characters that control it."""
    return printable_text(text) if sys.stdout.isatty() else text


class StreamPrinter:
    """Prints the text of new tokens, one output after the other in the order of the prompts.

    Tokens of later outputs wait for their turn.

    Args:
      texts: decodes token ids, and knows the texts that end an output.
      stop_ids: tokens that are not printed.
      show_prompt: called before the text of each output.
      first: index of the output that is printed first.
    """

    def __init__(
        self,
        texts: StopText,
        *,
        stop_ids: Collection[int],
        show_prompt: Callable[[], None] = lambda: None,
        first: int = 0,
    ) -> None:
        self._texts, self._stop_ids = texts, stop_ids
        self._show_prompt, self._index = show_prompt, first
        self._ids: defaultdict[int, list[int]] = defaultdict(list)
        self._printed = ""
        self._has_begun = False

    def __call__(self, index: int, new: list[int]) -> None:
        """Notes `new` tokens of an output; prints the text that they add, if it is its turn."""
        ids = self._ids[index]
        ids += [token for token in new if token not in self._stop_ids]
        # The second token's program may compile for long; a sign shows that meanwhile.
        if index == self._index and len(ids) >= 2:
            # Each byte of an unfinished character decodes to U+FFFD; it is printed when complete.
            self._print(self._texts.printable(ids).rstrip("\ufffd"))

    def end(self, text: str) -> None:
        """Prints the rest of the output whose turn it is, and which has ended.

        Args:
          text: all of it.
        """
        if not text.startswith(self._printed):  # a decoder that changes earlier text
            self._printed = ""
            print()
        self._print(text)
        print("\n", flush=True)
        self._ids.pop(self._index, None)
        self._index, self._printed, self._has_begun = self._index + 1, "", False

    def show_waiting(self) -> None:
        """Prints the tokens that already came of the output whose turn it is."""
        if self._index in self._ids:
            self(self._index, [])

    def _print(self, text: str) -> None:
        if not self._has_begun:
            self._show_prompt()
            self._has_begun = True
        if text.startswith(self._printed):
            print(for_output(text[len(self._printed) :]), end="", flush=True)
            self._printed = text

"""Texts that end an output, wherever they lie in its tokens.

The engines know tokens only, so the host looks for texts between two calls of an engine. An output
then ends with the token that completes a text, as though the engine had known.
"""

from collections.abc import Callable, Sequence


class StopText:
    """Looks for texts in the text of an output.

    Args:
      texts: texts that end an output; they may not be empty.
      decode: text of token ids.
      min_new_tokens: a text that ends within so many tokens does not count.
    """

    def __init__(
        self,
        texts: Sequence[str],
        decode: Callable[[Sequence[int]], str],
        *,
        min_new_tokens: int = 0,
    ) -> None:
        self.texts, self._decode, self._least = tuple(texts), decode, min_new_tokens

    def length(self, tokens: Sequence[int], checked: int = 0) -> int | None:
        """How many tokens the output has at the end of its first stop text.

        Args:
          tokens: of the output so far.
          checked: of which so many are known to hold no stop text.

        Returns:
          None where there is no such text.
        """
        if not self.texts or self._find(tokens) is None:
            return None
        lengths = range(checked + 1, len(tokens) + 1)
        return next(n for n in lengths if self._find(tokens[:n]) is not None)

    def text(self, tokens: Sequence[int]) -> str:
        """The output's text before the first stop text."""
        text, begin = self._decode(tokens), self._find(tokens)
        return text if begin is None else text[:begin]

    def printable(self, tokens: Sequence[int]) -> str:
        """The part of `text` that further tokens cannot take back."""
        text = self.text(tokens)
        if self._find(tokens) is not None:
            return text
        beginnings = (stop[:n] for stop in self.texts for n in range(1, len(stop)))
        longest = max((len(b) for b in beginnings if text.endswith(b)), default=0)
        return text[: len(text) - longest]

    def _find(self, tokens: Sequence[int]) -> int | None:
        """Where in the decoded text the stop text begins that ends first."""
        text = self._decode(tokens)
        past = len(self._decode(tokens[: self._least])) if self._least else 0
        matches = []
        for stop in self.texts:
            at = text.find(stop, max(0, past - len(stop) + 1))
            if at >= 0:
                matches.append((at + len(stop), at))
        return min(matches)[1] if matches else None

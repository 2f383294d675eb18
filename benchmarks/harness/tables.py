"""Tables of Markdown."""

from collections.abc import Iterable, Sequence


def markdown(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int | None = None
) -> list[str]:
    """Lines of a table.

    Args:
      titles: of the columns.
      rows: their cells.
      numbers_from: the first column that is set flush right. Default: none is.
    """
    first = len(titles) if numbers_from is None else numbers_from
    rule = "---|" * first + "---:|" * (len(titles) - first)
    return [_line(titles), f"|{rule}", *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """A text as a cell."""
    return text.replace("|", "\\|").replace("\n", " ")

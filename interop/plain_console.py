"""Tables on the terminal, of texts from anybody's files.

Imported where a table is printed: rich takes a tenth of a second.
"""

from typing import Any

from rich.console import Console
from rich.text import Text

from jaxsr.interop.errors import printable_text


class PlainConsole(Console):
    """rich's console, for which no text is markup, an emoji or a control character.

    Args:
      options: of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Renders a text or a table's cell; names of layers may have anything in them."""
        return super().render_str(printable_text(text), **options)

    def on_broken_pipe(self) -> None:
        """Lets the command end as one whose output is closed; rich would end it with status 1."""
        raise BrokenPipeError

"""JSON that a person wrote: a name that appears twice is a mistake, not the last one's."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.errors import InputError, first_line


def check_once(names: Iterable[str]) -> None:
    """Raises ValueError for a name that appears twice."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"{min(twice)!r:.80} appears twice")


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
      ValueError: it is not JSON, or one of its objects has a name twice.
      RecursionError: it has lists within each other without end.
    """

    def once(pairs: list[tuple[str, Any]]) -> JsonObject:
        check_once(name for name, _ in pairs)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=once)


def json_object(option: str, text: str) -> JsonObject:
    """Parses an option that is a JSON object; empty text gives no values.

    Raises:
      InputError: it is not a JSON object; the message names the option.
    """
    try:
        values = parse_json(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option} is not JSON ({first_line(error)}): {text[:80]!r}") from None
    if not isinstance(values, dict):
        raise InputError(
            f"{option} must be a JSON object such as '{{\"width\": 64}}', got {text[:80]!r}"
        )
    return values

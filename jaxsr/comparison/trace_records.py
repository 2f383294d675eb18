"""Recording a run: figures of what every operation gave, whole tensors where they are asked for."""

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxsr.comparison.calls import Call
from jaxsr.comparison.statistics import Figures, describe


@dataclass(frozen=True, kw_only=True)
class Record:
    """One operation of a run and what is kept of it."""

    call: Call
    figures: tuple[Figures, ...] = ()
    """Of each result; empty where the value could not leave the program."""
    whole: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """`in0`, `in1`, …, `out0`, …, for operations that were asked for whole."""


class FiguresEar:
    """Takes figures of every result as soon as it is there, and keeps none of the tensors.

    Args:
      host: a tensor's value as a NumPy array, or None where it has none.
      keep: `fnmatch` patterns of `path:operation` whose tensors are kept whole.
    """

    def __init__(
        self, host: Callable[[Any], np.ndarray | None], *, keep: Sequence[str] = ()
    ) -> None:
        self.records: list[Record] = []
        self._host, self._keep = host, tuple(keep)

    def before(self, tensors: list[Any]) -> Any:
        """See `Ear.before`."""
        return [_copied(self._host(t)) for t in tensors] if self._keep else None

    def heard(self, call: Call, operands: list[Any], results: list[Any], kept: Any) -> None:
        """See `Ear.heard`."""
        values = [self._host(t) for t in results]
        figures = tuple(describe(v) for v in values if v is not None)
        if len(figures) < len(values):
            figures = ()
        whole = {}
        if wanted(call, self._keep):
            inputs = kept or [self._host(t) for t in operands]
            named = {f"in{k}": v for k, v in enumerate(inputs)}
            named |= {f"out{k}": v for k, v in enumerate(values)}
            whole = {name: _copied(v) for name, v in named.items() if v is not None}
        self.records.append(Record(call=call, figures=figures, whole=whole))


def wanted(call: Call, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches the call's `path:operation`."""
    name = ":".join(call.token)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _copied(value: np.ndarray | None) -> Any:
    return None if value is None else np.array(value)

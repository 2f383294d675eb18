"""Refuses statistics of a part of the batch where they must be those of the whole."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from jaxsr.interop.errors import UnsupportedTorchError

_WHOLE = ContextVar("whole", default=False)


@contextlib.contextmanager
def whole_batch_statistics() -> Iterator[None]:
    """While a step is traced for one device's rows, but promises statistics of all rows."""
    before = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(before)


def check_rows(rows: int, axis: object) -> None:
    """Called where a normalisation takes statistics over `rows` samples.

    Args:
      rows: samples that share statistics; 1 where each has its own, as in InstanceNorm.
      axis: mesh axes that the statistics are exchanged over, or None.

    Raises:
      UnsupportedTorchError: the statistics would be those of one device's rows.
    """
    if _WHOLE.get() and axis is None and rows > 1:
        raise UnsupportedTorchError(
            "batch normalisation outside of nn.BatchNorm1d, 2d and 3d cannot take its statistics "
            "over all devices in bfloat16; use one of these modules, --batch-norm local, or "
            "--dtype float32"
        )

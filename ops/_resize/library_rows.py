"""Images as rows (n, h, w, c) of a library's kernel."""

import math
from collections.abc import Mapping, Sequence

import jax

from jaxsr.xla_calls.rows import RowsCall


def resized_rows(
    image: jax.Array,
    axes: Sequence[int],
    size: Sequence[int],
    kernel: str,
    options: Mapping[str, Sequence[int]],
) -> jax.Array:
    """The kernel's result for an image whose height and width are neighbours."""
    height, width = axes
    leading, channels = image.shape[:height], image.shape[width + 1 :]
    call = RowsCall(
        kernel=kernel,
        shape=(math.prod(leading), *size, math.prod(channels)),
        axes=("n", "n"),
        channels_last=(False, False),
        options=tuple((name, tuple(map(int, values))) for name, values in options.items()),
    )
    extents = image.shape[height], image.shape[width]
    rows = image.reshape(math.prod(leading), *extents, math.prod(channels))
    return call(rows).reshape(*leading, *size, *channels)

"""`torch.segment_reduce` of rows: sums, means, extremes and products of stretches along axis 0."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxsr.interop._core.dtypes import nan_where
from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers

_REDUCE: dict[str, Callable[..., jax.Array]] = {
    "sum": jax.ops.segment_sum,
    "mean": jax.ops.segment_sum,
    "max": jax.ops.segment_max,
    "min": jax.ops.segment_min,
    "prod": jax.ops.segment_prod,
}


@lowers(aten.segment_reduce.default)
def segment_reduce(
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    indices: Any = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> jax.Array:
    del indices, unsafe  # lengths that torch refuses give NaN
    if lengths is None:
        assert offsets is not None  # torch takes one of them
        lengths = jnp.diff(offsets)
    if lengths.ndim != 1 or axis != 0 or initial is not None:
        raise NotImplementedError("segment_reduce along another axis than 0, or with initial=")
    count = lengths.shape[0]
    rows = jnp.repeat(jnp.arange(count), lengths, total_repeat_length=data.shape[0])
    out = _REDUCE[reduce](data, rows, count, indices_are_sorted=True)
    if reduce == "mean":  # of none it is NaN
        out = out / lengths.reshape(-1, *[1] * (data.ndim - 1))
    return nan_where((lengths < 0).any() | (lengths.sum() != data.shape[0]), out)

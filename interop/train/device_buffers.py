"""Buffers that forward writes, where each device sees its own rows of the batch."""

import logging
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp

from jaxsr.interop import mesh as meshes
from jaxsr.interop.train.gradients import Arrays

_Collective = Callable[[jax.Array, tuple[str, ...]], jax.Array]
# JAX gives these no types.
_pmax = cast(_Collective, jax.lax.pmax)  # pyright: ignore[reportUnknownMemberType]
_pmin = cast(_Collective, jax.lax.pmin)  # pyright: ignore[reportUnknownMemberType]

log = logging.getLogger(__name__)

_OF_LAYERS = {
    "running_mean", "running_var", "num_batches_tracked",  # exchanged by normalisations
    "_u", "_v", "weight_u", "weight_v",  # of spectral norms, from weights alone
}  # fmt: skip


def differing(buffers: Arrays) -> Arrays:
    """Rules about buffers whose whole numbers differ between devices: 0 where they are equal.

    A warning names all buffers but those of torch's layers.

    Args:
      buffers: those that forward writes, on one device.
    """
    written = {name: b for name, b in buffers.items() if name.rpartition(".")[2] not in _OF_LAYERS}
    if written:
        log.warning(
            "forward writes %s from each device's rows: floats become the devices' mean, which is "
            "right for means and not for sums; --dtype float32 writes them from the whole batch",
            ", ".join(written),
        )
    counts = {
        name: buffer.astype(jnp.int32)
        for name, buffer in written.items()
        if not jnp.issubdtype(buffer, jnp.floating)
    }
    return {
        f"forward writes other numbers into the buffer {name} on each device, from its own rows; "
        "use --dtype float32 with --batch-norm global, or one device": jnp.max(
            _pmax(b, meshes.DATA_AXES) - _pmin(b, meshes.DATA_AXES)
        )
        for name, b in counts.items()
    }

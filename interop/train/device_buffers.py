"""Buffers that forward writes, where each device sees its own rows of the batch."""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp

from jaxsr.interop import mesh as meshes
from jaxsr.interop.train.gradients import Arrays

if TYPE_CHECKING:
    import torch

_Collective = Callable[[jax.Array, tuple[str, ...]], jax.Array]
# JAX gives these no types.
_pmax = cast(_Collective, jax.lax.pmax)  # pyright: ignore[reportUnknownMemberType]
_pmin = cast(_Collective, jax.lax.pmin)  # pyright: ignore[reportUnknownMemberType]

log = logging.getLogger(__name__)

_OF_NORMALISATIONS = {"running_mean", "running_var", "num_batches_tracked"}  # exchanged
_OF_WEIGHTS = {"_u", "_v", "weight_u", "weight_v"}  # of spectral norms


def differing(buffers: Arrays, module: "torch.nn.Module") -> Arrays:
    """Rules about buffers whose whole numbers differ between devices: 0 where they are equal.

    A warning names all buffers but those of torch's layers.

    Args:
      buffers: those that forward writes, on one device.
      module: has them.
    """
    from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

    if jax.lax.axis_size(meshes.DATA_AXES) == 1:
        return {}
    norm = cast("type[torch.nn.Module]", _NormBase)
    layers = cast("Iterable[tuple[str, torch.nn.Module]]", module.named_modules())
    exchanged = {
        f"{owner}.{name}".lstrip(".")
        for owner, layer in layers
        if isinstance(layer, norm)
        for name in _OF_NORMALISATIONS
    }
    written = {
        name: buffer
        for name, buffer in buffers.items()
        if name not in exchanged and name.rpartition(".")[2] not in _OF_WEIGHTS
    }
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

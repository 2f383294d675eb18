"""Torch's sums over the pixels of each channel, and copies, in JAX programs for CPUs."""

from collections.abc import Sequence

import jax
import torch

from jaxsr.interop.cpu_kernels.torch_calls import torch_call, torch_kernel
from jaxsr.ops._by_rows import RowsCall
from jaxsr.ops._cpu_calls import Arrays, Attributes, kernel


@torch_kernel("jaxsr_channel_sums")
def _sums(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], options: Attributes
) -> None:
    (x,), (out,), (axis,) = inputs, outputs, options["axis"]
    pixels = [i for i in range(x.ndim) if i != axis and (i or out.ndim == 1)]
    torch.sum(x, pixels, out=out)


def channel_sums_by_torch(x: jax.Array, *, axis: int, by_row: bool) -> jax.Array:
    """`channel_sums_p` by torch's kernel."""
    channels = x.shape[axis]
    return torch_call(
        _sums,
        x,
        shape=(x.shape[0], channels) if by_row else (channels,),
        has_rows=(True, by_row),
        channels_last=(axis == 1, False),
        options=(("axis", (axis,)),),
    )


@kernel("jaxsr_stored")
def _stored(inputs: Arrays, outputs: Arrays, options: Attributes) -> None:
    """The result lies where the operand lay."""


def stored_by_torch(x: jax.Array) -> jax.Array:
    """`stored_p` by a call that XLA does not see through; also where kernels are XLA's."""
    return RowsCall(
        kernel=_stored, shape=x.shape, has_rows=(True, True), channels_last=(False, False),
        in_place=True,
    )(x)  # fmt: skip

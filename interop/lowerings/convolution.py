"""Convolution and transposed convolution in any number of dimensions, with groups."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.dispatch import lowers
from jaxsr.interop.lowerings.any_convolution import convolve_any
from jaxsr.interop.lowerings.weight_gradient import convolve

aten = torch.ops.aten


def _spread(values: Sequence[int], n: int) -> tuple[int, ...]:
    return tuple(values) * n if len(values) == 1 else tuple(values)


@lowers(aten.convolution.default)
def convolution(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    """Channels first; `weight` is (out, in/groups, ...), or (in, out/groups, ...) transposed."""
    n = weight.ndim - 2
    batched = x.ndim == n + 2
    x = x if batched else x[None]
    stride, padding, dilation = (_spread(v, n) for v in (stride, padding, dilation))
    letters = "DHW"[-n:] if n <= 3 else "ABCD"[:n]
    layout = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    if transposed:
        # The adjoint of a convolution: stride becomes dilation of the input, the kernel is turned
        # round, and each group keeps its own block of output channels.
        extra = _spread(output_padding, n)
        kernel = weight.shape[2:]
        inputs, per_group = weight.shape[:2]
        w = weight.reshape(groups, inputs // groups, per_group, *kernel)
        w = jnp.swapaxes(w, 1, 2).reshape(groups * per_group, inputs // groups, *kernel)
        w = jnp.flip(w, tuple(range(2, n + 2)))
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        out = convolve_any(
            x,
            w,
            (1,) * n,
            [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)],
            layout=layout,
            lhs_dilation=stride,
            rhs_dilation=dilation,
            groups=groups,
        )
    elif n == 2 and groups == 1 and stride == dilation == (1, 1):
        out = convolve(x, weight, [(p, p) for p in padding])
    else:
        out = convolve_any(
            x,
            weight,
            stride,
            [(p, p) for p in padding],
            layout=layout,
            rhs_dilation=dilation,
            groups=groups,
        )
    if bias is not None:
        out = out + bias.reshape(-1, *(1,) * n)
    return out if batched else out[0]

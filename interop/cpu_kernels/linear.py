"""The gradient of a linear layer's weight in JAX programs for CPUs: torch's matrix product."""

from collections.abc import Sequence

import jax
import torch

from jaxsr.interop.cpu_kernels.torch_calls import torch_call, torch_kernel
from jaxsr.ops._cpu_calls import Attributes

Tensors = Sequence[torch.Tensor]


@torch_kernel("jaxsr_linear_weight")
def _weight(inputs: Tensors, outputs: Tensors, _: Attributes) -> None:
    x, g = (each.reshape(-1, each.shape[-1]) for each in inputs)
    torch.mm(g.T, x, out=outputs[0])


def weight_gradient_by_torch(x: jax.Array, g: jax.Array) -> jax.Array:
    """The sum of the outer products of rows g (N, ..., O) and x (N, ..., I): (O, I)."""
    inner = "." * (x.ndim - 2)
    return torch_call(
        _weight,
        x,
        g,
        shape=(g.shape[-1], x.shape[-1]),
        axes=(f"n{inner}i", f"n{inner}o", "oi"),
        channels_last=(False,) * 3,
    )

"""A linear layer, whose weight's gradient torch computes on CPUs.

XLA transposes both factors of that product in memory before it multiplies them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from jaxsr.interop.cpu_kernels.choice import weight_of_rows_by_torch
from jaxsr.interop.cpu_kernels.linear import weight_gradient_by_torch
from jaxsr.interop.cpu_kernels.operands import alike
from jaxsr.interop.lowerings.channel_moments import shape_option, spread
from jaxsr.interop.lowerings.precision import matmul_precision
from jaxsr.ops._cpu_primitives import cpu_primitive

# Rows x (N, ..., I), a weight (O, I), results g (N, ..., O)

_LEAST_SPREAD = 1 << 18
"""Elements of a result from which on torch sums its bias's gradient in programs for CPUs. XLA adds
in order: 392 gradients, most of them equal, of zero-padded windows err by 35 steps of float32, and
torch by 2. Below, a call would cost more than the sum."""


def linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """`input @ weight.T + bias`, as `F.linear`."""
    if input.ndim > 1 and weight.ndim == 2 and input.dtype == weight.dtype and input.size:
        out = _product(input, weight, matmul_precision())
    else:
        out = jnp.matmul(input, weight.T)
    if bias is None:
        return out
    if bias.ndim == 1 and out.ndim > 1 and out.size >= _LEAST_SPREAD:
        bias = spread(bias, out.shape, axis=-1)
    return out + bias


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _product(x: jax.Array, weight: jax.Array, precision: lax.Precision | None) -> jax.Array:
    return jnp.matmul(x, weight.T, precision=precision)


def _product_jvp(precision: Any, primals: Any, tangents: Any) -> Any:
    (x, weight), (dx, dweight) = primals, tangents
    out = _product(x, weight, precision)
    terms = []
    if not isinstance(dx, SymbolicZero):
        terms.append(_product(dx, weight, precision))
    if not isinstance(dweight, SymbolicZero):
        terms.append(change_p.bind(*alike(x, dweight), precision=precision))
    return out, sum(terms[1:], terms[0]) if terms else jnp.zeros_like(out)


_product.defjvp(_product_jvp, symbolic_zeros=True)


def _plain_change(x: jax.Array, dweight: jax.Array, *, precision: Any) -> jax.Array:
    return jnp.matmul(x, dweight.T, precision=precision)


def _plain_gradient(x: jax.Array, g: jax.Array, *, precision: Any, shape: Any) -> jax.Array:
    del shape
    rows = tuple(range(x.ndim - 1))
    return lax.dot_general(g, x, ((rows, rows), ((), ())), precision=precision)


def _gradient_on_cpu(x: jax.Array, g: jax.Array, *, precision: Any, shape: Any) -> jax.Array:
    if weight_of_rows_by_torch(x, shape):
        return weight_gradient_by_torch(x, g)
    return _plain_gradient(x, g, precision=precision, shape=shape)


change_p = cpu_primitive("jaxsr_linear_change", _plain_change)
"""Of the result, where the weight changes."""
gradient_p = cpu_primitive(
    "jaxsr_linear_gradient", _plain_gradient, _gradient_on_cpu, shape_of=shape_option
)
"""Of the weight."""


def _gradient(x: jax.Array, g: jax.Array, *, precision: Any) -> jax.Array:
    shape = (g.shape[-1], x.shape[-1])
    return gradient_p.bind(*alike(x, g), precision=precision, shape=shape)


ad.defbilinear(
    change_p,
    lambda ct, x, dweight, *, precision: jnp.matmul(ct, dweight, precision=precision),
    lambda ct, x, dweight, *, precision: _gradient(x, ct, precision=precision),
)
ad.defbilinear(
    gradient_p,
    lambda ct, x, g, *, precision, shape: jnp.matmul(g, ct, precision=precision),
    lambda ct, x, g, *, precision, shape: change_p.bind(*alike(x, ct), precision=precision),
)

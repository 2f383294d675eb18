"""Convolution of stride 1 in the forms that CPUs compute faster. Accelerators keep XLA's.

A kernel of one pixel is a matrix product of each image, without the transposes to channels last and
back that a convolution costs: 48 to 16 channels on 4 images of 256² take 5 ms of processor time
instead of 28, their weight gradient 9 instead of 17.

The gradient of a larger kernel correlates the input with the output's gradient. XLA's rule takes
patches of the input and multiplies them by the output's gradient, so that the output channels fill
the vector registers: three of them fill a fifth. The other way round, with patches of the output's
gradient, the input channels do: 64 to 3 channels of 9×9 on 8 images of 96² take 23 ms that way,
against 128; 64 to 256 of 3×3 at 48² take 49 against 60. Fewer outputs than inputs that fill a
register themselves lose (96 to 32 at 128²: 123 against 39), as do narrow inputs.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

Padding = tuple[tuple[int, int], ...]

LANES = 16
"""float32 numbers in a vector register: fewer input channels leave some of it unused."""

WIDE = 64
"""Input channels from which on the other way round also wins where outputs are more."""

_LAYOUT = ("NCHW", "OIHW", "NCHW")


def convolve(x: jax.Array, weight: jax.Array, padding: Sequence[tuple[int, int]]) -> jax.Array:
    """Two-dimensional convolution, NCHW by OIHW, differentiable in every mode."""
    pairs = tuple((int(low), int(high)) for low, high in padding)
    outputs, inputs, *kernel = weight.shape
    if kernel == [1, 1] and pairs == ((0, 0), (0, 0)) and x.size:
        plain = functools.partial(_plain, padding=pairs)
        return lax.platform_dependent(x, weight, cpu=_product, default=plain)
    few = outputs < LANES <= inputs
    return (
        _convolve(pairs, x, weight) if few or outputs > inputs >= WIDE else _plain(x, weight, pairs)
    )


def _product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """A kernel of one pixel. One product an image: a single one would have to transpose them."""
    rows, inputs, *spatial = x.shape
    each = jnp.broadcast_to(weight[:, :, 0, 0], (rows, *weight.shape[:2]))
    out = lax.dot_general(each, x.reshape(rows, inputs, -1), (((2,), (1,)), ((0,), (0,))))
    return out.reshape(rows, -1, *spatial)


def _plain(x: jax.Array, weight: jax.Array, padding: Padding) -> jax.Array:
    return lax.conv_general_dilated(x, weight, (1, 1), padding, dimension_numbers=_LAYOUT)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _convolve(padding: Padding, x: jax.Array, weight: jax.Array) -> jax.Array:
    return _plain(x, weight, padding)


@functools.partial(_convolve.defjvp, symbolic_zeros=True)
def _tangent(padding: Padding, primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, weight = primals
    dx, dweight = tangents
    out = _convolve(padding, x, weight)
    parts = []
    if not isinstance(dx, SymbolicZero):
        parts.append(_plain(dx, weight, padding))
    if not isinstance(dweight, SymbolicZero):
        by_weight = lax.platform_dependent(
            x,
            dweight,
            cpu=functools.partial(_by_weight, padding=padding),
            default=functools.partial(_plain, padding=padding),
        )
        parts.append(by_weight)
    return out, sum(parts[1:], parts[0]) if parts else jnp.zeros_like(out)


def _by_weight(x: jax.Array, dweight: jax.Array, *, padding: Padding) -> jax.Array:
    """`_plain`, written so that its transpose in `dweight` is `_weight_gradient`."""
    out = jax.eval_shape(functools.partial(_plain, padding=padding), x, dweight)
    kernel = dweight.shape[2:]
    gradient = functools.partial(_weight_gradient, x, kernel=kernel, padding=padding)
    (tangent,) = jax.linear_transpose(gradient, out)(dweight)
    return tangent


def _weight_gradient(
    x: jax.Array, out_gradient: jax.Array, *, kernel: tuple[int, ...], padding: Padding
) -> jax.Array:
    """Patches of the output's gradient by the input; comes out with the kernel turned round."""
    reach = [(k - 1 - low, k - 1 - high) for k, (low, high) in zip(kernel, padding, strict=True)]
    turned = lax.conv_general_dilated(
        out_gradient, x, (1, 1), reach, dimension_numbers=("CNHW", "IOHW", "NCHW")
    )
    return jnp.flip(turned, (2, 3))

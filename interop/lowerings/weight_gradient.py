"""Convolution of stride 1 in the forms that CPUs compute faster. Accelerators keep XLA's.

A kernel of one pixel is a matrix product of each image, without the transposes to channels last and
back that a convolution costs: 48 to 16 channels on 4 images of 256² take 5 ms of processor time
instead of 28, their weight gradient 9 instead of 17.

The gradient of a larger kernel correlates the input with the output's gradient. XLA's rule takes
patches of the input and multiplies them by the output's gradient, so that the output channels fill
the vector registers: three of them fill a fifth. The other way round, with patches of the output's
gradient, the input channels do: 64 to 3 channels of 9×9 on 8 images of 96² take 23 ms that way,
against 128 (with channels last 28 against 86). Fewer outputs than inputs that fill a register
themselves lose (96 to 32 at 128²: 123 against 39), as do narrow inputs. With channels first the
other way also wins for more outputs than inputs, 64 to 256 of 3×3 at 48² by 49 against 60; with
channels last it loses there by 52 against 38.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

LANES = 16
"""float32 numbers in a vector register: fewer input channels leave some of it unused."""

WIDE = 64
"""Input channels from which on the other way also wins where outputs are more, channels first."""

_FIRST = ("NCHW", "OIHW", "NCHW")
_LAST = ("NHWC", "OIHW", "NHWC")


def convolve(
    x: jax.Array,
    weight: jax.Array,
    padding: Sequence[tuple[int, int]],
    *,
    channels_last: bool = False,
) -> jax.Array:
    """Two-dimensional convolution, differentiable in every mode.

    Args:
      x: NCHW, or NHWC where `channels_last`.
      weight: OIHW.
      padding: zeros before and after, along both axes.
      channels_last: the order of the result, too.
    """
    form = _Form(tuple((int(low), int(high)) for low, high in padding), channels_last)
    outputs, inputs, *kernel = weight.shape
    if kernel == [1, 1] and form.padding == ((0, 0), (0, 0)) and x.size:
        return lax.platform_dependent(x, weight, cpu=form.product, default=form.plain)
    few = outputs < LANES <= inputs
    own = few or (outputs > inputs >= WIDE and not channels_last)
    return _convolve(form, x, weight) if own else form.plain(x, weight)


@dataclasses.dataclass(frozen=True)
class _Form:
    """What is known of a convolution before its arrays are."""

    padding: tuple[tuple[int, int], ...]
    channels_last: bool

    def plain(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        layout = _LAST if self.channels_last else _FIRST
        return lax.conv_general_dilated(x, weight, (1, 1), self.padding, dimension_numbers=layout)

    def product(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        """A kernel of one pixel."""
        if self.channels_last:
            return jnp.tensordot(x, weight[:, :, 0, 0], ((3,), (1,)))
        # One product an image: a single one would have to transpose them.
        rows, _, *spatial = x.shape
        each = jnp.broadcast_to(weight[:, :, 0, 0], (rows, *weight.shape[:2]))
        out = lax.dot_general(each, x.reshape(*x.shape[:2], -1), (((2,), (1,)), ((0,), (0,))))
        return out.reshape(rows, -1, *spatial)

    def by_weight(self, x: jax.Array, dweight: jax.Array) -> jax.Array:
        """`plain`, written so that its transpose in `dweight` is `weight_gradient`."""
        out = jax.eval_shape(self.plain, x, dweight)
        gradient = functools.partial(self.weight_gradient, x, kernel=dweight.shape[2:])
        (tangent,) = jax.linear_transpose(gradient, out)(dweight)
        return tangent

    def weight_gradient(
        self, x: jax.Array, out_gradient: jax.Array, *, kernel: tuple[int, ...]
    ) -> jax.Array:
        """Patches of the output's gradient by the input; comes out with the kernel turned round."""
        sides = zip(kernel, self.padding, strict=True)
        reach = [(k - 1 - low, k - 1 - high) for k, (low, high) in sides]
        swapped = ("CHWN", "IHWO", "NCHW") if self.channels_last else ("CNHW", "IOHW", "NCHW")
        turned = lax.conv_general_dilated(out_gradient, x, (1, 1), reach, dimension_numbers=swapped)
        return jnp.flip(turned, (2, 3))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _convolve(form: _Form, x: jax.Array, weight: jax.Array) -> jax.Array:
    return form.plain(x, weight)


@functools.partial(_convolve.defjvp, symbolic_zeros=True)
def _tangent(form: _Form, primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, weight = primals
    dx, dweight = tangents
    out = _convolve(form, x, weight)
    parts = []
    if not isinstance(dx, SymbolicZero):
        parts.append(form.plain(dx, weight))
    if not isinstance(dweight, SymbolicZero):
        parts.append(lax.platform_dependent(x, dweight, cpu=form.by_weight, default=form.plain))
    return out, sum(parts[1:], parts[0]) if parts else jnp.zeros_like(out)

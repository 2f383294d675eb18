"""Convolution and transposed convolution in any number of dimensions, with groups.

`convolution` is torch's operator, `general_convolution` is JAX's in a form that XLA can compile.
`unit_stride_convolution` has the forms that CPUs compute faster; accelerators keep XLA's:

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
import torch
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxsr.interop._core.registry import lowers

aten = torch.ops.aten

LANES = 16
"""float32 numbers in a vector register: fewer input channels leave some of it unused."""

WIDE = 64
"""Input channels from which on the other way also wins where outputs are more, channels first."""

_FIRST = ("NCHW", "OIHW", "NCHW")
_LAST = ("NHWC", "OIHW", "NHWC")


def per_axis(value: int | Sequence[int], n: int) -> tuple[int, ...]:
    """An option of torch's for each of `n` axes, from one for all or one each."""
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values * n if len(values) == 1 else values


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
    stride, padding, dilation = (per_axis(v, n) for v in (stride, padding, dilation))
    letters = "DHW"[-n:] if n <= 3 else "ABCD"[:n]
    layout = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    options: dict[str, Any] = {"layout": layout, "rhs_dilation": dilation, "groups": groups}
    if transposed:
        # The adjoint of a convolution: stride becomes dilation of the input, the kernel is turned
        # round, and each group keeps its own block of output channels.
        extra = per_axis(output_padding, n)
        kernel = weight.shape[2:]
        inputs, per_group = weight.shape[:2]
        w = weight.reshape(groups, inputs // groups, per_group, *kernel)
        w = jnp.swapaxes(w, 1, 2).reshape(groups * per_group, inputs // groups, *kernel)
        w = jnp.flip(w, tuple(range(2, n + 2)))
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)]
        out = general_convolution(x, w, (1,) * n, sides, lhs_dilation=stride, **options)
    elif n == 2 and groups == 1 and stride == dilation == (1, 1):
        out = unit_stride_convolution(x, weight, [(p, p) for p in padding])
    else:
        sides = [(p, p) for p in padding]
        out = general_convolution(x, weight, stride, sides, **options)
    if bias is not None:
        out = out + bias.reshape(-1, *(1,) * n)
    return out if batched else out[0]


def general_convolution(
    x: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    *,
    layout: tuple[str, str, str],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    groups: int = 1,
) -> jax.Array:
    """`lax.conv_general_dilated`: the same sums, in a form that compiles.

    XLA's algebraic simplifier (`SwapConvOperands`, jaxlib 0.10.2) mistakes an axis for a group
    where the input is dilated by two, the kernel has two taps and nothing is padded. If another
    axis has more taps than pixels it exchanges input and kernel, makes an invalid program and ends
    the process. The input gradient of a 3 × 2 kernel of stride 2 with padding 1 over 4 × 4 pixels
    is such a program. Padding on such axes is a separate operation here.

    Args:
      x: the input, its axes as `layout[0]` says.
      weight: the kernel, as `layout[1]` says.
      stride: of the window, in pixels, for each spatial axis.
      padding: zeros before and after, for each spatial axis.
      layout: of input, kernel and output, as ("NCHW", "OIHW", "NCHW").
      lhs_dilation: distance between pixels of the input. Default: 1.
      rhs_dilation: distance between taps of the kernel. Default: 1.
      groups: of channels that are convolved by themselves.
    """
    spatial = [layout[0].index(letter) for letter in layout[1] if letter not in "OI"]
    taps = [weight.shape[i] for i, letter in enumerate(layout[1]) if letter not in "OI"]
    n = len(taps)
    lhs = tuple(lhs_dilation or (1,) * n)
    rhs = tuple(rhs_dilation or (1,) * n)
    padding = [(int(low), int(high)) for low, high in padding]

    # Of a stride, the input gradient is dilated by it, and padded by as much as this one lacks.
    strided = [i for i in range(n) if (taps[i], stride[i], rhs[i], padding[i][0]) == (2, 2, 1, 1)]
    if 0 < len(strided) < n:
        zeros = [(0, 0, 0)] * x.ndim
        for i in strided:
            zeros[spatial[i]] = (*padding[i], 0)
            padding[i] = (0, 0)
        x = lax.pad(x, jnp.zeros((), x.dtype), zeros)

    dilated = [i for i in range(n) if lhs[i] == 2 and rhs[i] == 1 and padding[i] == (0, 0)]
    for i in dilated:
        padding[i] = (1, 1)
    out = lax.conv_general_dilated(
        x,
        weight,
        tuple(stride),
        padding,
        lhs_dilation=lhs,
        rhs_dilation=rhs,
        dimension_numbers=layout,
        feature_group_count=groups,
    )
    for i in dilated:
        axis = layout[2].index(layout[0][spatial[i]])
        out = lax.slice_in_dim(out, 1, out.shape[axis] - 1, axis=axis)
    return out


def unit_stride_convolution(
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
    reversed_roles = few or (outputs > inputs >= WIDE and not channels_last)
    return _convolve(form, x, weight) if reversed_roles else form.plain(x, weight)


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

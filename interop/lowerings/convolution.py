"""Convolution and transposed convolution in any number of dimensions, with groups.

`convolution` is torch's operator; `convolve` and its relatives are JAX functions, differentiable in
every mode. A convolution ties three arrays together: images x (N, C, ...), a weight w (O, C/groups,
...), and results g (N, O, ...). It is linear in each, so one primitive computes any of the three
from the other two: the result, the gradient of the images, the gradient of the weight. The
derivatives of each are again the other ones.

On CPUs the primitive calls torch's kernels (`interop/cpu_kernels`), where they are faster.
Elsewhere it is `lax.conv_general_dilated`, or the transpose of it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching

from jaxsr.interop._core.operators import aten
from jaxsr.interop._core.registry import lowers
from jaxsr.interop.cpu_kernels.choice import convolves_by_torch, weight_by_xla
from jaxsr.interop.cpu_kernels.convolution import convolution_by_torch
from jaxsr.interop.cpu_kernels.operands import alike, varying_axes
from jaxsr.interop.lowerings.channel_moments import shape_option, spread
from jaxsr.interop.lowerings.precision import matmul_precision
from jaxsr.xla_calls.primitives import cpu_primitive


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
    geometry: dict[str, Any] = {
        "stride": per_axis(stride, n),
        "padding": per_axis(padding, n),
        "dilation": per_axis(dilation, n),
        "groups": groups,
        "channels_last": False,
    }
    if transposed:
        extra = per_axis(output_padding, n)
        # Padding of a stride or more belongs to further pixels of the input, which are zero.
        further = [e // s for e, s in zip(extra, geometry["stride"], strict=True)]
        if any(further):
            x = jnp.pad(x, [(0, 0), (0, 0), *((0, f) for f in further)])
            extra = [e % s for e, s in zip(extra, geometry["stride"], strict=True)]
        size = [
            (x.shape[2 + i] - 1) * geometry["stride"][i]
            - 2 * geometry["padding"][i]
            + geometry["dilation"][i] * (weight.shape[2 + i] - 1)
            + extra[i]
            + 1
            for i in range(n)
        ]
        out = _bind(
            weight, x, wrt="input", shape=(x.shape[0], weight.shape[1] * groups, *size), **geometry
        )
        if bias is not None:
            out = out + spread(bias.astype(out.dtype), out.shape, axis=1)
    else:
        out = convolve(x, weight, bias, **geometry)
    return out if batched else out[0]


def convolve(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    channels_last: bool = False,
) -> jax.Array:
    """Convolution, differentiable in every mode.

    Args:
      x: (N, C, ...), or (N, ..., C) where `channels_last`.
      weight: (O, C/groups, ...).
      bias: (O,), or None.
      stride: of the window, for each spatial axis.
      padding: zeros on both sides of each spatial axis.
      dilation: distance between the taps of the kernel.
      groups: of channels that are convolved by themselves.
      channels_last: also the order of the result.
    """
    first = 1 if channels_last else 2
    size = [
        (x.shape[first + i] + 2 * p - d * (weight.shape[2 + i] - 1) - 1) // s + 1
        for i, (s, p, d) in enumerate(zip(stride, padding, dilation, strict=True))
    ]
    rows, outputs = x.shape[:1], weight.shape[:1]
    options: dict[str, Any] = {
        "shape": (*rows, *size, *outputs) if channels_last else (*rows, *outputs, *size),
        "stride": tuple(stride),
        "padding": tuple(padding),
        "dilation": tuple(dilation),
        "groups": groups,
        "channels_last": channels_last,
    }
    if bias is None:
        return _bind(x, weight, wrt="out", **options)
    return biased_p.bind(*alike(x, weight, bias), precision=matmul_precision(), **options)


# ---- the primitive

_OPERANDS = {"out": "xw", "input": "wg", "weight": "xg"}
_RESULT = {"out": "g", "input": "x", "weight": "w"}
_WRT = {"g": "out", "x": "input", "w": "weight"}


def _bind(a: jax.Array, b: jax.Array, *, shape: Sequence[int], **options: Any) -> jax.Array:
    """The array of `wrt` from the two others, in the order of `_OPERANDS`."""
    a, b = alike(a, b)
    return convolution_p.bind(
        a, b, shape=tuple(shape), **{"precision": matmul_precision()} | options
    )


def _transposed(
    side: int,
    cotangent: jax.Array,
    a: jax.Array | ad.UndefinedPrimal,
    b: jax.Array | ad.UndefinedPrimal,
    *,
    wrt: str,
    shape: tuple[int, ...],
    **options: Any,
) -> jax.Array:
    """The gradient of operand `side` from the cotangent of the result and the other operand."""
    arrays = {_RESULT[wrt]: cotangent, **dict(zip(_OPERANDS[wrt], (a, b), strict=True))}
    missing = _OPERANDS[wrt][side]
    wrt = _WRT[missing]
    operands = (arrays[role] for role in _OPERANDS[wrt])
    return _bind(*operands, wrt=wrt, shape=arrays[missing].aval.shape, **options)


# The index of the sum that a mapped axis joins: the axis of each array that has it.
_INDICES = {
    "rows": {"x": 0, "g": 0},
    "inputs": {"x": 1, "w": 1},
    "outputs": {"w": 0, "g": 1},
    "groups": {"x": 1, "w": 0, "g": 1},
}


def _batched(
    operands: Sequence[jax.Array],
    axes: Sequence[int | None],
    *,
    wrt: str,
    shape: tuple[int, ...],
    groups: int,
    channels_last: bool,
    **options: Any,
) -> tuple[jax.Array, int]:
    """`vmap`: the mapped axis joins the rows, the inputs, the outputs or the groups."""
    size = next(a.shape[i] for a, i in zip(operands, axes, strict=True) if i is not None)
    roles, result = _OPERANDS[wrt], _RESULT[wrt]
    mapped = {role for role, axis in zip(roles, axes, strict=True) if axis is not None} | {result}
    index = next(name for name, places in _INDICES.items() if places.keys() == mapped)

    def place(role: str) -> tuple[int, int]:
        """The axis of an array that is joined, and how many groups lie outside of the new part."""
        axis = _INDICES[index][role]
        of_groups = index in ("inputs", "outputs") and (role, axis) != ("w", 1)
        if channels_last and role != "w" and axis == 1:
            axis = len(shape) - 1
        return axis, groups if of_groups else 1

    a, b = (
        array if axis is None else _merged(jnp.moveaxis(array, axis, 0), *place(role))
        for role, array, axis in zip(roles, operands, axes, strict=True)
    )
    axis, outer = place(result)
    shape = (*shape[:axis], shape[axis] * size, *shape[axis + 1 :])
    groups = groups * size if index == "groups" else groups
    options |= {"groups": groups, "channels_last": channels_last}
    out = _bind(a, b, wrt=wrt, shape=shape, **options)
    cut = out.reshape(*shape[:axis], outer, size, shape[axis] // outer // size, *shape[axis + 1 :])
    rows = jnp.moveaxis(cut, axis + 1, 0)
    return rows.reshape(size, *shape[:axis], shape[axis] // size, *shape[axis + 1 :]), 0


def _merged(array: jax.Array, axis: int, outer: int) -> jax.Array:
    """Axis 0 moved into `axis` of the rest, behind its `outer` parts."""
    size, *shape = array.shape
    cut = array.reshape(size, *shape[:axis], outer, shape[axis] // outer, *shape[axis + 1 :])
    merged = jnp.moveaxis(cut, 0, axis + 1)
    return merged.reshape(*shape[:axis], size * shape[axis], *shape[axis + 1 :])


def _by_xla(
    a: jax.Array, b: jax.Array, *, wrt: str, shape: tuple[int, ...], **options: Any
) -> jax.Array:
    if wrt == "out":
        return _plain(a, b, **options)
    if not jnp.issubdtype(b.dtype, jnp.inexact):
        return _transposed_integers(a, b, shape=shape, **options)
    # Varying as the operands do: otherwise the transpose would sum over the mesh.
    example = lax.pcast(jnp.zeros(shape, b.dtype), tuple(varying_axes(b)), to="varying")

    def forward(result: jax.Array) -> jax.Array:
        x, w = (result, a) if wrt == "input" else (a, result)
        return _plain(x, w, **options)

    (gradient,) = jax.linear_transpose(forward, example)(b)
    return gradient


def _transposed_integers(
    w: jax.Array, g: jax.Array, *, shape: tuple[int, ...], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
    groups: int, channels_last: bool, precision: lax.Precision | None,
) -> jax.Array:  # fmt: skip
    """Transposed convolution as a convolution of g with zeros between, for want of gradients."""
    assert not channels_last
    n = w.ndim - 2
    outputs, inputs, *taps = w.shape
    w = w.reshape(groups, outputs // groups, inputs, *taps).swapaxes(1, 2)
    w = jnp.flip(w.reshape(groups * inputs, outputs // groups, *taps), range(2, n + 2))
    reach = [d * (t - 1) for d, t in zip(dilation, taps, strict=True)]
    full = [(m - 1) * s + 1 + r for m, s, r in zip(g.shape[2:], stride, reach, strict=True)]
    before = [r - p for r, p in zip(reach, padding, strict=True)]
    after = [size - f + r + p for size, f, r, p in
             zip(shape[2:], full, reach, padding, strict=True)]  # fmt: skip
    return lax.conv_general_dilated(
        g, w, (1,) * n, list(zip(before, after, strict=True)), lhs_dilation=stride,
        rhs_dilation=dilation, feature_group_count=groups, precision=precision,
    )  # fmt: skip


def _plain(
    x: jax.Array,
    w: jax.Array,
    *,
    padding: Sequence[int],
    dilation: Sequence[int],
    channels_last: bool,
    **options: Any,
) -> jax.Array:
    n = w.ndim - 2
    letters = "DHW"[-n:] if n <= 3 else "ABCD"[:n]
    images = f"N{letters}C" if channels_last else f"NC{letters}"
    return general_convolution(
        x,
        w,
        padding=[(p, p) for p in padding],
        rhs_dilation=dilation,
        layout=(images, f"OI{letters}", images),
        **options,
    )


def _on_cpu(a: jax.Array, b: jax.Array, **options: Any) -> jax.Array:
    by_xla = weight_by_xla(
        a, options["shape"], wrt=options["wrt"], groups=options["groups"],
        channels_last=options["channels_last"],
    )  # fmt: skip
    if by_xla or not convolves_by_torch(a, b, options["shape"]):
        return _by_xla(a, b, **options)
    del options["precision"]  # a TPU's matter
    return convolution_by_torch(a, b, **options)


# ---- with a bias, which torch's kernel adds at no cost


def _by_parts(x: jax.Array, w: jax.Array, bias: jax.Array, **options: Any) -> jax.Array:
    return _bind(x, w, wrt="out", **options) + _at_outputs(bias, **options)


def _biased_on_cpu(x: jax.Array, w: jax.Array, bias: jax.Array, **options: Any) -> jax.Array:
    if not convolves_by_torch(x, w, options["shape"]):
        return _by_parts(x, w, bias, **options)
    del options["precision"]
    return convolution_by_torch(x, w, bias, wrt="out", has_bias=True, **options)


def _biased_jvp(
    primals: Sequence[jax.Array], tangents: Sequence[Any], **options: Any
) -> tuple[jax.Array, jax.Array]:
    (x, w, bias), (dx, dw, dbias) = primals, tangents
    terms = [
        _bind(*operands, wrt="out", **options)
        for operands in ((dx, w), (x, dw))
        if not any(isinstance(each, ad.Zero) for each in operands)
    ]
    if not isinstance(dbias, ad.Zero):
        terms.append(_at_outputs(dbias, **options))
    return biased_p.bind(x, w, bias, **options), sum(terms[1:], terms[0])


def _at_outputs(
    bias: jax.Array, *, shape: tuple[int, ...], channels_last: bool, **_: Any
) -> jax.Array:
    return spread(bias, shape, axis=len(shape) - 1 if channels_last else 1)


convolution_p = cpu_primitive("jaxsr_convolution", _by_xla, _on_cpu, shape_of=shape_option)
biased_p = cpu_primitive(
    "jaxsr_biased_convolution", _by_parts, _biased_on_cpu, shape_of=shape_option
)
ad.primitive_jvps[biased_p] = _biased_jvp
batching.primitive_batchers[convolution_p] = _batched
ad.defbilinear(convolution_p, functools.partial(_transposed, 0), functools.partial(_transposed, 1))


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
    precision: lax.Precision | None = None,
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
      precision: of products on accelerators.
    """
    spatial = [layout[0].index(letter) for letter in layout[1] if letter not in "OI"]
    taps = [weight.shape[i] for i, letter in enumerate(layout[1]) if letter not in "OI"]
    n = len(taps)
    lhs = tuple(lhs_dilation or (1,) * n)
    rhs = tuple(rhs_dilation or (1,) * n)
    padding = [(int(low), int(high)) for low, high in padding]

    # The input gradient is dilated by the stride, and padded by as much as this one lacks.
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
        precision=precision,
    )
    for i in dilated:
        axis = layout[2].index(layout[0][spatial[i]])
        out = lax.slice_in_dim(out, 1, out.shape[axis] - 1, axis=axis)
    return out

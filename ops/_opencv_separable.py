# pyright: basic
# JAX gives primitives no types.
"""`cv2.sepFilter2D` in programs for CPUs: float32 images and short windows without zeros.

OpenCV also multiplies pixels by weights of zero, which would spread infinity and NaN. Derivatives
are those of the sums in JAX.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching

from jaxsr.ops._border import Border
from jaxsr.ops._opencv import for_each_row, opencv, opencv_border, shares_out
from jaxsr.ops._row_primitives import (
    CALLS,
    first_installed,
    in_pictures,
    keeps_layout,
    without_single_channel,
)
from jaxsr.ops._separable import filter_bordered, fold_channels
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel
from jaxsr.xla_calls.primitives import cpu_primitive
from jaxsr.xla_calls.rows import RowsCall

Windows = tuple[tuple[float, ...], tuple[float, ...]]
"""Weights along height and along width."""
LONGEST_CALL = 15
"""Pixels of a window up to which OpenCV is faster. 1080 × 1920 × 3, processor ms by XLA and by
OpenCV: 8.6 and 7.8 for 7 pixels, 13.9 and 14.5 for 21 (`python -m benchmarks.ops --only blur`)."""
_BORDERS: tuple[Border, ...] = ("reflect101", "symmetric", "edge", "constant")


def separable(
    image: jax.Array, windows: Windows, border: Border, axes: tuple[int, int]
) -> jax.Array:
    """Height and width of floats correlated with windows; axes are counted from the end."""
    weights = np.concatenate([np.asarray(window, np.float32) for window in windows])
    is_suitable = (
        image.dtype == jnp.float32
        and image.size > 0
        and border in _BORDERS
        and 1 < max(map(len, windows)) <= LONGEST_CALL
        and bool((np.abs(weights) >= np.finfo(np.float32).tiny).all())
        and keeps_layout(image, axes)
    )
    static: Any = {"windows": windows, "border": border, "axes": axes}
    return _separable_p.bind(image, **static) if is_suitable else in_jax(image, **static)


def in_jax(
    image: jax.Array, *, windows: Windows, border: Border, axes: tuple[int, int]
) -> jax.Array:
    """Sums of shifted slices, the leading axis first."""
    places = axes[0] + image.ndim, axes[1] + image.ndim
    x, steps = fold_channels(image, places)
    for place, window in sorted(zip(places, windows, strict=True)):
        x = filter_bordered(x, window, place, border, step=steps[place])
    return x.reshape(image.shape)


def _on_cpu(
    image: jax.Array, *, windows: Windows, border: Border, axes: tuple[int, int]
) -> jax.Array:
    installed = first_installed(CALLS["separable"])
    if installed is None:
        return in_jax(image, windows=windows, border=border, axes=axes)
    target, version = installed
    bits = [np.asarray(window, np.float32).view(np.int32).tolist() for window in windows]

    def call(pictures: jax.Array) -> jax.Array:
        rows = RowsCall(
            kernel=target,
            shape=pictures.shape,
            axes=("n", "n"),
            channels_last=(False, False),
            options=(
                ("vertical", tuple(bits[0])), ("horizontal", tuple(bits[1])),
                ("border", (_BORDERS.index(border),)), ("version", version),
            ),
        )  # fmt: skip
        return rows(pictures)

    return in_pictures(call, image, axes)


@kernel("jaxsr_opencv_separable")
def _by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    cv2, border = opencv(), opencv_border(_BORDERS[attributes["border"][0]])
    pictures, results = map(without_single_channel, (inputs[0], outputs[0]))
    vertical, horizontal = (
        np.array(attributes[name], np.int32).view(np.float32) for name in ("vertical", "horizontal")
    )

    def filter_one(row: int) -> None:
        cv2.sepFilter2D(pictures[row], -1, horizontal, vertical, results[row], borderType=border)

    is_large = shares_out(math.prod(pictures.shape[1:3]), len(pictures))
    for_each_row(filter_one, len(pictures), large=is_large)


def _shape_of(image: Any, **_: Any) -> tuple[int, ...]:
    return image.shape


def _batched(operands: Any, batch_axes: Any, **static: Any) -> Any:
    return _separable_p.bind(jnp.moveaxis(operands[0], batch_axes[0], 0), **static), 0


def _derivative(primals: Any, tangents: Any, **static: Any) -> Any:
    _, tangent = jax.jvp(partial(in_jax, **static), primals, tangents)
    return _separable_p.bind(*primals, **static), tangent


CALLS["separable"] = {"OpenCV": "jaxsr_opencv_separable"}
_separable_p = cpu_primitive("jaxsr_separable", in_jax, _on_cpu, shape_of=_shape_of)
batching.primitive_batchers[_separable_p] = _batched
ad.primitive_jvps[_separable_p] = _derivative

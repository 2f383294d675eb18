# pyright: basic
# JAX gives primitives no types.
"""Operations of single images that CPU programs leave to another library, as JAX operations.

    @kernel("jaxsr_opencv_canny")
    def _canny_of_rows(inputs, outputs, attributes): ...

    canny_p = row_primitive("canny", _canny_in_jax, {"OpenCV": _canny_of_rows})
    edges = canny_p.bind(images, low, high, size=3)       # (n, h, w), (n,), (n,)

The library is chosen while a program is lowered: the first that is installed. Where none is, and on
other platforms, the function in JAX computes the same, and derivatives where there are any.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from jaxsr.ops._opencv import has_ipp, opencv_version
from jaxsr.ops._pillow import pillow_version
from jaxsr.ops._scipy import scipy_version
from jaxsr.xla_calls.calls import enabled
from jaxsr.xla_calls.primitives import cpu_primitive, map_by_rows
from jaxsr.xla_calls.rows import RowsCall

LIBRARIES: Mapping[str, Callable[[], tuple[int, ...] | None]] = {
    "OpenCV": opencv_version,
    "OpenCV 5": lambda: version if (version := opencv_version()) and version[0] >= 5 else None,
    "OpenCV 5 with IPP": lambda: LIBRARIES["OpenCV 5"]() if has_ipp() else None,
    "OpenCV with IPP": lambda: opencv_version() if has_ipp() else None,
    "Pillow": pillow_version,
    "SciPy": scipy_version,
}
"""The version of each library that kernels call; None where it is not installed."""
_CHANNELS = (1, 3, 4)
"""Images that kernels take with their channels last."""
CALLS: dict[str, Mapping[str, str]] = {}
"""Kernels of each primitive, by library."""


def row_primitive(
    name: str,
    plain: Callable[..., jax.Array],
    kernels: Mapping[str, str],
    *,
    shape_of: Callable[..., tuple[int, ...]] | None = None,
    dtype: str | None = None,
    planes: bool = False,
    is_differentiable: bool = False,
) -> Any:
    """A primitive of images (n, …) and parameters (n, …).

    Args:
      name: for jaxprs.
      plain: computes it with JAX's own operations. All options are integers of 32 bits, or tuples
        of them, passed by name.
      kernels: registered ones, by the library that each calls; the best first. They get the options
        as their attributes.
      shape_of: the result's shape, from the operands' types. Default: the images'.
      dtype: of the result. Default: the images'.
      planes: whether the images are (n, h, w), of which kernels write results (n, h, w, 1). XLA
        copies a kernel's result to give it an axis of channels, and removes one without a copy.
      is_differentiable: whether derivatives are those of `plain`; for images of floats.
    """

    def result_shape(pictures: Any, *others: Any, **_: Any) -> tuple[int, ...]:
        return pictures.shape if shape_of is None else shape_of(pictures, *others)

    def on_cpu(*operands: jax.Array, **options: Any) -> jax.Array:
        installed = first_installed(kernels)
        if installed is None:
            return plain(*operands, **options)
        kernel, version = installed
        shape = result_shape(*operands)
        call = RowsCall(
            kernel=kernel,
            shape=(*shape, 1) if planes else shape,
            dtype=dtype,
            axes=("n",) * (len(operands) + 1),
            channels_last=(False,) * (len(operands) + 1),
            options=(
                *(
                    (key, value if isinstance(value, tuple) else (int(value),))
                    for key, value in options.items()
                ),
                ("version", version),
            ),
        )
        return call(*operands).reshape(shape)

    CALLS[name] = kernels
    primitive = cpu_primitive(f"jaxsr_{name}", plain, on_cpu, shape_of=result_shape, dtype=dtype)
    map_by_rows(primitive)
    if is_differentiable:
        ad.primitive_jvps[primitive] = partial(_derivative, primitive, plain)
    return primitive


def _derivative(primitive: Any, plain: Any, primals: Any, tangents: Any, **options: Any) -> Any:
    real = tuple(map(ad.instantiate_zeros, tangents))
    _, tangent = jax.jvp(partial(plain, **options), tuple(primals), real)
    return primitive.bind(*primals, **options), tangent


def first_installed(kernels: Mapping[str, str]) -> tuple[str, tuple[int, ...]] | None:
    """The kernel that this program calls, and its library's version; None where it calls none."""
    for library, kernel in kernels.items() if enabled() else ():
        version = LIBRARIES[library]()
        if version is not None:
            return kernel, version
    return None


def in_planes(
    function: Callable[..., jax.Array],
    image: jax.Array,
    axes: tuple[int, int],
    *parameters: Any,
    channel: int | None = None,
) -> jax.Array:
    """A function of planes (n, h, w) over images of any layout, in that layout.

    Compilers for TPUs store planes anyway, so that nothing is transposed there.

    Args:
      function: of planes and of parameters (n,).
      image: input images.
      axes: their height and width, counted from the end.
      *parameters: arrays that broadcast with the image, of extent 1 in height and width.
      channel: an axis that stays with each plane, as (n, h, w, c).
    """
    inner = axes if channel is None else (*axes, channel)
    start = image.ndim + inner[0]
    leading, after = image.shape[:start], image.shape[start + len(inner) :]
    if inner == tuple(range(inner[0], inner[0] + len(inner))) and math.prod(after) == 1:
        # Planes as they are. XLA would copy the result of a kernel for axes that change places.
        single = (*leading, *[1] * (len(inner) + len(after)))
        rows = (jnp.broadcast_to(p, single).reshape(-1) for p in parameters)
        out = function(image.reshape(-1, *image.shape[start : start + len(inner)]), *rows)
        return out.reshape(*leading, *out.shape[1:], *after)

    last = tuple(range(-len(inner), 0))
    x = jnp.moveaxis(image, inner, last)
    leading = x.shape[: -len(inner)]
    rows = (
        jnp.broadcast_to(jnp.moveaxis(p, inner, last)[(..., *[0] * len(inner))], leading).reshape(
            -1
        )
        for p in parameters
    )
    out = function(x.reshape(-1, *x.shape[len(leading) :]), *rows)
    return jnp.moveaxis(out.reshape(*leading, *out.shape[1:]), last, inner)


def in_pictures(
    function: Callable[..., jax.Array], image: jax.Array, axes: tuple[int, int]
) -> jax.Array:
    """A function of images (n, h, w, c) that treats channels alike, over any layout."""
    if axes == (-3, -2) and image.shape[-1] in _CHANNELS:
        return in_planes(function, image, axes, channel=-1)

    def of_planes(planes: jax.Array) -> jax.Array:
        return function(planes[..., None])[..., 0]

    return in_planes(of_planes, image, axes)


def keeps_layout(image: jax.Array, axes: tuple[int, int]) -> bool:
    """Whether `in_pictures` moves no axis."""
    return axes == (-2, -1) or (axes == (-3, -2) and image.shape[-1] in _CHANNELS)


def without_single_channel(pictures: np.ndarray) -> np.ndarray:
    """OpenCV takes images of one channel without an axis for it."""
    return pictures[..., 0] if pictures.shape[-1] == 1 else pictures

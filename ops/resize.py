"""Image resize in the conventions of torch, OpenCV, Pillow and MATLAB.

Images are channels last unless `axes` says otherwise, with any number of leading axes and any
intensity range. Sums run in float32 (float64 for float64 images); uint8 images are resized in the
integer arithmetic of the convention's own library, uint16 images in float32 and rounded once. On
CPUs OpenCV's convention calls OpenCV itself, and torch's of uint8 torch where that is faster. Every
convention is tested against the library it is named for; where their rules differ is written in
`_resize/conventions/`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import (
    ImageLike,
    channel_axis,
    flag,
    image_array,
    is_integer,
    normal_axis,
    number,
    one_of,
)
from jaxsr.ops._images import in_dtype_of
from jaxsr.ops._resize.conventions import CONVENTIONS
from jaxsr.ops._resize.conventions.matlab import EDGES
from jaxsr.ops._resize.conventions.pillow import divide_by_alpha, multiply_by_alpha
from jaxsr.ops._resize.primitive import resize_in_jax, resize_p
from jaxsr.ops._typed_jax import asarray, jit, zeros_like
from jaxsr.ops._types import Array, Shaped

JAX_METHODS = {
    "linear": "bilinear",
    "trilinear": "bilinear",
    "triangle": "bilinear",
    "cubic": "bicubic",
    "tricubic": "bicubic",
}
"""Names of `jax.image.resize` for methods of every convention."""
LARGEST_EXTENT = 1 << 24
"""Pixels along one axis, beyond which float32 no longer numbers them one by one."""


def resize(
    image: Shaped[ImageLike, "..."],
    size: int | Sequence[int],
    *,
    method: str = "bilinear",
    antialias: bool | None = None,
    convention: str = "torch",
    axes: Sequence[int] = (-3, -2),
    scale: float | Sequence[float] | None = None,
    align_corners: bool = False,
    matlab_edges: str | None = None,
    alpha: int | None = None,
) -> Shaped[Array, "..."]:
    """Resizes an image, or every image of a batch, along `axes`.

    Differentiable for floating-point images. A NaN or an infinity reaches only the outputs whose
    filter covers it.

    Args:
      image: float32, bfloat16, float16, float64 or uint8; the result keeps the dtype.
      size: extents of the result, one for each axis; one integer stands for all. Static.
      method: 'nearest', 'bilinear', 'bicubic' and 'lanczos' in every convention; 'area' in all but
        MATLAB's; 'nearest-exact' in torch's; 'box' in Pillow's (the same as 'area') and MATLAB's;
        'hamming' in Pillow's; 'lanczos2' in MATLAB's. OpenCV's Lanczos has 4 lobes,
        the others' 3.
      antialias: stretch the filter when shrinking, so that no pixel is skipped. Default: torch
        does not, except for 'lanczos'; MATLAB does. Pillow always does and OpenCV never, so that
        there the opposite is an error.
      convention: whose rules: 'torch', 'opencv', 'pillow' or 'matlab'.
      axes: axes to resize, height first: (-3, -2) is channels last, (-2, -1) channels first.
      scale: output pixels per input pixel, where that is not the quotient of the extents: torch's
        `scale_factor` with `recompute_scale_factor=False`, or MATLAB's scale, whose extents
        `matlab_size` gives.
      align_corners: torch's option: the centres of the corner pixels stay where they are, rather
        than the outer edges of the image.
      matlab_edges: pixels outside MATLAB's image: 'clamp', the nearest pixel (older
        releases, the literature's images; the default), or 'mirror' (newer releases).
      alpha: the channel that holds opacity, such as 3 or -1 of RGBA, in the pillow convention:
        colours are multiplied by it before and divided by it afterwards, as Pillow does for RGBA
        and LA in every method but 'nearest'. Default: all channels are resized alike.

    Raises:
      TypeError: `image` is boolean, complex, or of another integer type; an option of a wrong type.
      ValueError: an extent below 1, an unknown name, an empty image, or options that do not go
        together.

    Example:
      >>> image = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1)
      >>> ops.resize(image, (2, 2), method="bicubic", antialias=True)[0, ..., 0].tolist()
      [[3, 4], [11, 12]]
    """
    levels = image_array(image, wide=True)
    # uint16 is rounded once, at the end.
    image = levels.astype(jnp.float32) if levels.dtype == jnp.uint16 else levels
    if not hasattr(axes, "__len__"):
        raise TypeError(f"axes must be a sequence of axes, height first, got {axes!r}")
    positive = tuple(normal_axis(axis, image.ndim, "axes") for axis in axes)
    if not positive or len(set(positive)) < len(positive):
        raise ValueError(f"axes must name different axes, at least one, got {tuple(axes)}")
    if 0 in image.shape[min(positive) :]:
        raise ValueError(f"image is empty, its shape is {image.shape}; only a batch may be")
    options = checked_options(
        method,
        antialias,
        convention,
        scale=_check_scale(scale, len(positive)),
        align_corners=align_corners,
        matlab_edges=matlab_edges,
    )
    rules, method = CONVENTIONS[convention], options["method"]
    if rules.most_axes is not None and len(positive) > rules.most_axes:
        raise ValueError(f"the {convention} convention has two axes at most, got {tuple(axes)}")
    extents = checked_size(size, len(positive))
    run = partial(
        _resize,
        axes=positive,
        size=extents,
        convention=convention,
        options=tuple(options.items()),
    )
    ties_up = rules.ties_go_up and rules.ties_go_up(image.shape, positive, extents, method=method)

    def finish(x: jax.Array) -> jax.Array:
        if image is levels:
            return asarray(x)
        return in_dtype_of(levels, jnp.floor(x + 0.5) if ties_up else x)

    if alpha is None:
        return finish(run(image))
    if convention != "pillow":
        raise ValueError(f"alpha={alpha!r} exists in the pillow convention only; leave it out")
    channel = channel_axis(positive, image.ndim) if len(positive) == 2 else None
    if channel is None:
        raise ValueError(f"alpha={alpha!r} needs images of NHWC or NCHW, got {image.shape}")
    alpha = normal_axis(alpha, image.shape[channel], "alpha")
    if method == "nearest":
        return finish(run(image))
    return finish(divide_by_alpha(run(multiply_by_alpha(image, channel, alpha)), channel, alpha))


def checked_options(
    method: str,
    antialias: bool | None,
    convention: str = "torch",
    *,
    scale: tuple[float | None, ...] = (),
    align_corners: bool = False,
    matlab_edges: str | None = None,
) -> dict[str, Any]:
    """Options of `resize`, as the convention takes them; `scale` has one value for each axis."""
    if convention not in CONVENTIONS:
        raise ValueError(
            f"unknown convention {convention!r}; choose one of {', '.join(CONVENTIONS)}, or add "
            "one in ops/_resize/conventions"
        )
    rules = CONVENTIONS[convention]
    method = JAX_METHODS.get(method, method)
    if convention != "opencv" and method == "lanczos3":
        method = "lanczos"
    one_of(method, rules.methods, f"method of the {convention} convention")
    options: dict[str, Any] = {"method": method}
    if "scale" in rules.options:
        options["scale"] = scale
    elif any(scale):
        raise ValueError(f"scale has no meaning in the {convention} convention; leave it out")
    if "align_corners" in rules.options:
        options["align_corners"] = align_corners
    elif align_corners:
        raise ValueError("align_corners=True exists in the torch convention only")
    if "matlab_edges" in rules.options:
        options["matlab_edges"] = one_of(matlab_edges or EDGES[0], EDGES, "matlab_edges")
    elif matlab_edges is not None:
        raise ValueError("matlab_edges exists in the matlab convention only; leave it out")
    antialias = None if antialias is None else flag(antialias, "antialias")
    align_corners = flag(align_corners, "align_corners")
    if not rules.antialias_is_fixed:
        # torch's Lanczos exists with antialias alone.
        default = rules.antialias or (convention == "torch" and method == "lanczos")
        options["antialias"] = default if antialias is None else antialias
    elif antialias is not None and antialias != rules.antialias:
        always = "always" if rules.antialias else "never"
        raise ValueError(
            f"antialias={antialias} contradicts the {convention} convention, which {always} does; "
            "the torch and matlab conventions leave the choice"
        )
    rules.check(**options)
    return options


def checked_size(size: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Extents of the result, one for each axis."""
    extents = _one_each(size, count, "size")
    for extent in extents:
        if not is_integer(extent):
            raise TypeError(
                f"size must hold integers, got {extent!r}; extents are static, also under jit"
            )
        if not 1 <= extent <= LARGEST_EXTENT:
            raise ValueError(f"size must be 1 to {LARGEST_EXTENT} on each axis, got {size!r}")
    return tuple(int(extent) for extent in extents)


def _check_scale(scale: float | Sequence[float] | None, count: int) -> tuple[float | None, ...]:
    if scale is None:
        return (None,) * count
    return tuple(number(s, "scale", above=0) for s in _one_each(scale, count, "scale"))


def _one_each(value: Any, count: int, name: str) -> tuple[Any, ...]:
    if not hasattr(value, "__len__") or isinstance(value, str):
        return (value,) * count
    if len(value) != count:
        raise ValueError(f"{name} must hold one value for each of {count} axes, got {value!r}")
    return tuple(value)


@jit("axes", "size", "convention", "options")
def _resize(
    image: jax.Array,
    *,
    axes: tuple[int, ...],
    size: tuple[int, ...],
    convention: str,
    options: tuple[tuple[str, Any], ...],
) -> jax.Array:
    if image.size == 0:
        extents = dict(zip(axes, size, strict=True))
        return zeros_like(image, shape=[extents.get(k, n) for k, n in enumerate(image.shape)])
    static: Any = {"axes": axes, "size": size, "convention": convention, "options": options}
    if image.dtype.name in CONVENTIONS[convention].library_dtypes:
        return resize_p.bind(image, **static)
    return resize_in_jax(image, **static)

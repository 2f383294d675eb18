"""Separable Gaussian blur with torchvision's and OpenCV's rules.

Images are uint8 or floating point with any number of leading axes; `axes` names height and width
(NHWC by default). Distances are in pixels. Sums run in float32 (float64 for float64), and the
result keeps the input's dtype.

| left out | `convention="torchvision"` | `convention="opencv"` |
|---|---|---|
| `sigma` | 0.15 k + 0.35 | 0.3 ((k - 1)/2 - 1) + 0.8; a fixed table up to k = 9 |
| `kernel_size` | 2 int(4 sigma + 0.5) + 1, SciPy's | 1 + 8 sigma, on uint8 1 + 6 sigma, made odd |
| `border` | `"reflect"`: the edge pixel not repeated | `"reflect101"`: the same |

uint8: torchvision's rule rounds the float32 sum half to even, which differs from its own result by
at most one level, at ties. OpenCV's rule is bit-equal to `cv2.GaussianBlur` (its weights are
multiples of 1/256, and float32 holds every sum exactly). uint16 is too, up to windows of 160
pixels, by weights that are multiples of 1/65536 in uint32; by torchvision's rule, which has none,
it is the float32 sum, rounded half to even. An infinity or NaN reaches the pixels
whose window holds it and no others.
"""

import math
import struct
from collections.abc import Sequence
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import (
    ImageLike,
    compute_dtype,
    image_and_axes,
    one_of,
    positive_pair,
)
from jaxsr.ops._border import Border, border_name
from jaxsr.ops._images import Parameter, in_dtype_of
from jaxsr.ops._opencv import for_each_row, opencv, opencv_border, shares_out
from jaxsr.ops._opencv_separable import LONGEST_CALL, separable
from jaxsr.ops._row_primitives import in_pictures, row_primitive, without_single_channel
from jaxsr.ops._separable import LONGEST_SUM, filter_bordered, fold_channels
from jaxsr.ops._traced_blur import is_array, traced_blur
from jaxsr.ops._typed_jax import jit, platform_dependent
from jaxsr.ops._types import Array, Shaped
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel

Convention = Literal["torchvision", "opencv"]
CONVENTIONS = ("torchvision", "opencv")
Windows = tuple[tuple[float, ...], tuple[float, ...]]
"""Weights along height and along width."""

LONGEST_WINDOW = (1 << 16) - 1
"""Pixels of a window."""

# Results of cv2.getGaussianKernel when sigma is left out and the kernel is small.
_OPENCV_TABLES = {
    1: (1.0,),
    3: (0.25, 0.5, 0.25),
    5: (0.0625, 0.25, 0.375, 0.25, 0.0625),
    7: (0.03125, 0.109375, 0.21875, 0.28125, 0.21875, 0.109375, 0.03125),
    9: tuple(v / 256 for v in (4, 13, 30, 51, 60, 51, 30, 13, 4)),
}
_OPENCV_FRACTION = {"uint8": 1 << 8, "uint16": 1 << 16}
"""Units of OpenCV's fixed-point fraction for these dtypes."""


def gaussian_blur(
    image: Shaped[ImageLike, "*shape"],
    *,
    sigma: Parameter | None = None,
    kernel_size: int | Sequence[int] | None = None,
    border: str | None = None,
    convention: Convention = "torchvision",
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Blurs height and width with a separable Gaussian.

    Args:
      image: batch to blur, of any range.
      sigma: standard deviation in pixels, one or (vertical, horizontal); above 0. An array, traced
        or not, holds one for all images or one for each, from 0, and needs `kernel_size`.
      kernel_size: window in pixels, one or (vertical, horizontal); odd.
      border: pixels beyond the edge. `"reflect101"`, `"symmetric"`, `"edge"`, `"constant"`
        (zero) and `"wrap"` mean the same everywhere; `"reflect"`, `"replicate"` and `"circular"`
        are taken as the convention's library takes them: OpenCV's `"reflect"` repeats the edge.
      convention: library whose rule gives the missing arguments, and whose uint8 rounding is used.
      axes: the height and the width axis.

    Raises:
      TypeError: not uint8, uint16 or floating point, or sizes that are not integers.
      ValueError: an even window, sigma not positive, neither of them given, an unknown name.

    Example:
      >>> image = np.zeros((5, 5, 1), np.float32)
      >>> image[2, 2] = 1
      >>> print(np.asarray(ops.gaussian_blur(image, sigma=1, border="constant"))[2, :, 0].round(3))
      [0.022 0.097 0.159 0.097 0.022]
    """
    image, axes = image_and_axes(image, axes, wide=True)
    one_of(convention, CONVENTIONS, "blur convention")
    border = border_name(border, convention)
    if sigma is not None and is_array(sigma):
        return traced_blur(image, sigma, kernel_size, border, convention, axes)
    windows = gaussian_windows(sigma, kernel_size, convention, image.dtype)
    if not image.size:
        return image
    if convention == "opencv" and image.dtype.name in _OPENCV_FRACTION and border in _BORDERS:
        sizes = len(windows[0]), len(windows[1])
        if max(sizes) <= _LONGEST_CALL:
            sigmas = (0.0, 0.0) if sigma is None else _positive_floats(sigma)
            from_end = axes[0] - image.ndim, axes[1] - image.ndim
            return _blur_levels(image, sizes, sigmas, border, from_end)
    if image.dtype == jnp.float32 and max(map(len, windows)) <= LONGEST_CALL:
        from_end = axes[0] - image.ndim, axes[1] - image.ndim
        return _blur_real(image, windows, border, from_end)
    return _blur(image, windows, border, convention, axes)


def gaussian_windows(
    sigma: Parameter | None,
    kernel_size: int | Sequence[int] | None,
    convention: str,
    dtype: np.dtype,
) -> Windows:
    """The vertical and the horizontal weights, each summing to 1, for an image of this dtype."""
    sigmas = (None, None) if sigma is None else _positive_floats(sigma)
    if kernel_size is None:
        if sigma is None:
            raise ValueError("gaussian_blur needs sigma or kernel_size, got neither")
        sizes = tuple(_window_size(s, convention, dtype) for s in sigmas if s is not None)
        if max(sizes) > LONGEST_WINDOW:
            raise ValueError(
                f"sigma={sigma} asks for a window of {max(sizes)} px, of {LONGEST_WINDOW} at most; "
                "lower it, or blur a smaller image"
            )
    else:
        sizes = positive_pair(kernel_size, "kernel_size")
        if any(size % 2 == 0 for size in sizes):
            raise ValueError(f"kernel_size must be odd, got {kernel_size}; use the next one")
        if max(sizes) > LONGEST_WINDOW:
            raise ValueError(f"kernel_size must be at most {LONGEST_WINDOW}, got {kernel_size}")
    one = _OPENCV_FRACTION.get(dtype.name) if convention == "opencv" else None
    vertical, horizontal = (_window(*each, convention) for each in zip(sizes, sigmas, strict=True))
    if one is not None:
        return _to_fixed_point(vertical, one), _to_fixed_point(horizontal, one)
    return vertical, horizontal


def _window_size(sigma: float, convention: str, dtype: np.dtype) -> int:
    if convention == "torchvision":  # which has no rule of its own; this is SciPy's
        return 2 * int(4 * sigma + 0.5) + 1
    reach = 3 if dtype == jnp.uint8 else 4  # sigmas to each side, as OpenCV cuts
    return round(2 * reach * sigma + 1) | 1


def _positive_floats(sigma: Parameter) -> tuple[float, float]:
    pair = tuple(sigma) if isinstance(sigma, Sequence) else (sigma, sigma)
    if len(pair) != 2:
        raise ValueError(f"sigma must be a number or (vertical, horizontal), got {sigma!r}")
    for value in pair:
        if not _is_number(value):
            kind = type(value).__name__
            raise TypeError(f"sigma must be a Python number, it fixes the window; got {kind}")
        if not value > 0 or not math.isfinite(value):
            raise ValueError(f"sigma must be positive, got {sigma}; leave it out for the default")
    return float(pair[0]), float(pair[1])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _window(size: int, sigma: float | None, convention: str) -> tuple[float, ...]:
    if sigma is None:
        if convention == "torchvision":
            sigma = 0.15 * size + 0.35
        elif size in _OPENCV_TABLES:
            return _OPENCV_TABLES[size]
        else:
            sigma = 0.3 * ((size - 1) * 0.5 - 1) + 0.8
    offset = np.arange(size) - size // 2
    weights = np.exp(-0.5 * (offset / sigma) ** 2)
    return tuple((weights / weights.sum()).tolist())


def _to_fixed_point(window: tuple[float, ...], one: int) -> tuple[float, ...]:
    """Weights as multiples of 1 / `one` that sum to 1, the error of each carried to the next.

    OpenCV's getGaussianKernelFixedPoint_ED: from the rim inwards, the middle takes the remainder.
    """
    half = len(window) // 2
    rim: list[int] = []
    error = 0.0
    for weight in window[:half]:
        exact = weight * one + error
        rim.append(round(exact))
        error = exact - rim[-1]
    middle = one - 2 * sum(rim)
    return tuple(w / one for w in (*rim, middle, *reversed(rim)))


_BORDERS: tuple[Border, ...] = ("reflect101", "symmetric", "edge", "constant")
"""Borders of OpenCV's fixed-point blur."""
_LONGEST_CALL = 15
"""Pixels of a window up to which OpenCV is faster. 1080 × 1920 × 3 uint8, processor ms by XLA and
by OpenCV: 5.1 and 3.7 for 7 pixels, 9.9 and 10.8 for 21 (`python -m benchmarks.ops`)."""


_blur_real = jit("windows", "border", "axes")(separable)


@jit("sizes", "sigmas", "border", "axes")
def _blur_levels(
    image: jax.Array,
    sizes: tuple[int, int],
    sigmas: tuple[float, float],
    border: Border,
    axes: tuple[int, int],
) -> jax.Array:
    """uint8 and uint16 by OpenCV's rule; sigmas of 0 are left out, axes count from the end."""
    # A call's options are integers of 32 bits: the two float64 numbers are four of them.
    halves = struct.unpack("4i", struct.pack("2d", *sigmas))
    function = partial(_gaussian_p.bind, sizes=sizes, sigmas=halves, border=_BORDERS.index(border))
    return in_pictures(function, image, axes)


def _sigmas(halves: Sequence[int]) -> tuple[float, float]:
    vertical, horizontal = struct.unpack("2d", struct.pack("4i", *halves))
    return vertical, horizontal


@kernel("jaxsr_opencv_gaussian")
def _blur_by_opencv(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    cv2 = opencv()
    pictures, results = map(without_single_channel, (inputs[0], outputs[0]))
    vertical, horizontal = _sigmas(attributes["sigmas"])
    size = attributes["sizes"][::-1]
    border = opencv_border(_BORDERS[attributes["border"][0]])

    def blur(row: int) -> None:
        cv2.GaussianBlur(pictures[row], size, horizontal, results[row], vertical, border)

    is_large = shares_out(math.prod(pictures.shape[1:3]), len(pictures))
    for_each_row(blur, len(pictures), large=is_large)


def _blur_in_jax(
    pictures: jax.Array, *, sizes: tuple[int, int], sigmas: tuple[int, ...], border: int
) -> jax.Array:
    pair = _sigmas(sigmas)
    windows = gaussian_windows(pair if pair[0] else None, sizes, "opencv", pictures.dtype)
    return _blur(pictures, windows, _BORDERS[border], "opencv", (1, 2))


_gaussian_p = row_primitive("gaussian", _blur_in_jax, {"OpenCV": _blur_by_opencv})


@jit("windows", "border", "convention", "axes")
def _blur(
    image: jax.Array, windows: Windows, border: Border, convention: str, axes: tuple[int, int]
) -> jax.Array:
    x, steps = fold_channels(image, axes)
    (first, window), (second, second_window) = sorted(zip(axes, windows, strict=True))

    def in_float(x: jax.Array) -> jax.Array:
        x = x.astype(compute_dtype(x.dtype))
        return filter_bordered(x, window, first, border, step=steps[first])

    def in_uint16(x: jax.Array) -> jax.Array:
        one = _OPENCV_FRACTION["uint8"]

        def finish(x: jax.Array) -> jax.Array:
            return x.astype(jnp.float32) / one

        integers = [round(weight * one) for weight in window]
        # At most 255 · 256, and twice as many lanes as float32.
        x = x.astype(jnp.uint16)
        return filter_bordered(x, integers, first, border, step=steps[first], finish=finish)

    def to_image(x: jax.Array) -> jax.Array:
        if image.dtype != jnp.uint8:
            return in_dtype_of(image, x)
        # Within 0…255 as it is: weights are positive and sum to 1.
        return (jnp.floor(x + 0.5) if convention == "opencv" else jnp.round(x)).astype(jnp.uint8)

    def in_uint32(x: jax.Array) -> jax.Array:
        one = _OPENCV_FRACTION["uint16"]
        across, down = ([round(w * one) for w in weights] for weights in (second_window, window))
        along = partial(filter_bordered, border=border)
        # At most 65535 · 65536; the second sum has 16 bits more, in two halves.
        sums = along(x.astype(jnp.uint32), across, second, step=steps[second])
        high, low = (along(x, down, first, step=steps[first]) for x in (sums >> 16, sums & 0xFFFF))
        sums = high + (low >> 16)
        return ((sums >> 16) + (sums >> 15 & 1)).astype(jnp.uint16)

    fits = len(window) <= LONGEST_SUM
    both_fit = fits and len(second_window) <= LONGEST_SUM
    if image.dtype == jnp.uint16 and convention == "opencv" and both_fit:
        return in_uint32(x).reshape(image.shape)
    if image.dtype == jnp.uint8 and convention == "opencv" and fits:
        x = platform_dependent(x, cpu=in_uint16, default=in_float)
    else:
        x = in_float(x)
    x = filter_bordered(x, second_window, second, border, step=steps[second], finish=to_image)
    return x.reshape(image.shape)

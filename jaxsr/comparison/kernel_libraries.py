"""The libraries whose kernels are compared, behind one call each.

`*_resize` gives a library's own call on its own arrays; the benchmarks race the same calls. A
`Contender` wraps a call for a single RGB image `(height, width, 3)` of 0…255. Timing a run covers
the kernel alone: images are converted and moved to the device beforehand, and the device is
waited for.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jaxsr.comparison.ops_options import OpsOptions

Size = tuple[int, int]
"""Height and width of a result."""


@dataclass(frozen=True)
class Contender:
    """One library at one dtype."""

    library: str
    dtype: str
    rule: str
    """A note on its result, where that is not the plain meaning of the method."""
    load: Callable[[np.ndarray], Any]
    """uint8 image to the library's own array."""
    run: Callable[[Any], Any]
    """The kernel; returns once the result is there."""
    fetch: Callable[[Any], np.ndarray]
    """The library's result as (height, width, 3)."""

    @property
    def name(self) -> str:
        """Library and dtype."""
        return f"{self.library} {self.dtype}"


class UnavailableError(Exception):
    """A library does not support the operation; the message says why."""


def jaxsr_resize(
    method: str, size: Size, antialias: bool, *, convention: str, axes: tuple[int, int] = (-3, -2)
) -> Callable[[Any], Any]:
    """jaxsr's resize of JAX arrays; Pillow's convention always stretches, OpenCV's never does."""
    from jaxsr.ops.resize import resize

    choice = antialias if convention in ("torch", "matlab") else None
    options = {"antialias": choice, "convention": convention, "axes": axes}
    return partial(resize, size=size, method=method, **options)


def jax_image_resize(
    method: str,
    size: Size,
    antialias: bool,
    *,
    axes: tuple[int, int] = (-3, -2),
    cubic: str = "cubic",
) -> Callable[[Any], Any]:
    """jax.image's resize of JAX arrays."""
    import jax

    names = {"nearest": "nearest", "bilinear": "linear", "bicubic": cubic, "lanczos": "lanczos3"}
    name = _named(names, method)

    def call(image: jax.Array) -> jax.Array:
        shape = list(image.shape)
        shape[axes[0]], shape[axes[1]] = size
        return jax.image.resize(image, shape, name, antialias=antialias)

    return call


def torch_resize(method: str, size: Size, antialias: bool) -> Callable[[Any], Any]:
    """torch's resize of NCHW tensors."""
    import torch.nn.functional as F

    mode = _named({name: name for name in ("nearest", "bilinear", "bicubic", "area")}, method)
    stretch = {"antialias": antialias} if method in ("bilinear", "bicubic") else {}
    return partial(F.interpolate, size=size, mode=mode, **stretch)


def torchvision_resize(method: str, size: Size, antialias: bool) -> Callable[[Any], Any]:
    """torchvision's resize of NCHW tensors."""
    transforms = _torchvision()
    names = {"nearest": "NEAREST", "bilinear": "BILINEAR", "bicubic": "BICUBIC"}
    mode = transforms.InterpolationMode[_named(names, method, " for tensors")]
    return lambda image: transforms.functional.resize(image, list(size), mode, antialias=antialias)


def _torchvision() -> Any:
    try:
        return importlib.import_module("torchvision.transforms.v2")
    except Exception as error:  # it fails in many ways with a torch that it was not built for
        raise UnavailableError(f"does not import ({str(error).splitlines()[0]})") from error


def opencv_resize(method: str, size: Size) -> Callable[[np.ndarray], np.ndarray]:
    """OpenCV's resize of (height, width, channels) arrays; it never antialiases."""
    import cv2

    flags = {
        "nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC,
        "lanczos": cv2.INTER_LANCZOS4, "area": cv2.INTER_AREA,
    }  # fmt: skip
    return partial(cv2.resize, dsize=size[::-1], interpolation=_named(flags, method))


def pillow_resize(method: str, size: Size) -> Callable[[Any], Any]:
    """Pillow's resize of images; it always antialiases."""
    from PIL import Image

    names = {"area": "BOX"} | {n: n.upper() for n in ("nearest", "bilinear", "bicubic", "lanczos")}
    resampling = Image.Resampling[_named(names, method)]
    return lambda image: image.resize(size[::-1], resampling)


def _named(names: dict[str, Any], method: str, suffix: str = "") -> Any:
    if method not in names:
        raise UnavailableError(f"has no {method}{suffix}")
    return names[method]


def library_versions() -> dict[str, str]:
    """Versions of the libraries that import here."""
    versions = {}
    for name in ("jaxsr", "jax", "torch", "torchvision", "cv2", "PIL", "scipy", "numpy"):
        try:
            versions[name] = str(importlib.import_module(name).__version__)
        except Exception:  # whatever a library that does not fit the others fails with
            versions[name] = "not importable"
    return versions


def on_jax(library: str, dtype: str, rule: str, call: Callable[[Any], Any]) -> Contender:
    """A function of a JAX array (height, width, 3), compiled."""
    import jax
    import jax.numpy as jnp

    try:
        jax.eval_shape(call, jax.ShapeDtypeStruct((16, 16, 3), dtype))
    except (TypeError, ValueError) as error:
        raise UnavailableError(str(error)) from error
    compiled = jax.jit(call)
    return Contender(
        library,
        dtype,
        rule,
        lambda picture: jax.block_until_ready(jnp.asarray(picture, dtype)),
        lambda image: jax.block_until_ready(compiled(image)),
        lambda result: np.asarray(result.astype(jnp.float32)),
    )


def on_torch(library: str, dtype: str, rule: str, call: Callable[[Any], Any]) -> Contender:
    """A function of a torch tensor (1, 3, height, width)."""
    import torch

    try:
        call(torch.zeros(1, 3, 16, 16, dtype=getattr(torch, dtype)))
    except RuntimeError as error:
        raise UnavailableError(str(error).splitlines()[0]) from error

    def load(picture: np.ndarray) -> torch.Tensor:
        first = np.ascontiguousarray(picture.transpose(2, 0, 1))[None]
        return torch.from_numpy(first).to(getattr(torch, dtype))

    return Contender(
        library, dtype, rule, load, call, lambda x: x[0].float().numpy().transpose(1, 2, 0)
    )


def on_numpy(library: str, dtype: str, rule: str, call: Callable[[Any], Any]) -> Contender:
    """A function of a NumPy array (height, width, 3), as OpenCV's and SciPy's are."""
    if dtype == "bfloat16":
        raise UnavailableError("has no bfloat16")
    return Contender(
        library, dtype, rule, lambda x: x.astype(dtype), call, lambda out: out.astype(np.float32)
    )


def resize_contenders(
    options: OpsOptions, method: str, dtype: str
) -> dict[str, Callable[[], Contender]]:
    """The resizing functions by library; making one raises `UnavailableError` where it cannot."""
    size, antialias, convention = options.size, options.antialias, options.convention

    def jax_image() -> Contender:
        import jax.numpy as jnp

        resize = jax_image_resize(method, size, antialias)

        def rounded(image: Any) -> Any:
            return jnp.clip(jnp.round(resize(image.astype(jnp.float32))), 0, 255).astype(dtype)

        rules = ["float32, then rounded"] if dtype == "uint8" else []
        rules += ["a = -0.5, edge taps renormalised"] if method == "bicubic" else []
        call = rounded if dtype == "uint8" else resize
        return on_jax("jax.image", dtype, ", ".join(rules), call)

    def opencv() -> Contender:
        rule = "no antialias: it never does" if antialias and method != "area" else ""
        rule = "4 lobes, no antialias" if method == "lanczos" else rule
        return on_numpy("OpenCV", dtype, rule, opencv_resize(method, size))

    def pillow() -> Contender:
        from PIL import Image

        if dtype == "bfloat16":
            raise UnavailableError("has no bfloat16")
        rule = "" if antialias or method in ("nearest", "area") else "antialiased: it always does"
        resize = pillow_resize(method, size)

        def load(picture: np.ndarray) -> list[Image.Image]:
            if dtype == "uint8":
                return [Image.fromarray(picture)]
            return [Image.fromarray(picture[..., c].astype(np.float32)) for c in range(3)]

        return Contender(
            "Pillow", dtype, rule, load, lambda bands: [resize(band) for band in bands],
            lambda result: np.dstack([np.asarray(band, np.float32) for band in result]),
        )  # fmt: skip

    name = f"jaxsr ({convention})"
    through = "through float32" if dtype == "bfloat16" else ""
    return {
        name: lambda: on_jax(
            name, dtype, f"{convention} convention",
            jaxsr_resize(method, size, antialias, convention=convention),
        ),
        "torch": lambda: on_torch("torch", dtype, "", torch_resize(method, size, antialias)),
        "torchvision": lambda: on_torch(
            "torchvision", dtype, through, torchvision_resize(method, size, antialias)
        ),
        "OpenCV": opencv,
        "Pillow": pillow,
        "jax.image": jax_image,
    }  # fmt: skip


def blur_contenders(options: OpsOptions, dtype: str) -> dict[str, Callable[[], Contender]]:
    """Gaussian blurs with one window, reflecting at the border without its pixel, by library."""
    sigma = options.sigma
    radius = math.ceil(3 * sigma)
    window = 2 * radius + 1
    convention = "opencv" if options.convention == "opencv" else "torchvision"

    def jaxsr(image: Any) -> Any:
        from jaxsr.ops.blur import gaussian_blur

        return gaussian_blur(
            image, sigma=sigma, kernel_size=window, border="reflect101", convention=convention
        )

    def torch_blur(image: Any) -> Any:
        import torch
        import torch.nn.functional as F

        if not image.is_floating_point():
            raise RuntimeError(f"has no convolution of {image.dtype}")
        taps = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
        taps = (taps / taps.sum()).to(image.dtype).expand(3, 1, 1, -1)
        image = F.pad(image, (radius,) * 4, mode="reflect")
        return F.conv2d(F.conv2d(image, taps, groups=3), taps.transpose(2, 3), groups=3)

    def torchvision_blur() -> Callable[[Any], Any]:
        functional = _torchvision().functional
        return lambda image: functional.gaussian_blur(image, [window] * 2, [sigma] * 2)

    def opencv_blur(image: np.ndarray) -> np.ndarray:
        import cv2

        return cv2.GaussianBlur(image, (window, window), sigma, borderType=cv2.BORDER_REFLECT_101)

    def scipy_blur(image: np.ndarray) -> np.ndarray:
        from scipy.ndimage import gaussian_filter

        return gaussian_filter(image, (sigma, sigma, 0), mode="mirror", radius=(radius, radius, 0))

    name = f"jaxsr ({convention})"
    truncated = "uint8: truncated, not rounded" if dtype == "uint8" else ""
    return {
        name: lambda: on_jax(name, dtype, f"{convention} convention", jaxsr),
        "torch": lambda: on_torch("torch", dtype, "two depthwise convolutions", torch_blur),
        "torchvision": lambda: on_torch("torchvision", dtype, "", torchvision_blur()),
        "OpenCV": lambda: on_numpy("OpenCV", dtype, "", opencv_blur),
        "SciPy": lambda: on_numpy("SciPy", dtype, truncated, scipy_blur),
    }


def mask_crop_contenders(options: OpsOptions, dtype: str) -> dict[str, Callable[[], Contender]]:
    """Functions that cut the box around a mask and resize it; the mask is an ellipse."""
    size = options.size

    def jaxsr(image: Any) -> Any:
        from jaxsr.ops.mask_crop import mask_crop

        mask = ellipse(*image.shape[:2])[..., None]
        return mask_crop(image[None], mask[None], size=size).frames[0]

    def on_cut(resize: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(image: Any) -> Any:
            rows = -3 if image.shape[-1] == 3 else -2
            left, top, right, bottom = box_of(ellipse(*image.shape[rows:][:2]))
            box = (slice(top, bottom), slice(left, right))
            return resize(np.ascontiguousarray(image[box]) if rows == -3 else image[:, :, *box])

        return run

    return {
        "jaxsr": lambda: on_jax("jaxsr", dtype, "one program for every box", jaxsr),
        "OpenCV": lambda: on_numpy("OpenCV", dtype, "", on_cut(opencv_resize("bilinear", size))),
        "torch": lambda: on_torch(
            "torch", dtype, "", on_cut(torch_resize("bilinear", size, False))
        ),
    }


def ellipse(height: int, width: int) -> np.ndarray:
    """A mask a fifth as high and wide as the image, off its centre; uint8."""
    y, x = np.ogrid[:height, :width]
    inside = ((y - height * 0.45) / (height / 10)) ** 2 + ((x - width * 0.4) / (width / 10)) ** 2
    return (inside <= 1).astype(np.uint8)


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    """The box of `ops.mask_crop` with its defaults, in plain Python: left, top, right, bottom.

    Padded by half of its size on each side, grown to 512 pixels, even; an ellipse is not slim.
    """
    ends = []
    for axis, extent in ((0, mask.shape[1]), (1, mask.shape[0])):
        touched = np.flatnonzero(mask.any(axis))
        low, high = int(touched[0]), int(touched[-1]) + 1
        padding = int((high - low) * 0.5)
        low, high = max(low - padding, 0), min(high + padding, extent)
        missing = max(min(512, extent) - (high - low), 0)
        low, high = low - missing // 2, high + missing - missing // 2
        low, high = max(low, 0), high + max(-low, 0)
        low, high = max(low - max(high - extent, 0), 0), min(high, extent)
        odd = (high - low) % 2
        high, low = (high + 1, low) if odd and high < extent else (high, max(low - odd, 0))
        ends.append((low, high))
    (left, right), (top, bottom) = ends
    return left, top, right, bottom


def make_contenders(
    options: OpsOptions, method: str, dtype: str
) -> tuple[list[Contender], list[str]]:
    """Every library that can do this, and a sentence for each that cannot.

    Args:
      options: the operation and its settings.
      method: of interpolation, of a resize.
      dtype: of the images.
    """
    makers = {
        "resize": lambda: resize_contenders(options, method, dtype),
        "gaussian_blur": lambda: blur_contenders(options, dtype),
        "mask_crop": lambda: mask_crop_contenders(options, dtype),
    }[options.operation]()
    contenders, absent = [], []
    for library, make in makers.items():
        try:
            contenders.append(make())
        except UnavailableError as error:
            absent.append(f"{library} {dtype}: {error}")
    return contenders, absent

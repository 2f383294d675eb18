"""The libraries whose resize is compared, behind one call each.

`*_resize` gives a library's own call on its own arrays; the benchmarks race the same calls. A
`Resizer` wraps one for a single RGB picture `(height, width, 3)` of 0…255. Timing a run covers the
resize alone: pictures are converted and moved to the device beforehand, and the device is waited
for.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Size = tuple[int, int]
"""Height and width of a result."""


@dataclass(frozen=True)
class Resizer:
    """One library at one dtype."""

    library: str
    dtype: str
    rule: str
    """What it computes, where that is not the method's plain meaning."""
    load: Callable[[np.ndarray], Any]
    """uint8 picture to the library's own array."""
    run: Callable[[Any], Any]
    """The resize; returns once the result is there."""
    fetch: Callable[[Any], np.ndarray]
    """The library's result as (height, width, 3)."""

    @property
    def name(self) -> str:
        """Library and dtype."""
        return f"{self.library} {self.dtype}"


class UnavailableError(Exception):
    """A library cannot do what is asked; the message says why."""


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
    try:
        transforms = importlib.import_module("torchvision.transforms.v2")
    except Exception as error:  # it fails in many ways beside a torch that it was not built for
        raise UnavailableError(f"does not import ({str(error).splitlines()[0]})") from error
    names = {"nearest": "NEAREST", "bilinear": "BILINEAR", "bicubic": "BICUBIC"}
    mode = transforms.InterpolationMode[_named(names, method, " for tensors")]
    return lambda image: transforms.functional.resize(image, list(size), mode, antialias=antialias)


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


def make_resizers(
    method: str, dtype: str, antialias: bool, size: Size, convention: str
) -> tuple[list[Resizer], list[str]]:
    """Every library that can do this, and a sentence for each that cannot.

    Args:
      method: one of `jaxsr.comparison.ops_options.METHODS`.
      dtype: one of its `DTYPES`.
      antialias: stretch the filter when shrinking, where a library leaves the choice.
      size: (height, width) of the result.
      convention: jaxsr's convention.
    """
    makers = {
        f"jaxsr ({convention})": partial(_jaxsr, convention=convention),
        "torch": _torch,
        "torchvision": _torchvision,
        "OpenCV": _opencv,
        "Pillow": _pillow,
        "jax.image": _jax_image,
    }
    resizers, absent = [], []
    for library, make in makers.items():
        try:
            resizers.append(Resizer(library, dtype, *make(method, dtype, antialias, size)))
        except UnavailableError as error:
            absent.append(f"{library} {dtype}: {error}")
    return resizers, absent


def library_versions() -> dict[str, str]:
    """Versions of the libraries that import here."""
    versions = {}
    for name in ("jaxsr", "jax", "torch", "torchvision", "cv2", "PIL", "numpy"):
        try:
            versions[name] = str(importlib.import_module(name).__version__)
        except Exception:  # whatever a library that does not fit the others fails with
            versions[name] = "not importable"
    return versions


Parts = tuple[str, Callable, Callable, Callable]
"""`rule`, `load`, `run` and `fetch` of a `Resizer`."""


def _jaxsr(method: str, dtype: str, antialias: bool, size: Size, *, convention: str) -> Parts:
    import jax

    call = jaxsr_resize(method, size, antialias, convention=convention)
    try:
        jax.eval_shape(call, jax.ShapeDtypeStruct((8, 8, 3), dtype))
    except (TypeError, ValueError) as error:
        raise UnavailableError(str(error)) from error
    return _on_jax(dtype, f"{convention} convention", call)


def _jax_image(method: str, dtype: str, antialias: bool, size: Size) -> Parts:
    import jax.numpy as jnp

    resize = jax_image_resize(method, size, antialias)

    def rounded(image: Any) -> Any:
        return jnp.clip(jnp.round(resize(image.astype(jnp.float32))), 0, 255).astype(dtype)

    rules = ["float32, then rounded"] if dtype == "uint8" else []
    rules += ["a = -0.5, edge taps renormalised"] if method == "bicubic" else []
    return _on_jax(dtype, ", ".join(rules), rounded if dtype == "uint8" else resize)


def _on_jax(dtype: str, rule: str, call: Callable[[Any], Any]) -> Parts:
    import jax
    import jax.numpy as jnp

    compiled = jax.jit(call)
    return (
        rule,
        lambda picture: jax.block_until_ready(jnp.asarray(picture, dtype)),
        lambda image: jax.block_until_ready(compiled(image)),
        lambda result: np.asarray(result.astype(jnp.float32)),
    )


def _torch(method: str, dtype: str, antialias: bool, size: Size) -> Parts:
    import torch

    call = torch_resize(method, size, antialias)
    try:
        call(torch.zeros(1, 3, 8, 8, dtype=getattr(torch, dtype)))
    except RuntimeError as error:
        raise UnavailableError(str(error).splitlines()[0]) from error
    return _on_torch(dtype, "", call)


def _torchvision(method: str, dtype: str, antialias: bool, size: Size) -> Parts:
    rule = "through float32" if dtype == "bfloat16" else ""
    return _on_torch(dtype, rule, torchvision_resize(method, size, antialias))


def _on_torch(dtype: str, rule: str, call: Callable[[Any], Any]) -> Parts:
    import torch

    def load(picture: np.ndarray) -> torch.Tensor:
        first = np.ascontiguousarray(picture.transpose(2, 0, 1))[None]
        return torch.from_numpy(first).to(getattr(torch, dtype))

    return rule, load, call, lambda result: result[0].float().numpy().transpose(1, 2, 0)


def _opencv(method: str, dtype: str, antialias: bool, size: Size) -> Parts:
    if dtype == "bfloat16":
        raise UnavailableError("has no bfloat16")
    rule = "no antialias: it never does" if antialias and method != "area" else ""
    rule = "4 lobes, no antialias" if method == "lanczos" else rule
    resize = opencv_resize(method, size)
    return rule, lambda image: image.astype(dtype), resize, lambda out: out.astype(np.float32)


def _pillow(method: str, dtype: str, antialias: bool, size: Size) -> Parts:
    from PIL import Image

    if dtype == "bfloat16":
        raise UnavailableError("has no bfloat16")
    rule = "" if antialias or method in ("nearest", "area") else "antialiased: it always does"
    resize = pillow_resize(method, size)

    def load(picture: np.ndarray) -> list[Image.Image]:
        if dtype == "uint8":
            return [Image.fromarray(picture)]
        return [Image.fromarray(picture[..., c].astype(np.float32)) for c in range(3)]

    return (
        rule,
        load,
        lambda bands: [resize(band) for band in bands],
        lambda result: np.dstack([np.asarray(band, np.float32) for band in result]),
    )

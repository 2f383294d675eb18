"""The libraries whose resize is compared, behind one call each.

A resizer takes one RGB picture `(height, width, 3)` of 0…255 and gives one of another size, on the
same scale. Timing one run covers the resize alone: pictures are converted and, for an accelerator,
moved beforehand, and the device is waited for.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

DTYPES = ("uint8", "float32", "bfloat16")
METHODS = ("nearest", "bilinear", "bicubic", "lanczos", "area")


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


Maker = Callable[[str, str, bool, tuple[int, int]], Resizer | str]


def make_resizers(
    method: str, dtype: str, antialias: bool, size: tuple[int, int], convention: str
) -> tuple[list[Resizer], list[str]]:
    """Every library that can do this, and a sentence for each that cannot.

    Args:
      method: one of `METHODS`.
      dtype: one of `DTYPES`.
      antialias: stretch the filter when shrinking, where a library leaves the choice.
      size: (height, width) of the result.
      convention: jaxsr's convention.
    """
    makers: dict[str, Maker] = {
        f"jaxsr ({convention})": _jaxsr(convention),
        "torch": _torch,
        "torchvision": _torchvision,
        "OpenCV": _opencv,
        "Pillow": _pillow,
        "jax.image": _jax_image,
    }
    resizers, absent = [], []
    for library, make in makers.items():
        made = make(method, dtype, antialias, size)
        if isinstance(made, str):
            absent.append(f"{library} {dtype}: {made}")
        else:
            resizers.append(made)
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


def _jaxsr(convention: str) -> Maker:
    def make(method: str, dtype: str, antialias: bool, size: tuple[int, int]) -> Resizer | str:
        from functools import partial

        import jax

        from jaxsr.ops.resize import resize

        # Pillow's convention always stretches, OpenCV's never does.
        choice = antialias if convention in ("torch", "matlab") else None
        call = partial(resize, size=size, method=method, antialias=choice, convention=convention)
        try:
            jax.eval_shape(call, jax.ShapeDtypeStruct((8, 8, 3), dtype))
        except (TypeError, ValueError) as error:
            return str(error)
        return _on_jax(f"jaxsr ({convention})", dtype, f"{convention} convention", call)

    return make


def _jax_image(method: str, dtype: str, antialias: bool, size: tuple[int, int]) -> Resizer | str:
    import jax
    import jax.numpy as jnp

    names = {
        "nearest": "nearest",
        "bilinear": "bilinear",
        "bicubic": "cubic",
        "lanczos": "lanczos3",
    }
    if method not in names:
        return f"has no {method}"

    def call(image: Any) -> Any:
        x = image.astype(jnp.float32) if dtype == "uint8" else image
        y = jax.image.resize(x, (*size, 3), names[method], antialias=antialias)
        return jnp.clip(jnp.round(y), 0, 255).astype(dtype) if dtype == "uint8" else y

    rule = "float32, then rounded" if dtype == "uint8" else ""
    if method == "bicubic":
        rule = ", ".join(filter(None, (rule, "a = -0.5, edge taps renormalised")))
    return _on_jax("jax.image", dtype, rule, call)


def _on_jax(library: str, dtype: str, rule: str, call: Callable[[Any], Any]) -> Resizer:
    import jax
    import jax.numpy as jnp

    compiled = jax.jit(call)
    return Resizer(
        library,
        dtype,
        rule,
        load=lambda picture: jax.block_until_ready(jnp.asarray(picture, dtype)),
        run=lambda image: jax.block_until_ready(compiled(image)),
        fetch=lambda result: np.asarray(result.astype(jnp.float32)),
    )


def _torch(method: str, dtype: str, antialias: bool, size: tuple[int, int]) -> Resizer | str:
    import torch
    import torch.nn.functional as F

    names = {"nearest": "nearest", "bilinear": "bilinear", "bicubic": "bicubic", "area": "area"}
    if method not in names:
        return f"has no {method}"
    stretch = {"antialias": antialias} if method in ("bilinear", "bicubic") else {}

    def call(image: Any) -> Any:
        return F.interpolate(image, size, mode=names[method], **stretch)

    try:
        call(torch.zeros(1, 3, 8, 8, dtype=getattr(torch, dtype)))
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return _on_torch("torch", dtype, "", call)


def _torchvision(method: str, dtype: str, antialias: bool, size: tuple[int, int]) -> Resizer | str:
    try:
        transforms = importlib.import_module("torchvision.transforms.v2")
    except Exception as error:  # it fails in many ways beside a torch that it was not built for
        return f"does not import ({str(error).splitlines()[0]})"
    names = {"nearest": "NEAREST", "bilinear": "BILINEAR", "bicubic": "BICUBIC"}
    if method not in names:
        return f"has no {method} for tensors"
    mode = transforms.InterpolationMode[names[method]]
    rule = "through float32" if dtype == "bfloat16" else ""
    return _on_torch(
        "torchvision",
        dtype,
        rule,
        lambda image: transforms.functional.resize(image, list(size), mode, antialias=antialias),
    )


def _on_torch(library: str, dtype: str, rule: str, call: Callable[[Any], Any]) -> Resizer:
    import torch

    def load(picture: np.ndarray) -> Any:
        first = np.ascontiguousarray(picture.transpose(2, 0, 1))[None]
        return torch.from_numpy(first).to(getattr(torch, dtype))

    return Resizer(
        library,
        dtype,
        rule,
        load=load,
        run=call,
        fetch=lambda result: result[0].float().numpy().transpose(1, 2, 0),
    )


def _opencv(method: str, dtype: str, antialias: bool, size: tuple[int, int]) -> Resizer | str:
    import cv2

    names = {
        "nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC,
        "lanczos": cv2.INTER_LANCZOS4, "area": cv2.INTER_AREA,
    }  # fmt: skip
    if dtype == "bfloat16":
        return "has no bfloat16"
    rule = "no antialias: it never does" if antialias and method != "area" else ""
    if method == "lanczos":
        rule = "4 lobes, no antialias"
    return Resizer(
        "OpenCV",
        dtype,
        rule,
        load=lambda picture: picture.astype(dtype),
        run=lambda image: cv2.resize(image, size[::-1], interpolation=names[method]),
        fetch=lambda result: result.astype(np.float32),
    )


def _pillow(method: str, dtype: str, antialias: bool, size: tuple[int, int]) -> Resizer | str:
    from PIL import Image

    names = {
        "nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC, "lanczos": Image.Resampling.LANCZOS,
        "area": Image.Resampling.BOX,
    }  # fmt: skip
    if dtype == "bfloat16":
        return "has no bfloat16"
    filter_ = names[method]
    rule = "" if antialias or method in ("nearest", "area") else "antialiased: it always does"

    def load(picture: np.ndarray) -> list[Image.Image]:
        if dtype == "uint8":
            return [Image.fromarray(picture)]
        return [Image.fromarray(picture[..., c].astype(np.float32)) for c in range(3)]

    return Resizer(
        "Pillow",
        dtype,
        rule,
        load=load,
        run=lambda image: [band.resize(size[::-1], filter_) for band in image],
        fetch=lambda result: np.dstack([np.asarray(band, np.float32) for band in result]),
    )

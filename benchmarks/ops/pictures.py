"""Rows of colours, levels, edges and regions of uint8 pictures, against the library of the rule.

8 pictures of 224², smooth with noise, channels last; each peer takes them one by one, as its users
do. kornia has floats alone, in 0…1: another rule, and its own layout.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.ops.race import Entry, Row, importable, jit_entry

COUNT, SIDE = 8, 224


def pictures(count: int = COUNT, height: int = SIDE, width: int = SIDE) -> np.ndarray:
    """(n, h, w, 3), uint8."""
    from scipy import ndimage

    noise = np.random.default_rng(0).random((count, height, width, 3))
    return (ndimage.gaussian_filter(noise, (0, 2, 2, 0)) * 900 - 200).clip(0, 255).astype(np.uint8)


def row(
    name: str,
    ours: Callable[[Any], Any],
    peers: Callable[[], dict[str, Callable[[np.ndarray], Any]]],
    *,
    kornia: Callable[[Any, Any], Any] | None = None,
    gray: bool = False,
    tolerance: float = 0,
) -> Row:
    """Work on all pictures.

    Args:
      name: of the row.
      ours: of (n, h, w, c).
      peers: functions of one picture, (h, w, 3) or (h, w); called where the libraries are imported.
      kornia: of its module and a float tensor (n, c, h, w).
      gray: take one channel.
      tolerance: largest difference of the same mathematics.
    """

    def make() -> list[Entry]:
        import jax.numpy as jnp
        import torch

        images = pictures()[..., :1] if gray else pictures()
        singles: Sequence[np.ndarray] = [*np.ascontiguousarray(images[..., 0] if gray else images)]

        def stacked(results: Any) -> np.ndarray:
            array = np.stack([np.asarray(result) for result in results])
            return array[..., None] if gray else array

        entries = [jit_entry("jaxsr", ours, jnp.asarray(images), values=np.asarray)]
        for peer, function in peers().items():
            call = partial(_one_by_one, function, singles)
            entries.append(Entry(peer, call, stacked))
        module = importable("kornia") if kornia is not None else None
        if kornia is not None and module is not None:
            tensor = torch.from_numpy(np.moveaxis(images, -1, 1) / np.float32(255)).contiguous()
            call = partial(kornia, module, tensor)
            entries.append(Entry("kornia", call, lambda _: np.asarray(ours(images)), same=False))
        return entries

    return Row(name=f"{name}, {COUNT} x {SIDE}², uint8", entries=make, tolerance=tolerance)


def _one_by_one(function: Callable[[np.ndarray], Any], images: Sequence[np.ndarray]) -> list[Any]:
    return [function(image) for image in images]


def _opencv(name: str, *args: Any, **options: Any) -> Callable[[], dict[str, Any]]:
    def peers() -> dict[str, Any]:
        import cv2

        return {"OpenCV": lambda image: getattr(cv2, name)(image, *args, **options)}

    return peers


def _hsv() -> dict[str, Any]:
    import cv2

    return {"OpenCV": lambda image: cv2.cvtColor(image, cv2.COLOR_RGB2HSV)}


def _lab() -> dict[str, Any]:
    from skimage import color

    return {"scikit-image": color.rgb2lab}


def _equalize() -> dict[str, Any]:
    from PIL import Image, ImageOps

    return {"Pillow": lambda image: np.asarray(ImageOps.equalize(Image.fromarray(image)))}


def _autocontrast() -> dict[str, Any]:
    from PIL import Image, ImageOps

    return {"Pillow": lambda image: np.asarray(ImageOps.autocontrast(Image.fromarray(image)))}


def _clahe() -> dict[str, Any]:
    import cv2

    return {"OpenCV": cv2.createCLAHE(2.0, (8, 8)).apply}


def _components() -> dict[str, Any]:
    import cv2
    from scipy import ndimage

    label: Any = ndimage.label
    return {
        "SciPy": lambda image: label(image > 128)[0],
        "OpenCV": lambda image: cv2.connectedComponents(
            (image > 128).view(np.uint8), connectivity=4
        )[1],
    }


def _distances() -> dict[str, Any]:
    from scipy import ndimage

    return {"SciPy": lambda image: ndimage.distance_transform_edt(image > 128)}


def _ours(name: str, *args: Any, **options: Any) -> Callable[[Any], Any]:
    def run(images: Any) -> Any:
        from jaxsr import ops

        return getattr(ops, name)(images, *args, **options)

    return run


def _labels(images: Any) -> Any:
    from jaxsr import ops

    return ops.connected_components(images > 128).labels


def _transformed(images: Any) -> Any:
    from jaxsr import ops

    return ops.distance_transform(images > 128)


ROWS = (
    row("canny", _ours("canny", 50, 120), lambda: {"OpenCV": _canny}, gray=True,
        kornia=lambda k, x: k.filters.canny(x, 0.2, 0.5)),
    row("clahe", _ours("clahe", 2.0), _clahe, gray=True,
        kornia=lambda k, x: k.enhance.equalize_clahe(x, 2.0)),
    row("connected_components", _labels, _components, gray=True),
    row("distance_transform", _transformed, _distances, gray=True, tolerance=1e-4),
    row("rgb_to_hsv, OpenCV's", _ours("rgb_to_hsv", convention="opencv"), _hsv,
        kornia=lambda k, x: k.color.rgb_to_hsv(x)),
    row("rgb_to_lab", _ours("rgb_to_lab"), _lab, tolerance=1e-2,
        kornia=lambda k, x: k.color.rgb_to_lab(x)),
    row("equalize", _ours("equalize"), _equalize, kornia=lambda k, x: k.enhance.equalize(x)),
    row("autocontrast", _ours("autocontrast"), _autocontrast),
    row("median_filter 3", _ours("median_filter", 3), _opencv("medianBlur", 3), tolerance=255,
        kornia=lambda k, x: k.filters.median_blur(x, 3)),
    row("dilate 3", _ours("dilate", 3), _opencv("dilate", np.ones((3, 3), np.uint8)),
        kornia=lambda k, x: k.morphology.dilation(x, x.new_ones(3, 3))),
    row("bilateral_filter 5", _ours("bilateral_filter", sigma_color=25.5, sigma_space=2.0, size=5),
        _opencv("bilateralFilter", 5, 25.5, 2.0)),
)  # fmt: skip


def _canny(image: np.ndarray) -> np.ndarray:
    import cv2

    return cv2.Canny(image, 50, 120) > 0

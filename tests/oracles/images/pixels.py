"""Oracles of adjustments and levels."""

from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage
from skimage import color, exposure

from jaxsr import ops
from tests.oracles.images.oracle import FLOATS, LEVELS, Arguments, Oracle

FINE = ("float32", "bfloat16", "uint16")
"""Dtypes that Pillow does not have."""
U8, U16 = ("uint8",), ("uint16",)


def factors(low: float, high: float) -> Callable[[np.random.Generator, np.ndarray], Arguments]:
    """A number for each picture, with the limits among them."""

    def draw(rng: np.random.Generator, images: np.ndarray) -> Arguments:
        values = rng.uniform(low, high, len(images)).astype(np.float32)
        values[:3] = low, high, 1
        return (values,)

    return draw


def integers(low: int, high: int) -> Callable[[np.random.Generator, np.ndarray], Arguments]:
    """The same, of integers; `high` is among them."""
    return lambda rng, images: (rng.integers(low, high + 1, len(images)),)


def of_white(low: float, high: float) -> Callable[[np.random.Generator, np.ndarray], Arguments]:
    """A part of white for each picture, on the picture's scale."""

    def draw(rng: np.random.Generator, images: np.ndarray) -> Arguments:
        white = np.iinfo(images.dtype).max if images.dtype in LEVELS else 1
        (values,) = factors(low, high)(rng, images)
        return (values * np.float32(white),)

    return draw


def pillow(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """A function of Pillow's pictures, as one of arrays; of Python numbers besides."""

    def run(image: np.ndarray, *arguments: Any) -> np.ndarray:
        picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
        return np.asarray(function(picture, *(np.asarray(a).item() for a in arguments)))

    return run


def enhanced(name: str) -> Callable[..., np.ndarray]:
    """One of Pillow's enhancers."""
    return pillow(lambda picture, factor: getattr(ImageEnhance, name)(picture).enhance(factor))


def planes(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """A function of planes (h, w), for each channel."""

    def run(image: np.ndarray, *arguments: Any) -> np.ndarray:
        singles = (np.ascontiguousarray(image[..., c]) for c in range(image.shape[-1]))
        return np.stack([np.asarray(function(plane, *arguments)) for plane in singles], -1)

    return run


def gray(image: np.ndarray) -> np.ndarray:
    """By the weights of BT.601, as Pillow documents them."""
    return image @ [0.299, 0.587, 0.114]


def _gray_levels(image: np.ndarray) -> np.ndarray:
    """By Pillow's weights of integers."""
    return image @ (np.array([19595, 38470, 7471]) / 65536)


def _from(base: Callable[[np.ndarray], Any]) -> Callable[..., np.ndarray]:
    """Pillow's `Image.blend` with what its enhancer starts from, in float64; levels are cut off."""

    def run(image: np.ndarray, factor: float) -> np.ndarray:
        start = base(image)
        return start + float(factor) * (image - start)

    return run


def _smoothed(image: np.ndarray) -> np.ndarray:
    """Pillow's `SMOOTH`, which leaves the edge."""
    window = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    out = image.copy()
    out[1:-1, 1:-1] = ndimage.convolve(image, window[..., None])[1:-1, 1:-1]
    return out if min(image.shape[:2]) > 2 else image


def _hue(image: np.ndarray, shift: float) -> np.ndarray:
    hsv = color.rgb2hsv(image)
    hsv[..., 0] = (hsv[..., 0] + float(shift)) % 1
    return color.hsv2rgb(hsv)


def _jpeg(picture: Any, quality: int) -> Any:
    file = BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file)


def _posterized(image: np.ndarray, bits: int) -> np.ndarray:
    """torchvision's, of tensors of floats."""
    levels = 2.0**bits
    return np.floor(image * levels).clip(0, levels - 1) / levels


def _balanced(image: np.ndarray) -> np.ndarray:
    """Gray world: means made equal, their mean kept."""
    means = image.mean((0, 1))
    return image * np.where(means == 0, 1, means.mean() / np.where(means == 0, 1, means))


def _stretched(plane: np.ndarray) -> np.ndarray:
    low, high = plane.min(), plane.max()
    rescaled: Any = exposure.rescale_intensity  # whose stubs know names of ranges alone
    return plane if low == high else rescaled(plane, (low, high), (0, 1))


def _cut_off(base: Callable[[np.ndarray], Any]) -> Callable[..., np.ndarray]:
    """`_from` a start in whole levels, with fractions cut off, as Pillow has it for uint8."""

    def run(image: np.ndarray, factor: float) -> np.ndarray:
        x = image.astype(float)
        start = np.floor(base(x) + 0.5)
        return np.floor(start + float(factor) * (x - start)).clip(0, 65535)

    return run


def _in_upper_byte(plane: np.ndarray) -> np.ndarray:
    levels = np.asarray(ImageOps.equalize(Image.fromarray((plane >> 8).astype(np.uint8))))
    return levels.astype(int) * 257


def _in_256_levels(function: Callable[[np.ndarray], Any], plane: np.ndarray) -> np.ndarray:
    """A function of uint8, of 0…1 as torchvision rounds it."""
    return np.asarray(function((plane * 255.999).astype(np.uint8))) / 255


def _equalised(plane: np.ndarray) -> np.ndarray:
    return np.asarray(ImageOps.equalize(Image.fromarray(plane)))


def _stretched_levels(plane: np.ndarray) -> np.ndarray:
    x = plane.astype(np.int64)
    return x if x.min() == x.max() else (x - x.min()) * 65535 // (x.max() - x.min())


def _to_power(image: np.ndarray, gamma: float) -> np.ndarray:
    adjusted: Any = exposure.adjust_gamma  # whose stubs know integers alone
    return adjusted(image, float(gamma))


MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
ENHANCERS = {
    "adjust_brightness": ("Brightness", lambda image: 0),
    "adjust_contrast": ("Contrast", lambda image: gray(image).mean()),
    "adjust_saturation": ("Color", lambda image: gray(image)[..., None]),
    "adjust_sharpness": ("Sharpness", _smoothed),
}
PIXELS: list[Oracle] = [
    *(
        Oracle(
            function=name,
            rule="uint8",
            by="Pillow",
            call=getattr(ops, name),
            reference=enhanced(enhancer),
            draw=factors(-0.3, 2.5),
            dtypes=U8,
            scale="levels",
        )
        for name, (enhancer, _) in ENHANCERS.items()
    ),
    *(
        Oracle(
            function=name,
            rule="float",
            by="Pillow's rule",
            call=getattr(ops, name),
            reference=_from(base),
            draw=factors(-0.3, 2.5),
            dtypes=FLOATS,
            atol=4e-6,
        )
        for name, (_, base) in ENHANCERS.items()
    ),
    Oracle(
        function="adjust_hue",
        by="scikit-image",
        call=ops.adjust_hue,
        reference=_hue,
        draw=factors(-1, 1),
        scale="unit",
        atol=6e-6,
    ),
    Oracle(
        function="adjust_gamma",
        by="scikit-image",
        call=ops.adjust_gamma,
        reference=_to_power,
        draw=factors(0.2, 3),
        scale="unit",
        derivative=False,
    ),
    Oracle(
        function="solarize",
        by="Pillow",
        call=ops.solarize,
        reference=pillow(ImageOps.solarize),
        draw=integers(0, 256),
        dtypes=U8,
        scale="levels",
    ),
    Oracle(
        function="solarize",
        rule="float",
        by="its definition",
        call=ops.solarize,
        reference=lambda x, limit: np.where(x < limit, x, 1 - x),
        draw=factors(0, 1),
        dtypes=FLOATS,
        derivative=False,
    ),
    Oracle(
        function="posterize",
        by="Pillow",
        call=ops.posterize,
        reference=pillow(ImageOps.posterize),
        draw=integers(1, 8),
        dtypes=U8,
        scale="levels",
    ),
    Oracle(
        function="posterize",
        rule="float",
        by="torchvision's rule",
        call=ops.posterize,
        reference=_posterized,
        draw=integers(1, 8),
        dtypes=FLOATS,
        derivative=False,
    ),
    Oracle(
        function="invert",
        by="Pillow",
        call=ops.invert,
        reference=pillow(ImageOps.invert),
        dtypes=U8,
        scale="levels",
    ),
    Oracle(
        function="invert",
        rule="finer",
        by="scikit-image",
        call=ops.invert,
        reference=lambda x: 1 - x,
        dtypes=FINE,
        scale="unit",
    ),
    *(
        Oracle(
            function=name,
            rule="uint16",
            by="Pillow's rule",
            call=getattr(ops, name),
            reference=_cut_off(base),
            draw=factors(-0.3, 2.5),
            dtypes=U16,
            scale="levels",
            ties=2e-2,  # whole numbers in float32 and float64
        )
        for name, base in {
            **{name: base for name, (_, base) in ENHANCERS.items()},
            "adjust_contrast": lambda image: np.floor(_gray_levels(image) + 0.5).mean(),
            "adjust_saturation": lambda image: _gray_levels(image)[..., None],
        }.items()
    ),
    Oracle(
        function="solarize",
        rule="uint16",
        by="its definition",
        call=ops.solarize,
        reference=lambda x, limit: np.where(x < limit, x, 65535 - x.astype(int)),
        draw=of_white(0, 1),
        dtypes=U16,
        scale="levels",
    ),
    Oracle(
        function="posterize",
        rule="uint16",
        by="NumPy",
        call=ops.posterize,
        reference=lambda x, bits: x // 2 ** (16 - bits) * 2 ** (16 - bits),
        draw=integers(1, 16),
        dtypes=U16,
        scale="levels",
    ),
    Oracle(
        function="equalize",
        rule="uint16",
        by="Pillow, upper bytes",
        call=ops.equalize,
        reference=planes(_in_upper_byte),
        dtypes=U16,
        scale="levels",
    ),
    Oracle(
        function="equalize",
        rule="float",
        by="Pillow, in 256 levels",
        call=ops.equalize,
        reference=planes(partial(_in_256_levels, _equalised)),
        dtypes=FLOATS,
        derivative=False,
    ),
    Oracle(
        function="autocontrast",
        rule="uint16",
        by="whole numbers",
        call=ops.autocontrast,
        reference=planes(_stretched_levels),
        dtypes=U16,
        scale="levels",
    ),
    Oracle(
        function="clahe",
        rule="float",
        by="OpenCV, in 256 levels",
        call=partial(ops.clahe, clip_limit=2.0, tiles=(2, 3)),
        reference=planes(partial(_in_256_levels, lambda x: cv2.createCLAHE(2.0, (3, 2)).apply(x))),
        dtypes=FLOATS,
        channels=1,
        atol=0.51 / 255,  # OpenCV rounds to a level
        ties=2e-3,
        derivative=False,
    ),
    Oracle(
        function="equalize",
        by="Pillow",
        call=ops.equalize,
        reference=pillow(ImageOps.equalize),
        dtypes=U8,
        scale="levels",
        derivative=False,
    ),
    Oracle(
        function="autocontrast",
        by="Pillow",
        call=ops.autocontrast,
        reference=pillow(ImageOps.autocontrast),
        dtypes=U8,
        scale="levels",
    ),
    Oracle(
        function="autocontrast",
        rule="cut off",
        by="Pillow",
        call=partial(ops.autocontrast, cutoff=(5, 20)),
        reference=pillow(partial(ImageOps.autocontrast, cutoff=(5, 20))),
        dtypes=U8,
        scale="levels",
    ),
    Oracle(
        function="autocontrast",
        rule="float",
        by="scikit-image",
        call=ops.autocontrast,
        reference=planes(_stretched),
        dtypes=FLOATS,
        derivative=False,
    ),
    *(
        Oracle(
            function="clahe",
            rule=f"{tiles}",
            by="OpenCV",
            call=partial(ops.clahe, tiles=tiles),
            reference=planes(
                lambda x, limit, tiles=tiles: cv2.createCLAHE(float(limit), tiles[::-1]).apply(x)
            ),
            draw=factors(0, 8),
            dtypes=LEVELS,
            scale="levels",
            channels=1,
            ties=2e-3,
            derivative=False,
        )
        for tiles in ((2, 3), (8, 8))
    ),
    Oracle(
        function="jpeg",
        by="Pillow",
        call=ops.jpeg,
        reference=pillow(_jpeg),
        draw=integers(1, 100),
        dtypes=U8,
        scale="levels",
    ),
    Oracle(
        function="standardise",
        by="torchvision's rule",
        call=lambda x: ops.standardise(x, MEAN, STD, dtype=np.promote_types(x.dtype, np.float32)),
        reference=lambda x: (x - MEAN) / STD,
        scale="unit",
        results="float32",
        white=1,
    ),
    Oracle(
        function="white_balance",
        rule="gray world",
        by="its definition",
        call=ops.white_balance,
        reference=_balanced,
        atol=4e-6,
    ),
    Oracle(
        function="normalise",
        by="its definition",
        call=ops.normalise,
        reference=lambda x: x / 127.5 - 1,
        dtypes=U8,
        results="float32",
        white=1,
    ),
]

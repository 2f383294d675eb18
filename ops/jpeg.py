"""The loss of JPEG files, by libjpeg's rules and in its integers.

Images are RGB or grey, uint8, or 0…1 in floating point, which is rounded to 256 levels first;
`axes` names height and width (NHWC by default), `channel` the channels.
"""

from collections.abc import Sequence
from functools import partial
from io import BytesIO

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import ImageLike, is_integer, one_of
from jaxsr.ops._border import pad_axis
from jaxsr.ops._images import channel_planes, in_dtype_of, peak_of, per_picture, picture, real_dtype
from jaxsr.ops._jpeg_blocks import quantised
from jaxsr.ops._opencv import for_each_row
from jaxsr.ops._pillow import pillow
from jaxsr.ops._row_primitives import row_primitive, without_single_channel
from jaxsr.ops._typed_jax import arange, asarray, jit
from jaxsr.ops._types import Array, Shaped
from jaxsr.xla_calls.calls import Arrays, Attributes, kernel

SUBSAMPLINGS = {"4:4:4": (1, 1), "4:2:2": (1, 2), "4:2:0": (2, 2)}
"""Rows and columns of pixels that share their colour."""
_BITS = 16
_LONGEST = 65500
"""Pixels of a side that libjpeg writes."""


def jpeg(
    image: Shaped[ImageLike, "*shape"],
    quality: int | ImageLike,
    *,
    subsampling: str = "4:2:0",
    axes: Sequence[int] = (-3, -2),
    channel: int = -1,
) -> Shaped[Array, "*shape"]:
    """Images as a JPEG file gives them back, as Pillow (libjpeg-turbo) writes and reads it.

    Gradients pass as though nothing were rounded: through colours and their subsampling.

    Args:
      image: images of one or three channels; uint8 or floating point.
      quality: 1 to 100; one integer, or one for each image, traced or not.
      subsampling: of colours: `"4:4:4"`, `"4:2:2"` or `"4:2:0"`.
      axes: the height and the width axis.
      channel: the axis of channels.

    Raises:
      TypeError: an unsuitable dtype, or a quality that is not an integer.
      ValueError: qualities that do not belong to the images, another number of channels, or an
        unknown subsampling.

    Example:
      >>> image = np.full((8, 8, 3), 100, np.uint8)
      >>> image[4:] = 140
      >>> ops.jpeg(image, 10)[:, 0, 0].tolist()
      [107, 98, 94, 107, 129, 142, 138, 129]
    """
    array, positions = picture(image, axes)
    if array.dtype == jnp.uint16:
        raise TypeError("image must be uint8 or floating point, got uint16; JPEG has 8 bits")
    if not is_integer(quality) and not jnp.issubdtype(jnp.result_type(quality), jnp.integer):
        raise TypeError(f"quality must be an integer from 1 to 100, got {quality!r}")
    step = SUBSAMPLINGS[one_of(subsampling, tuple(SUBSAMPLINGS), "subsampling")]
    channel_planes(array, channel, most=1)  # one or three
    place = channel - array.ndim if channel >= 0 else channel
    compress = partial(_jpeg, step=step, axes=positions, channel=place)
    qualities = asarray(quality).astype(jnp.int32)
    return per_picture(compress, array, positions, {"quality": (qualities, 0)})


@jit("step", "axes", "channel")
def _jpeg(
    image: jax.Array,
    quality: jax.Array,
    step: tuple[int, int],
    axes: tuple[int, int],
    channel: int,
) -> jax.Array:
    if image.dtype == jnp.uint8 and max(image.shape[axis] for axis in axes) <= _LONGEST:
        return _of_levels(image, quality, step, axes, channel)
    return _jpeg_in_jax(image, quality, step, axes, channel)


def _of_levels(
    image: jax.Array,
    quality: jax.Array,
    step: tuple[int, int],
    axes: tuple[int, int],
    channel: int,
) -> jax.Array:
    x = jnp.moveaxis(image, (*axes, channel), (-3, -2, -1))
    pictures = x.reshape(-1, *x.shape[-3:])
    qualities = jnp.broadcast_to(quality, pictures.shape[:1])
    out = _jpeg_p.bind(pictures, qualities, subsampling=[*SUBSAMPLINGS.values()].index(step))
    return jnp.moveaxis(out.reshape(x.shape), (-3, -2, -1), (*axes, channel))


@kernel("jaxsr_pillow_jpeg")
def _jpeg_by_pillow(inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    (pictures, qualities), (results,) = inputs, outputs
    subsampling = [*SUBSAMPLINGS][attributes["subsampling"][0]]
    # Not Image.open, which refuses large images from files of strangers.
    from PIL.JpegImagePlugin import JpegImageFile

    def compress(row: int) -> None:
        picture, result = (without_single_channel(x[row]) for x in (pictures, results))
        file, quality = BytesIO(), min(max(int(qualities[row]), 1), 100)
        written = pillow().fromarray(picture)
        written.save(file, "JPEG", quality=quality, subsampling=subsampling)
        file.seek(0)
        result[...] = np.asarray(JpegImageFile(file))

    for_each_row(compress, len(pictures))


def _jpeg_of_levels(pictures: jax.Array, qualities: jax.Array, *, subsampling: int) -> jax.Array:
    step = [*SUBSAMPLINGS.values()][subsampling]
    compress = partial(_jpeg_in_jax, step=step, axes=(-3, -2), channel=-1)
    return jax.vmap(compress)(pictures, qualities)


_jpeg_p = row_primitive("jpeg", _jpeg_of_levels, {"Pillow": _jpeg_by_pillow})


def _jpeg_in_jax(
    image: jax.Array,
    quality: jax.Array,
    step: tuple[int, int],
    axes: tuple[int, int],
    channel: int,
) -> jax.Array:
    def planes_of(x: jax.Array) -> list[jax.Array]:
        return [jnp.moveaxis(plane, axes, (-2, -1)) for plane in channel_planes(x, channel, most=1)]

    def image_of(planes: list[jax.Array]) -> jax.Array:
        return jnp.concatenate([jnp.moveaxis(x, (-2, -1), axes) for x in planes], channel)

    real = image.astype(real_dtype(image)) / peak_of(image) * 255
    levels = jnp.nan_to_num(jnp.clip(jnp.round(real), 0, 255)).astype(jnp.int32)
    kept = image_of(_file(planes_of(levels), quality, step))
    if image.dtype == jnp.uint8:
        return kept.astype(jnp.uint8)
    smooth = image_of(_without_rounding(planes_of(real), step))
    value = smooth + jax.lax.stop_gradient(kept.astype(real.dtype) - smooth)
    return in_dtype_of(image, value / 255)


def _file(planes: list[jax.Array], quality: jax.Array, step: tuple[int, int]) -> list[jax.Array]:
    """Planes of levels, (..., H, W) in int32, as a file keeps them."""
    size = planes[0].shape[-2:]
    luma, *colours = planes if len(planes) == 1 else _to_ycc(*planes)
    luma = _cut(quantised(_padded(luma, (8, 8)), quality, "luma"), size)
    small = (-(-size[0] // step[0]), -(-size[1] // step[1]))
    if not colours:
        return [luma]
    # Columns are repeated before neighbours share a colour, rows afterwards.
    wide = _padded(jnp.stack(colours), (step[0], 8 * step[1]))
    kept = _cut(quantised(_padded(_shared(wide, step), (8, 8)), quality, "chroma"), small)
    return _to_rgb(luma, *_cut(_enlarged(kept, step), size))


def _without_rounding(planes: list[jax.Array], step: tuple[int, int]) -> list[jax.Array]:
    """The colours of a file that stored real numbers."""
    if len(planes) == 1 or step == (1, 1):
        return planes
    size = planes[0].shape[-2:]
    luma, *colours = _to_ycc(*planes)
    blue, red = (_cut(_enlarged(_shared(_padded(x, step), step), step), size) for x in colours)
    return _to_rgb(luma, blue, red)


def _padded(plane: jax.Array, multiple: tuple[int, int]) -> jax.Array:
    for axis, of in zip((-2, -1), multiple, strict=True):
        plane = pad_axis(plane, plane.ndim + axis, 0, -plane.shape[axis] % of, "edge")
    return plane


def _cut(plane: jax.Array, size: tuple[int, ...]) -> jax.Array:
    return plane[..., : size[0], : size[1]]


def _to_ycc(red: jax.Array, green: jax.Array, blue: jax.Array) -> list[jax.Array]:
    """JFIF's luma and colours, with 16 fractional bits; real numbers keep their fractions."""
    half = 1 << _BITS - 1
    middle = (128 << _BITS) + half - 1
    return [
        _fraction(19595 * red + 38470 * green + 7471 * blue, half, _BITS),
        _fraction(-11059 * red - 21709 * green + 32768 * blue, middle, _BITS, 128.0),
        _fraction(32768 * red - 27439 * green - 5329 * blue, middle, _BITS, 128.0),
    ]


def _to_rgb(luma: jax.Array, blue: jax.Array, red: jax.Array) -> list[jax.Array]:
    half, blue, red = 1 << _BITS - 1, blue - 128, red - 128
    planes = [
        luma + _fraction(91881 * red, half, _BITS),
        luma + _fraction(-22554 * blue - 46802 * red, half, _BITS),
        luma + _fraction(116130 * blue, half, _BITS),
    ]
    whole = jnp.issubdtype(luma.dtype, jnp.integer)
    return [jnp.clip(plane, 0, 255) if whole else plane for plane in planes]


def _shared(plane: jax.Array, step: tuple[int, int]) -> jax.Array:
    """Means of neighbours; libjpeg rounds them down and up in turns of columns."""
    down, across = step
    if step == (1, 1):
        return plane
    height, width = plane.shape[-2] // down, plane.shape[-1] // across
    total = plane.reshape(*plane.shape[:-2], height, down, width, across).sum((-3, -1))
    odd = arange(width) % 2
    return _fraction(total, odd + 1 if down == 2 else odd, down)


def _enlarged(plane: jax.Array, step: tuple[int, int]) -> jax.Array:
    """Colours of pixels between those of the file: 3 parts of the near one, 1 of the next.

    libjpeg repeats colours of images of at most two columns of them, and rounds rows and columns
    at once.
    """
    down, across = step
    if step == (1, 1):
        return plane
    if plane.shape[-1] <= 2:
        return plane.repeat(down, -2).repeat(across, -1)
    if down == 2:
        wide = pad_axis(plane, plane.ndim - 2, 1, 1, "edge")
        rows = [3 * plane + wide[..., k : k + plane.shape[-2], :] for k in (0, 2)]
        height, width = plane.shape[-2:]
        plane = jnp.stack(rows, -2).reshape(*plane.shape[:-2], 2 * height, width)
    wide = pad_axis(plane, plane.ndim - 1, 1, 1, "edge")
    before, behind = (3 * plane + wide[..., k : k + plane.shape[-1]] for k in (0, 2))
    bits, biases = (4, (8, 7)) if down == 2 else (2, (1, 2))
    columns = [_fraction(x, b, bits) for x, b in zip((before, behind), biases, strict=True)]
    return jnp.stack(columns, -1).reshape(*plane.shape[:-1], 2 * plane.shape[-1])


def _fraction(total: jax.Array, bias: jax.Array | int, bits: int, offset: float = 0.0) -> jax.Array:
    """`total / 2^bits`: integers with a bias before they are cut off, real numbers as they are."""
    if jnp.issubdtype(total.dtype, jnp.integer):
        return (total + bias) >> bits
    return total / (1 << bits) + offset

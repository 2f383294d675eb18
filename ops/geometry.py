"""Pixels moved by whole steps: flips, turns, borders and crops.

Images are uint8, uint16 or floating point in any layout; `axes` names height and width (NHWC by
default). Nothing is rounded: every result holds pixels of the image, or `fill`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxsr.ops._arguments import ImageLike, is_integer, number, positive_pair
from jaxsr.ops._border import checked_border, pad_axis
from jaxsr.ops._images import Parameter, in_dtype_of, integers, per_picture, picture, real_dtype
from jaxsr.ops._typed_jax import asarray
from jaxsr.ops._types import Array, Shaped


def flip(
    image: Shaped[ImageLike, "*shape"],
    *,
    horizontal: bool | ImageLike = True,
    vertical: bool | ImageLike = False,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Mirrors left and right, top and bottom, or both.

    Args:
      image: input images.
      horizontal: whether columns are reversed: one boolean, or one for each image, traced or not.
      vertical: whether rows are.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or flags that are not boolean.
      ValueError: flags that do not belong to the images.

    Example:
      >>> image = np.arange(4).reshape(1, 2, 2, 1).astype(np.uint8)
      >>> ops.flip(image)[0, ..., 0].tolist()
      [[1, 0], [3, 2]]
    """
    array, positions = picture(image, axes)
    for axis, name, flags in zip(
        positions, ("vertical", "horizontal"), (vertical, horizontal), strict=True
    ):
        if isinstance(flags, bool):
            array = jnp.flip(array, axis) if flags else array
            continue
        mask = asarray(flags)
        if mask.dtype != bool:
            raise TypeError(f"{name} must be boolean, got {mask.dtype}")

        def turned(x: jax.Array, flag: jax.Array, axis: int = axis) -> jax.Array:
            # In halves: XLA on CPUs would reverse anew for all that reads the result, but it does
            # not fuse a concatenation.
            place = axis + x.ndim
            first, second = jnp.split(x, [x.shape[place] // 2], place)
            front, back = jnp.split(x, [x.shape[place] - first.shape[place]], place)
            halves = (first, back), (second, front)
            return jnp.concatenate(
                [jnp.where(flag, jnp.flip(b, place), a) for a, b in halves], place
            )

        array = per_picture(turned, array, positions, {name: (mask, 0)})
    return array


def rot90(
    image: Shaped[ImageLike, "..."], turns: int = 1, *, axes: Sequence[int] = (-3, -2)
) -> Shaped[Array, "..."]:
    """Turns images counter-clockwise by quarters, as `numpy.rot90`.

    Args:
      image: input images.
      turns: quarter turns, also negative. Static.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or turns that are not integers.

    Example:
      >>> ops.rot90(np.arange(4).reshape(2, 2, 1).astype(np.uint8))[..., 0].tolist()
      [[1, 3], [0, 2]]
    """
    array, positions = picture(image, axes)
    if not is_integer(turns):
        raise TypeError(f"turns must be an integer, got {turns!r}")
    return jnp.rot90(array, turns, positions)


def transpose(
    image: Shaped[ImageLike, "..."], *, axes: Sequence[int] = (-3, -2)
) -> Shaped[Array, "..."]:
    """Exchanges rows and columns.

    Args:
      image: input images.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype.

    Example:
      >>> ops.transpose(np.arange(4).reshape(2, 2, 1).astype(np.uint8))[..., 0].tolist()
      [[0, 2], [1, 3]]
    """
    array, positions = picture(image, axes)
    return jnp.swapaxes(array, *positions)


def pad(
    image: Shaped[ImageLike, "..."],
    padding: int | Sequence[int],
    *,
    border: str = "constant",
    fill: float = 0,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Adds a border.

    Args:
      image: input images.
      padding: pixels added, from 0: on all sides, (vertical, horizontal), or (top, bottom, left,
        right). Static.
      border: `"constant"`, `"edge"`, `"reflect101"` (NumPy's "reflect"), `"symmetric"` or
        `"wrap"`. It may be wider than the image.
      fill: value of the constant border.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or a padding that is not integer.
      ValueError: a negative padding, of another length than 1, 2 or 4, or an unknown border.

    Example:
      >>> ops.pad(np.ones((1, 2, 1), np.uint8), (0, 1))[..., 0].tolist()
      [[0, 1, 1, 0]]
    """
    array, positions = picture(image, axes)
    border = checked_border(border)
    outside = in_dtype_of(array, asarray(number(fill, "fill"), real_dtype(array)))
    for axis, (before, after) in zip(positions, _sides(padding), strict=True):
        place = axis + array.ndim
        if border == "constant":
            widths = [(before, after, 0) if k == place else (0, 0, 0) for k in range(array.ndim)]
            array = jax.lax.pad(array, outside, widths)
        elif array.size:
            array = pad_axis(array, place, before, after, border)
        else:
            shape = [n + (before + after) * (k == place) for k, n in enumerate(array.shape)]
            array = array.reshape(shape)
    return array


def _sides(padding: int | Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """((top, bottom), (left, right))."""
    sides = list(padding) if isinstance(padding, Sequence) else [padding]
    if len(sides) not in (1, 2, 4) or not all(map(is_integer, sides)):
        raise TypeError(
            "padding must be an integer, (vertical, horizontal) or (top, bottom, left, right), "
            f"got {padding!r}"
        )
    if min(sides) < 0:
        raise ValueError(f"padding must be 0 or more, got {padding!r}; use crop to cut")
    if len(sides) == 4:
        return (sides[0], sides[1]), (sides[2], sides[3])
    return (sides[0], sides[0]), (sides[-1], sides[-1])


def crop(
    image: Shaped[ImageLike, "..."],
    top: int | Parameter,
    left: int | Parameter,
    size: int | Sequence[int],
    *,
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "..."]:
    """Cuts a window of a fixed size at any place.

    Args:
      image: input images.
      top: first row: one integer, or one for each image, traced or not. Moved where the window
        would leave the image.
      left: first column.
      size: (height, width) of the window, within the image. Static.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype, or places that are not integers.
      ValueError: a window larger than the image, or places that do not belong to the images.

    Example:
      >>> ops.crop(np.arange(9).reshape(3, 3, 1).astype(np.uint8), 1, 0, (2, 2))[..., 0].tolist()
      [[3, 4], [6, 7]]
    """
    array, positions = picture(image, axes)
    extents = _window(array, positions, size)
    corners = {name: integers(place, name) for name, place in (("top", top), ("left", left))}

    def cut(x: jax.Array, *corner: jax.Array) -> jax.Array:
        for axis, start, extent in zip(positions, corner, extents, strict=True):
            inside = jnp.clip(start, 0, x.shape[axis] - extent)
            x = jax.lax.dynamic_slice_in_dim(x, inside, extent, axis=axis + x.ndim)
        return x

    return per_picture(cut, array, positions, {name: (c, 0) for name, c in corners.items()})


def center_crop(
    image: Shaped[ImageLike, "..."], size: int | Sequence[int], *, axes: Sequence[int] = (-3, -2)
) -> Shaped[Array, "..."]:
    """Cuts the middle, with torchvision's rounding: an odd margin's half rounds to even.

    Args:
      image: input images.
      size: (height, width) of the window, within the image. Static.
      axes: the height and the width axis.

    Raises:
      TypeError: an unsuitable dtype.
      ValueError: a window larger than the image.

    Example:
      >>> ops.center_crop(np.arange(9).reshape(3, 3, 1).astype(np.uint8), 1).item()
      4
    """
    array, positions = picture(image, axes)
    for axis, extent in zip(positions, _window(array, positions, size), strict=True):
        start = round((array.shape[axis] - extent) / 2)
        array = jax.lax.slice_in_dim(array, start, start + extent, axis=axis + array.ndim)
    return array


def _window(image: jax.Array, axes: tuple[int, int], size: int | Sequence[int]) -> tuple[int, int]:
    extents = positive_pair(size, "size")
    room = image.shape[axes[0]], image.shape[axes[1]]
    if extents[0] > room[0] or extents[1] > room[1]:
        raise ValueError(
            f"size={extents} is larger than the image of {room[0]}x{room[1]}; pad it first"
        )
    return extents

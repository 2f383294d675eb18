"""Opening, closing and gradient of grey-scale morphology, from `dilate` and `erode`."""

from collections.abc import Sequence

from jaxsr.ops._arguments import ImageLike
from jaxsr.ops._types import Array, Shaped
from jaxsr.ops.filters import extremes


def opening(
    image: Shaped[ImageLike, "*shape"],
    size: int | Sequence[int],
    *,
    border: str = "symmetric",
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Removes light spots smaller than the window, as `scipy.ndimage.grey_opening`.

    Arguments and errors are those of `dilate`.

    Example:
      >>> ops.opening(np.array([[[1], [9], [1], [7], [7], [7]]], np.uint8), (1, 3)).ravel().tolist()
      [1, 1, 1, 7, 7, 7]
    """
    return extremes("opening", image, size, border, axes)


def closing(
    image: Shaped[ImageLike, "*shape"],
    size: int | Sequence[int],
    *,
    border: str = "symmetric",
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Removes dark spots smaller than the window, as `scipy.ndimage.grey_closing`.

    Arguments and errors are those of `dilate`.

    Example:
      >>> ops.closing(np.array([[[7], [7], [1], [7], [7]]], np.uint8), (1, 3)).ravel().tolist()
      [7, 7, 7, 7, 7]
    """
    return extremes("closing", image, size, border, axes)


def morphological_gradient(
    image: Shaped[ImageLike, "*shape"],
    size: int | Sequence[int],
    *,
    border: str = "symmetric",
    axes: Sequence[int] = (-3, -2),
) -> Shaped[Array, "*shape"]:
    """Greatest less least value of windows, as `scipy.ndimage.morphological_gradient`.

    Arguments and errors are those of `dilate`.

    Example:
      >>> image = np.array([[[1], [1], [5], [5]]], np.uint8)
      >>> ops.morphological_gradient(image, (1, 3)).ravel().tolist()
      [0, 4, 4, 0]
    """
    return extremes("gradient", image, size, border, axes)

"""A restoring program's work around its network: intensities, and the eight symmetries."""

from collections.abc import Callable
from typing import Any

from jaxsr.runtime.runner import Around


def around_tiles(value_range: tuple[float, float], *, ensemble: bool) -> Around:
    """Tiles in [0, 1] through a network of another range, in JAX and in torch.

    Args:
      value_range: intensities that the network's 0…1 stands for.
      ensemble: average over the eight flips and turns.
    """
    low, high = value_range

    def around(xp: Any, network: Callable[[Any], Any], tiles: Any) -> Any:
        def once(x: Any) -> Any:
            return (network(x * (high - low) + low) - low) / (high - low)

        total = once(tiles)
        if not ensemble:
            return total
        for k in range(1, 8):
            total = total + _unturned(xp, once(_turned(xp, tiles, k)), k)
        return total / 8

    return around


def _turned(xp: Any, images: Any, k: int) -> Any:
    """The k-th of the eight symmetries of the square."""
    images = xp.flip(images, (-1,)) if k >= 4 else images
    return xp.rot90(images, k % 4, (-2, -1))


def _unturned(xp: Any, images: Any, k: int) -> Any:
    """The inverse of `_turned`."""
    images = xp.rot90(images, -(k % 4), (-2, -1))
    return xp.flip(images, (-1,)) if k >= 4 else images

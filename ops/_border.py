"""Values beyond the edge of an image, under the names that each library gives it.

| ours | beyond the edge of `a b c d` | NumPy | torch | OpenCV | SciPy |
|---|---|---|---|---|---|
| `reflect101` | `c b │ a b c d │ c b` | reflect | reflect | REFLECT_101 | mirror |
| `symmetric` | `b a │ a b c d │ d c` | symmetric | – | REFLECT | reflect |
| `edge` | `a a │ a b c d │ d d` | edge | replicate | REPLICATE | nearest |
| `constant` | `0 0 │ a b c d │ 0 0` | constant | constant | CONSTANT | constant |
| `wrap` | `c d │ a b c d │ a b` | wrap | circular | WRAP | wrap |
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._arguments import one_of
from jaxsr.ops._typed_jax import pad

Border = Literal["reflect101", "symmetric", "edge", "constant", "wrap"]
BORDERS: tuple[Border, ...] = ("reflect101", "symmetric", "edge", "constant", "wrap")

_ALIASES: dict[str, dict[str, Border]] = {
    "torchvision": {"reflect": "reflect101", "replicate": "edge", "circular": "wrap"},
    "opencv": {"reflect": "symmetric", "replicate": "edge"},
}
NUMPY_MODES: dict[str, Any] = dict(zip(BORDERS, BORDERS, strict=True)) | {"reflect101": "reflect"}
"""NumPy's name of each border."""


def checked_border(border: str) -> Border:
    """`border` if it is one of ours."""
    names: dict[str, Border] = {name: name for name in BORDERS}
    return names[one_of(border, BORDERS, "border")]


def border_name(border: str | None, convention: str) -> Border:
    """Our name of a border; the default of both conventions is `reflect101`."""
    if border is None:
        return "reflect101"
    names: dict[str, Border] = {**{name: name for name in BORDERS}, **_ALIASES[convention]}
    return names[one_of(border, tuple(names), f"border of the {convention} convention")]


def border_period(extent: int, border: Border) -> int:
    """Positions after which a border that wraps or mirrors repeats itself."""
    return {"wrap": extent, "symmetric": 2 * extent, "reflect101": max(2 * extent - 2, 1)}[border]


def border_index(
    position: np.ndarray, extent: int, border: Border
) -> tuple[np.ndarray, np.ndarray | bool]:
    """The pixel of an axis that stands at each integer position, and whether it counts.

    Only a constant border has positions that do not count.
    """
    return _border_index(position, extent, border, np)


def traced_border_index(
    position: jax.Array, extent: int, border: Border
) -> tuple[jax.Array, jax.Array | bool]:
    """`border_index` of positions that are known on the device alone."""
    return _border_index(position, extent, border, jnp)


def _border_index(position: Any, extent: int, border: Border, xp: Any) -> tuple[Any, Any]:
    if border in ("wrap", "symmetric", "reflect101"):
        position = position % border_period(extent, border)
        last = 2 * extent - (1 if border == "symmetric" else 2)
        return (position if border == "wrap" else xp.minimum(position, last - position)), True
    index = xp.clip(position, 0, extent - 1)
    return index, (index == position if border == "constant" else True)


def pad_axis(
    x: jax.Array, axis: int, before: int, after: int, border: Border, step: int = 1
) -> jax.Array:
    """`x` with a border on an axis of `step` values per pixel.

    A border wider than the image reflects or wraps repeatedly.
    """
    if step > 1:
        pixels = x.reshape(*x.shape[:axis], -1, step, *x.shape[axis + 1 :])
        wide = pad_axis(pixels, axis, before, after, border)
        return wide.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    if border == "reflect101" and x.shape[axis] == 1:
        border = "edge"  # nothing to mirror
    return pad(x, widths, mode=NUMPY_MODES[border])


def strips(
    x: jax.Array, axis: int, radius: int, border: Border, step: int = 1
) -> tuple[jax.Array, jax.Array]:
    """The first and last `2 * radius` pixels, each behind `radius` pixels of border.

    Both are exact only where the axis has at least `2 * radius` pixels.
    """
    extent, width = x.shape[axis], radius * step

    def part(start: int, stop: int) -> jax.Array:
        return jax.lax.slice_in_dim(x, start, stop, axis=axis)

    first, last = part(0, 2 * width), part(extent - 2 * width, extent)
    if border == "wrap":
        return (
            jnp.concatenate([part(extent - width, extent), first], axis),
            jnp.concatenate([last, part(0, width)], axis),
        )
    return (
        pad_axis(first, axis, radius, 0, border, step),
        pad_axis(last, axis, 0, radius, border, step),
    )

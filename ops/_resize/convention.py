"""The declaration of a resize convention."""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from jaxsr.ops._resize.weights import Pass


@dataclass(frozen=True, kw_only=True)
class Convention:
    """The rules of one library's resize; see `conventions/__init__.py` for how to add one."""

    name: str
    """The name in `resize(convention=…)`."""
    passes: Callable[..., list[Pass]]
    """`(shape, dtype, axes, size, *, method, **options)`: a table of weights for each axis."""
    methods: tuple[str, ...]
    """Names of its filters."""
    antialias: bool
    """Default of `antialias`, or the library's only behaviour."""
    antialias_is_fixed: bool = False
    """Whether the library leaves no choice of it."""
    options: tuple[str, ...] = ()
    """Arguments of `resize` that this convention alone has: scale, align_corners, matlab_edges."""
    most_axes: int | None = None
    """Axes that the library resizes at once."""
    ties_go_up: Callable[..., bool] | None = None
    """`(shape, axes, size, *, method)`: whether ties of uint16 are rounded upwards.

    Otherwise they are rounded to the even level.
    """
    check: Callable[..., object] = dict
    """Raises ValueError where options do not go together."""
    library: Callable[..., jax.Array | None] | None = None
    """`(image, axes, size, *, method, **options)` in programs for CPUs: the library's own result.

    None where it is not called for this image.
    """
    library_dtypes: tuple[str, ...] = ()
    """Dtypes of images that it may be called for."""

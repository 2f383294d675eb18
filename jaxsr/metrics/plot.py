"""Figures drawn with matplotlib: no windows, no global state, the same bytes on every run."""

import functools
import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


P = ParamSpec("P")
R = TypeVar("R")


def in_default_style(draw: Callable[P, R]) -> Callable[P, R]:
    """`draw` with matplotlib's own settings: its file of settings may lie in the current folder."""

    @functools.wraps(draw)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            return draw(*args, **kwargs)

    return run


def new_figure(width_inches: float, height_inches: float) -> "Figure":
    """An empty figure whose parts are laid out without overlaps."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def as_png(figure: "Figure", *, dpi: int = 120) -> bytes:
    """The figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # names in any script
        figure.savefig(content, format="png", dpi=dpi, metadata={"Software": None})
    return content.getvalue()

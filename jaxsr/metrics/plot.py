"""Figures drawn with matplotlib: no windows, no global state, the same bytes on every run."""

import io
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def as_svg(figure: "Figure") -> str:
    """The figure as an SVG document whose text stays text."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    content = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxsr"}):
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    return content.getvalue()

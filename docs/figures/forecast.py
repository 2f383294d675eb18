"""Draws forecast.svg: `PYTHONPATH=. python docs/figures/forecast.py`."""

import io
from pathlib import Path

import matplotlib

from benchmarks.ahead.forecast import CHIPS, SYSTEMS, Forecast, forecasts
from jaxsr.metrics.plot import new_figure

PUBLISHED: dict[str, dict[str, list[tuple[int, float]]]] = {
    "TPU v5e": {"MaxText, 16B": [(256, 120), (512, 117), (1024, 117), (2048, 115), (8192, 108)]},
    "H100": {"torchtitan, Llama 3.1 8B": [(8, 6667), (128, 6514)]},
}
"""Speed for each chip, TFLOP/s and tokens/s; sources in docs/scale.md."""


def draw(results: list[Forecast]) -> str:
    """Efficiency over chips as an SVG document: the forecast's bands, measured points."""
    figure = new_figure(10, 3.4)
    axes = figure.subplots(1, len(SYSTEMS), sharey=True)
    colours = {"MSHNet": "C0", "SR transformer": "C1", "Llama-3.1-8B": "C2"}
    for axis, system in zip(axes, SYSTEMS, strict=True):
        for model, colour in colours.items():
            rows = [r for r in results if (r.model, r.system) == (model, system.name)]
            if not rows:
                continue
            chips = [r.chips for r in rows]
            least = [100 * r.least_efficiency for r in rows]
            best = [100 * r.best_efficiency for r in rows]
            axis.fill_between(chips, least, best, color=colour, alpha=0.25, linewidth=0)
            axis.plot(chips, least, color=colour, marker="o", markersize=3, label=model)
        for name, points in PUBLISHED.get(system.name, {}).items():
            chips = [n for n, _ in points]
            relative = [100 * speed / points[0][1] for _, speed in points]
            axis.plot(chips, relative, "kx:", label=f"measured: {name}")
        ticks = sorted(
            {*CHIPS, *(n for p in PUBLISHED.get(system.name, {}).values() for n, _ in p)}
        )
        axis.set(title=system.name, xlabel="chips", xscale="log", ylim=(50, 102))
        axis.set_xticks([t for t in ticks if t in CHIPS or t == 8192], minor=False)
        axis.set_xticks([], minor=True)
        axis.set_xticklabels([str(t) for t in ticks if t in CHIPS or t == 8192])
        axis.grid(axis="y", alpha=0.3)
        axis.legend(loc="lower left", fontsize=7, frameon=False)
    axes[0].set_ylabel("efficiency, %")
    content = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxsr"}):
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    return content.getvalue()


if __name__ == "__main__":
    lines = [line.rstrip() for line in draw(forecasts()).splitlines()]
    Path(__file__).with_suffix(".svg").write_text("\n".join(lines) + "\n")

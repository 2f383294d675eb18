"""Draws the layers of the project, architecture.svg: `python docs/figures/architecture.py`."""

from pathlib import Path

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

WIDTH, HEIGHT, GAP = 12.0, 0.92, 0.42
LAYERS: list[tuple[str, list[tuple[str, str]]]] = [
    (
        "commands",
        [
            (
                "train · restore · detect · evaluate · generate · check · compare · doctor",
                "parse options and call, under 60 lines each",
            ),
        ],
    ),
    (
        "tasks",
        [
            ("training", "tasks, presets,\nthe one loop"),
            ("restoration", "tiles, files,\nvideos"),
            ("detection", "targets,\nevaluation"),
            ("generation", "prefill, decode,\nsampling"),
            ("comparison", "checks, engines,\ntraces"),
            ("doctor", "checks of\na machine"),
        ],
    ),
    (
        "runtime",
        [("runtime", "options, set-up of JAX, the runner of both engines, errors, exit statuses")],
    ),
    (
        "models,\ndata",
        [
            ("models", "registry, loader, hub,\none folder a family (torch only)"),
            ("data", "photos, infrared images, video;\nbatches by step number"),
            ("metrics", "PSNR, IoU,\nLPIPS"),
        ],
    ),
    (
        "interop",
        [
            ("module", "to_jax,\nexplain"),
            ("_core", "trace, dispatch,\nregistry"),
            ("lowerings", "who computes\nan aten operator"),
            ("folding", "narrow images\nin TPU lanes"),
            ("train", "objective, step,\noptimizers"),
            ("aot", "chips, compile,\nreport"),
        ],
    ),
    (
        "ops",
        [("ops", "jitted image kernels in the conventions of torch, OpenCV, Pillow and MATLAB")],
    ),
]
COLOURS = ("#fde2c4", "#fbf0c8", "#e3efc8", "#cfe8dc", "#cfe0f3", "#e2d8f0")


def draw() -> Figure:
    figure = Figure(figsize=(9.6, 6.2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-1.75, WIDTH + 0.15)
    axes.set_ylim(-len(LAYERS) * (HEIGHT + GAP), 0.25)
    axes.axis("off")
    for row, ((layer, boxes), colour) in enumerate(zip(LAYERS, COLOURS, strict=True)):
        bottom = -row * (HEIGHT + GAP) - HEIGHT
        axes.text(
            -0.15, bottom + HEIGHT / 2, layer, ha="right", va="center", size=11, weight="bold"
        )
        side = WIDTH / len(boxes)
        for column, (name, text) in enumerate(boxes):
            corner = (column * side + 0.06, bottom)
            box = FancyBboxPatch(
                corner, side - 0.12, HEIGHT, boxstyle="round,pad=0,rounding_size=0.1",
                facecolor=colour, edgecolor="#555555", linewidth=0.8,
            )  # fmt: skip
            axes.add_patch(box)
            middle = corner[0] + (side - 0.12) / 2
            centred = {"ha": "center", "va": "center"}
            axes.text(middle, bottom + 0.7 * HEIGHT, name, size=10, weight="bold", **centred)
            axes.text(middle, bottom + 0.32 * HEIGHT, text, size=7.5, linespacing=1.2, **centred)
        if row < len(LAYERS) - 1:
            arrow = FancyArrowPatch(
                (WIDTH / 2, bottom - 0.04), (WIDTH / 2, bottom - GAP + 0.04),
                arrowstyle="-|>", mutation_scale=12, color="#555555",
            )  # fmt: skip
            axes.add_patch(arrow)
    axes.text(WIDTH / 2 + 0.15, -HEIGHT - GAP / 2, "imports", va="center", size=8, color="#555555")
    return figure


if __name__ == "__main__":
    import matplotlib as mpl

    mpl.rcParams |= {"svg.hashsalt": "jaxsr", "svg.fonttype": "path"}
    path = Path(__file__).with_suffix(".svg")
    figure = draw()
    FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})

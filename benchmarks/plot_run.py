"""Draws a training run's course: losses, and the validation figures named.

python benchmarks/plot_run.py RUN/metrics.jsonl --figures iou niou --out docs/figures/run.png
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxsr.metrics.plot import as_png, new_figure

_SMOOTHED_OVER = 25  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("metrics", type=Path, help="metrics.jsonl of a run")
    parser.add_argument("--loss", default="network/loss", help="metric of the left axis")
    parser.add_argument("--figures", nargs="+", default=["iou"], help="validation figures")
    parser.add_argument("--out", type=Path, required=True, help="picture to write")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.metrics.read_text().splitlines()]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw(rows, options.loss, options.figures, options.out)


def draw(rows: list[dict[str, Any]], loss: str, figures: list[str], out: Path) -> None:
    """One picture: the loss, smoothed, and the validation figures on an axis of their own."""
    steps, losses = zip(*((r["step"], r[loss]) for r in rows if loss in r), strict=True)
    window = min(_SMOOTHED_OVER, len(losses))
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    canvas = new_figure(7, 3.6)
    left = canvas.add_subplot()
    left.plot(steps[window - 1 :], smooth, color="0.6", label=f"{loss}, mean of {window} steps")
    left.set(xlabel="step", ylabel=loss, yscale="log")
    right = left.twinx()
    for figure in figures:
        name = f"validation/{figure}"
        at, values = zip(*((r["step"], r[name]) for r in rows if name in r), strict=True)
        right.plot(at, values, marker="o", label=name)
    right.set(ylabel="validation", ylim=(0, 1))
    canvas.legend(loc="outside upper center", ncols=1 + len(figures), frameon=False)
    out.write_bytes(as_png(canvas))


if __name__ == "__main__":
    main()

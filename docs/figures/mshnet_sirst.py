"""Draws mshnet-sirst.png: the loss and the validation of the README's MSHNet on SIRST v1.

    python docs/figures/mshnet_sirst.py runs/sirst runs/sirst-end

A run folder that branches from the one before it replaces its later steps.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WINDOW = 100
FIGURES = {"validation/iou": "IoU of 37 held-out images", "validation/niou": "nIoU of the same"}


def records(folders: list[Path]) -> dict[int, dict[str, Any]]:
    """By step, what the runs logged."""
    steps: dict[int, dict[str, Any]] = {}
    for folder in folders:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if "step" in line]
        steps = {step: values for step, values in steps.items() if step < lines[0]["step"]}
        for line in lines:
            steps.setdefault(line["step"], {}).update(line)
    return dict(sorted(steps.items()))


def main() -> None:
    steps = records([Path(folder) for folder in sys.argv[1:]])
    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    axes = figure.subplots()
    points = [(step, line["network/loss"]) for step, line in steps.items() if "phase" in line]
    x, loss = np.array(points).T
    mean = np.convolve(loss, np.ones(WINDOW) / WINDOW, mode="valid")
    axes.plot(x[WINDOW - 1 :], mean, color="0.6", label=f"training loss, mean of {WINDOW} steps")
    axes.set(xlabel="step", ylabel="loss", ylim=(0, None))
    right = axes.twinx()
    for name, label in FIGURES.items():
        points = [(step, line[name]) for step, line in steps.items() if name in line]
        right.plot(*zip(*points, strict=True), marker="o", label=label)
    right.set(ylabel="IoU, nIoU", ylim=(0, 1))
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.set_dpi(100)
    FigureCanvasAgg(figure).print_png(Path(__file__).with_name("mshnet-sirst.png"))


if __name__ == "__main__":
    main()

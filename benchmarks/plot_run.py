"""Draws a training run's course: losses, and the validation figures named."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks._results import run_benchmark
from jaxsr.interop.sealed_json import unseal

_SMOOTHED_OVER = 25  # steps


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to draw."""

    metrics: tyro.conf.Positional[Path]
    """metrics.jsonl of a run."""
    out: Path
    """PNG to write."""
    loss: str = "network/loss"
    """Metric of the left axis."""
    figures: tuple[str, ...] = ("iou",)
    """Validation figures."""


def plot(options: Options) -> None:
    """Reads the run and draws it.

    Raises:
      InputError: a line is damaged.
    """
    lines = enumerate(options.metrics.read_bytes().splitlines(), 1)
    rows = [unseal(line, source=f"{options.metrics}, line {number}") for number, line in lines]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw(rows, options.loss, options.figures, options.out)


def draw(rows: list[dict[str, Any]], loss: str, figures: tuple[str, ...], out: Path) -> None:
    """One picture: the loss, smoothed, and the validation figures on a second axis."""
    from jaxsr.metrics.plot import as_png, new_figure

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
    run_benchmark(plot, Options)

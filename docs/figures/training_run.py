"""Draws a training run's course, as in mshnet-sirst.png: losses, and the validation figures named.

python docs/figures/training_run.py RUN/metrics.jsonl --figures iou --out run.png
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from jaxsr.interop.sealed_json import unseal


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the figure."""

    metrics: tyro.conf.Positional[tuple[Path, ...]]
    """metrics.jsonl of a run, and of those that branch from it, in order."""
    out: Path
    """PNG to write."""
    loss: str = "network/loss"
    """Metric of the left axis."""
    figures: tuple[str, ...] = ("iou",)
    """Validation figures."""
    window: int = 25
    """Steps that the loss is averaged over."""


def plot(options: Options) -> None:
    """Reads the runs and draws them.

    Raises:
      InputError: a line is damaged.
    """
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw(read_logged_rows(options.metrics), options)


def read_logged_rows(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Logged figures of runs; the steps of a branch take the place of those it did not follow."""
    rows: list[dict[str, Any]] = []
    for path in paths:
        lines = enumerate(path.read_bytes().splitlines(), 1)
        logged = [unseal(line, source=f"{path}, line {number}") for number, line in lines]
        rows = [row for row in rows if row["step"] < logged[0]["step"]] + logged
    return rows


def draw(rows: list[dict[str, Any]], options: Options) -> None:
    """One picture: the loss, smoothed, and the validation figures on a second axis."""
    from jaxsr.metrics.plot import as_png, new_figure

    loss, figures = options.loss, options.figures
    steps, losses = zip(*((r["step"], r[loss]) for r in rows if loss in r), strict=True)
    window = min(options.window, len(losses))
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
    options.out.write_bytes(as_png(canvas))


if __name__ == "__main__":
    plot(tyro.cli(Options))

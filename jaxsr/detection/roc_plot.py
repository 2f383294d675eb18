"""The ROC picture of an evaluation, drawn with OpenCV: two panels, a grid, a line, no more."""

import math
from collections.abc import Sequence

import cv2
import numpy as np

from jaxsr.metrics.evaluation import Evaluation

_SIDE, _MARGIN = 420, 70
_INK, _GRID, _LINE = (40, 40, 40), (225, 225, 225), (180, 80, 20)  # blue, green, red
_FONT = cv2.FONT_HERSHEY_SIMPLEX


def draw_curves(evaluation: Evaluation) -> bytes:
    """PNG of the pixels' ROC beside Pd against Fa."""
    figures = evaluation.figures
    curve = figures.curve
    auc = "-" if figures.auc is None else f"{figures.auc:.4f}"
    # Above a threshold of 1 nothing is predicted: both curves begin at the origin.
    roc = _panel(
        f"pixels, AUC {auc}",
        ("false positive rate", "true positive rate"),
        [*curve.false_positive_rate, 0.0],
        [*curve.true_positive_rate, 0.0],
        right=1.0,
    )
    # The lowest thresholds mark whole images: shown up to twice the chosen one's, or 100.
    right = _round_up(max(100.0, 2e6 * figures.fa))
    shown = [(1e6 * fa, pd) for fa, pd in zip(curve.fa, curve.pd, strict=True) if 1e6 * fa <= right]
    detection = _panel(
        f"targets, Pd {100 * figures.pd:.1f} at Fa {1e6 * figures.fa:.1f}e-6",
        ("Fa x 1e6", "Pd"),
        [*(fa for fa, _ in shown), 0.0],
        [*(pd for _, pd in shown), 0.0],
        right=right,
    )
    picture = np.concatenate([roc, detection], axis=1)
    written, data = cv2.imencode(".png", picture)
    assert written
    return data.tobytes()


def _round_up(value: float) -> float:
    """The next number whose fifths are short: 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _panel(
    title: str, axes: tuple[str, str], x: Sequence[float], y: Sequence[float], *, right: float
) -> np.ndarray:
    size = _SIDE + 2 * _MARGIN
    panel = np.full((size, size, 3), 255, np.uint8)

    def at(across: float, up: float) -> tuple[int, int]:
        return round(_MARGIN + _SIDE * across / right), round(_MARGIN + _SIDE * (1 - up))

    for part in np.linspace(0, 1, 6):
        cv2.line(panel, at(0, part), at(right, part), _GRID, 1)
        cv2.line(panel, at(part * right, 0), at(part * right, 1), _GRID, 1)
        left, middle = at(0, part)
        _write(panel, f"{part:.1f}", (left - 34, middle + 4))
        column, bottom = at(part * right, 0)
        _write(panel, f"{part * right:g}", (column - 10, bottom + 20))
    cv2.rectangle(panel, at(0, 1), at(right, 0), _INK, 1)
    points = np.array([at(min(a, right), b) for a, b in sorted(zip(x, y, strict=True))], np.int32)
    cv2.polylines(panel, [points.reshape(-1, 1, 2)], False, _LINE, 2, cv2.LINE_AA)
    for point in points:
        cv2.circle(panel, (int(point[0]), int(point[1])), 4, _LINE, -1, cv2.LINE_AA)
    _write(panel, title, (_MARGIN, _MARGIN - 20), scale=0.55)
    _write(panel, axes[0], (_MARGIN + _SIDE // 2 - 50, size - 18))
    _write(panel, axes[1], (6, _MARGIN - 8))
    return panel


def _write(panel: np.ndarray, text: str, place: tuple[int, int], *, scale: float = 0.42) -> None:
    cv2.putText(panel, text, place, _FONT, scale, _INK, 1, cv2.LINE_AA)

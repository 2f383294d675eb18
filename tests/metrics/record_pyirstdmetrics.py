"""Records what pyirstdmetrics computes for the cases of `test_detection.py`.

    pip install --no-deps pyirstdmetrics    # asks for NumPy below 2, runs on 2
    python -m tests.metrics.record_pyirstdmetrics

writes `pyirstdmetrics.json` beside this file: figures of each case, in the order of `FIGURES`, then
Pd and Fa at each threshold. The tests compare with that file, so they need no package whose
requirements contradict jaxsr's.
"""

import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

FIGURES = ("iou", "precision", "recall", "f1", "niou", "pd", "fa")
RECORDED = Path(__file__).with_name("pyirstdmetrics.json")
_BINS = 10


def recorded_cases() -> Iterator[tuple[str, list[tuple[np.ndarray, np.ndarray]]]]:
    """Names of the cases and their images: probability and mask."""
    from tests.metrics.test_detection import ADVERSARIAL, MASKS, random_case

    for seed in range(200):
        yield f"random {seed}", [random_case(seed)]
    for predicted, truth in ADVERSARIAL:
        probability = np.where(MASKS[predicted], 0.93, 0.04)
        yield f"{predicted} / {truth}", [(probability, MASKS[truth])]
    yield "a whole data set", [random_case(seed) for seed in range(60)]


def digest(images: list[tuple[np.ndarray, np.ndarray]]) -> str:
    """Tells whether a case is still the one that was recorded."""
    content = b"".join(array.tobytes() for pair in images for array in pair)
    return hashlib.sha256(content).hexdigest()[:12]


def _figures(images: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    import py_irstd_metrics as theirs  # pyright: ignore[reportMissingImports]

    pooled, each = theirs.CMMetrics(), theirs.CMMetrics()
    kind: dict[str, Any] = {"with_dynamic": False, "with_binary": True, "sample_based": False}
    pooled.add_handler("iou", theirs.IoUHandler(**kind))
    pooled.add_handler("precision", theirs.PrecisionHandler(**kind))
    pooled.add_handler("recall", theirs.RecallHandler(**kind))
    pooled.add_handler("f1", theirs.FmeasureHandler(**kind, beta=1))
    each.add_handler("niou", theirs.IoUHandler(**{**kind, "sample_based": True}))
    targets = theirs.ProbabilityDetectionAndFalseAlarmRate()
    curve = theirs.ProbabilityDetectionAndFalseAlarmRate(num_bins=_BINS)
    for probability, mask in images:
        for tool in (pooled, each, targets, curve):
            tool.update(probability, mask)
    by_name: dict[str, Any] = pooled.get() | each.get()
    values = {name: value["binary"] for name, value in by_name.items()}
    rates, rates_at = targets.get(), curve.get()
    values |= {"pd": rates["probability_detection"][0], "fa": rates["false_alarm"][0]}
    return [
        *(float(values[name]) for name in FIGURES),
        *map(float, rates_at["probability_detection"]),
        *map(float, rates_at["false_alarm"]),
    ]


def main() -> None:
    """Writes the file."""
    lines = [
        f"{json.dumps(name)}: {json.dumps([digest(images), *_figures(images)])}"
        for name, images in recorded_cases()
    ]
    source = json.dumps(f"pyirstdmetrics {version('pyirstdmetrics')}")
    RECORDED.write_text(f'{{"source": {source},\n' + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()

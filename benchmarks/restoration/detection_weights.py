"""IoU, Pd and Fa of detectors' weights on a data set's test list, at the images' own size.

`python -m jaxsr.evaluate DATA --model MODEL` prints the same figures of one file of weights.
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.report import Report, ReportOptions, run_benchmark


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the measurement."""

    data: Path = Path("sirst_v1")
    """Folder of the data set."""
    models: tuple[str, ...] = ("targets",)
    """Weights, as `evaluate --model` takes them."""
    scales: tuple[float, ...] = (1.0,)
    """See `evaluate --scales`."""
    threshold: float = 0.5
    """See `evaluate --threshold`."""


def measure(options: Options) -> None:
    """Evaluates each file of weights, prints its figures, and writes the report."""
    from jaxsr.data.infrared import open_split
    from jaxsr.detection.detector import load_detector
    from jaxsr.metrics.evaluation import evaluate
    from jaxsr.runtime.options import ComputeOptions
    from jaxsr.runtime.setup import setup_compute

    setup_compute(ComputeOptions())
    report = Report("detection_weights", options, key=("model",))
    images = open_split(options.data, "test")
    for model in options.models:
        detector = load_detector(model, scales=options.scales)
        evaluation = evaluate(detector, images, threshold=options.threshold)
        print(evaluation)
        figures = evaluation.as_dict()["figures"]
        names = ("iou", "niou", "precision", "recall", "pd", "fa_1e6", "targets", "images")
        how = {"model": Path(model).stem, "scales": options.scales, "threshold": options.threshold}
        report.add(how | {name: figures[name] for name in names})


if __name__ == "__main__":
    run_benchmark(measure, Options)

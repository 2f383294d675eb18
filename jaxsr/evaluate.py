"""`python -m jaxsr.evaluate DATA --weights FILE --out FOLDER`: tests a detector on a split."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from jaxsr.detection.options import DetectorOptions
from jaxsr.runtime.cli import parse_options, run_command, run_program


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(DetectorOptions):
    """Options of the command."""

    split: str = "test"
    """test, train, or the file of a list of names."""
    lists: str | None = None
    """Folder of the split lists within the data set, where it has several."""
    mask_threshold: int | None = None
    """Gray level above which a mask pixel is target. Default: masks must be binary."""
    distance_px: float = 3.0
    """A target is found if a prediction's centroid lies nearer than this."""
    curve_points: int = 10
    """Thresholds of the ROC."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _evaluate(arguments))


def _evaluate(arguments: list[str]) -> int:
    import tyro

    def command(
        data: tyro.conf.Positional[Path],
        *,
        config: Annotated[EvaluateConfig, tyro.conf.arg(name="")],
    ) -> tuple[Path, EvaluateConfig]:
        return data, config

    data, config = parse_options(
        command,
        arguments,
        prog="python -m jaxsr.evaluate",
        description="IoU, nIoU, precision, recall, F1, Pd, Fa and ROC of a detector on a split.",
    )
    from jaxsr.data.infrared import open_split
    from jaxsr.detection.evaluation import write_report
    from jaxsr.metrics.evaluation import evaluate

    split = config.split if config.split in ("test", "train") else Path(config.split)
    images = open_split(data, split, lists=config.lists, mask_threshold=config.mask_threshold)
    config.select_platform()
    evaluation = evaluate(
        config.detector(),
        images,
        threshold=config.threshold,
        distance_px=config.distance_px,
        curve_points=config.curve_points,
    )
    write_report(evaluation, config.out)
    print(evaluation)
    print(f"report.json, images.csv and roc.png in {config.out}")
    return 0


if __name__ == "__main__":
    run_program(main, "evaluate")

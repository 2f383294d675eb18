"""`python -m jaxsr.evaluate DATA --model MODEL --out FOLDER`: tests a detector on a split."""

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxsr.runtime.activity import fitted, set_status
from jaxsr.runtime.cli import parse_options, run_command, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(_evaluate, arguments)


def _evaluate(arguments: list[str]) -> None:
    from jaxsr.detection.config import EvaluateConfig

    config = parse_options(EvaluateConfig, arguments, prog="python -m jaxsr.evaluate")
    from jaxsr.data.infrared import open_split
    from jaxsr.data.result_folder import result_folder
    from jaxsr.detection.evaluation import RESULTS, write_report
    from jaxsr.errors import counted
    from jaxsr.metrics.evaluation import evaluate
    from jaxsr.runtime.setup import setup_compute

    set_status(f"checking {config.data}")

    split = config.split if config.split in ("test", "train") else Path(config.split)
    images = open_split(
        config.data, split, lists=config.lists, mask_threshold=config.mask_threshold
    )
    setup_compute(config)
    detector = config.detector()
    with result_folder(config.out, RESULTS):
        set_status(f"evaluating {counted(len(images), 'image')}")
        evaluation = evaluate(
            detector,
            images,
            threshold=config.threshold,
            distance_px=config.distance_px,
            curve_points=config.curve_points,
        )
        write_report(evaluation, config.out)
    for line in str(evaluation).splitlines():
        print(fitted(line, sys.stdout))
    print(f"report.json, images.csv and roc.png in {config.out}")


if __name__ == "__main__":
    run_program(main, "evaluate")

"""`python -m jaxsr.detect INPUT… --model MODEL --out FOLDER`: finds small targets in images."""

from collections.abc import Sequence

from jaxsr.runtime.cli import parse_options, run_command, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(_detect, arguments)


def _detect(arguments: list[str]) -> int:
    from jaxsr.detection.config import DetectConfig

    config = parse_options(DetectConfig, arguments, prog="python -m jaxsr.detect")
    if config.aot is not None:
        from jaxsr.detection.ahead_batches import run
    else:
        from jaxsr.detection.detect_files import run
    return run(config)


if __name__ == "__main__":
    run_program(main, "detect")

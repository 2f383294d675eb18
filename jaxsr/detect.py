"""`python -m jaxsr.detect INPUT… --weights FILE --out FOLDER`: finds small targets in pictures."""

import sys
from collections.abc import Sequence
from typing import Annotated

from jaxsr.runtime.cli import parse_options, run_command, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _detect(arguments))


def _detect(arguments: list[str]) -> int:
    import tyro

    from jaxsr.detection.detect_files import DetectConfig, run

    def command(
        inputs: tyro.conf.Positional[tuple[str, ...]],
        *,
        config: Annotated[DetectConfig, tyro.conf.arg(name="")],
    ) -> tuple[list[str], DetectConfig]:
        return list(inputs), config

    inputs, config = parse_options(
        command,
        arguments,
        prog="python -m jaxsr.detect",
        description="Marks small targets in infrared pictures, folders of them, and videos.",
    )
    if config.aot is not None:
        from jaxsr.detection.aot import run as compile_ahead

        return compile_ahead(config)
    config.select_platform()
    return run(inputs, config)


if __name__ == "__main__":
    run_program(main, "detect")

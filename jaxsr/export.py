"""`python -m jaxsr.export --model MODEL --out net.stablehlo`: a model that runs without torch.

The work is done in `jaxsr.comparison.exporting`.
"""

from collections.abc import Sequence

from jaxsr.runtime.cli import parse_options, run_command, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(_export, arguments)


def _export(arguments: list[str]) -> int:
    from jaxsr.comparison.export_options import ExportConfig

    config = parse_options(ExportConfig, arguments, prog="python -m jaxsr.export")
    from jaxsr.comparison.exporting import run

    return run(config)


if __name__ == "__main__":
    run_program(main, "export")

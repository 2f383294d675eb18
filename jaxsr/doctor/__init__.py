"""`python -m jaxsr.doctor`: checks this machine, and gives a remedy for each fault."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxsr.runtime.cli import parse_options, run_command
from jaxsr.runtime.options import Platform


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Checks libraries, devices, the compiler, arithmetic and models on this machine."""

    platform: Platform = "auto"
    """Platform to check; auto takes TPU, then CUDA, then CPU, as the other commands do."""
    verbose: bool = False
    """Print every check. Default: the failed ones, and the number of the others."""
    json: bool = False
    """Print one JSON object instead of lines."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(_diagnose, arguments)


def _diagnose(arguments: list[str]) -> int:
    config = parse_options(DoctorConfig, arguments, prog="python -m jaxsr.doctor")
    from jaxsr.doctor.diagnose import diagnose

    return diagnose(config)

"""`python -m jaxsr.doctor`: checks this machine, and says what to do about what is wrong."""

from collections.abc import Sequence

from jaxsr.runtime.cli import parse_options, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(_diagnose, arguments)


def _diagnose(arguments: list[str]) -> int:
    from jaxsr.doctor.diagnose import DoctorConfig, diagnose

    return diagnose(parse_options(DoctorConfig, arguments, prog="python -m jaxsr.doctor"))

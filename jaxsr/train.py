"""Training: `jaxsr.train(task, steps=…)` and `python -m jaxsr.train [TASK] [OPTIONS]`.

Without options the command trains a small Fast-SRGAN on photos that come with the installation.
"""

import os
from collections.abc import Sequence

from jaxsr.runtime.callable_module import make_callable
from jaxsr.runtime.cli import run_command, run_program
from jaxsr.runtime.exit_status import ExitStatus
from jaxsr.training.train_call import train

make_callable(__name__, train)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(_train, arguments)


def _train(arguments: list[str]) -> int | None:
    from jaxsr.training.cli_options import parse_command_line

    name, task, config = parse_command_line(arguments)
    if config.aot is not None:
        from jaxsr.training.ahead_steps import run

        return run(name, task, config)
    from jaxsr.training.start import start

    finished = start(name, task, config).finished
    return None if finished or os.environ.get("JAXSR_SAY_STOPPED") != "1" else ExitStatus.STOPPED


if __name__ == "__main__":
    run_program(main, "train")

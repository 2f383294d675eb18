"""Checks a torch model: `jaxsr.check(module, *inputs)`, `python -m jaxsr.check --model MODEL`.

It tells whether the model converts, whether it computes the same forward and backward, and its
cost. `jaxsr.comparison` does the work.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from jaxsr.errors import InputError
from jaxsr.runtime.callable_module import make_callable
from jaxsr.runtime.cli import parse_options, run_command, run_program


def check(*args: Any, **kwargs: Any) -> Any:
    """Calls `jaxsr.comparison.check_module.check`, which loads torch and JAX."""
    return import_module("jaxsr.comparison.check_module").check(*args, **kwargs)


make_callable(__name__, check)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(_check, arguments)


def _check(arguments: list[str]) -> int:
    from jaxsr.comparison.check_options import CheckConfig

    if arguments and not arguments[0].startswith("-"):
        raise InputError(
            f"check takes its model as an option, as all commands do: --model {arguments[0]}"
        )
    config = parse_options(
        CheckConfig,
        arguments,
        prog="python -m jaxsr.check",
        replaced={
            "--class": "--model package.module:Class --weights FILE",
            "--args": "--model-options JSON",
        },
    )
    if config.aot is not None:
        from jaxsr.comparison.ahead_check import run
    else:
        from jaxsr.comparison.check_command import run
    return run(config)


if __name__ == "__main__":
    run_program(main, "check")

"""`python -m jaxsr.compare WHAT [OPTIONS]`: how much results differ, and where they begin to.

`ops` runs a kernel of every library on the same images and compares the results in pairs. `trace`
records a run of a model operation by operation; `traces A B`, or just `A B`, compares two such
records; `engines` runs two engines side by side and finds the first wrong operation.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from jaxsr.errors import InputError
from jaxsr.runtime.cli import run_command, run_program

COMMANDS = {
    "ops": ("commands:ops", "compare kernels of several libraries: precision and time"),
    "trace": ("commands:trace", "record a run of a model, operation by operation"),
    "traces": ("commands:traces", "compare two recorded runs: the first operation that differs"),
    "engines": ("commands:engines", "run a model on two engines: the first wrong operation"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(_compare, arguments)


def _compare(arguments: list[str]) -> int | None:
    if len(arguments) >= 2 and all(Path(word).is_dir() for word in arguments[:2]):
        arguments = ["traces", *arguments]
    name, *rest = arguments or ["--help"]
    if name in ("trace", "engines") and rest and not rest[0].startswith("-"):
        raise InputError(
            f"compare takes its model as an option, as all commands do: {name} --model {rest[0]}"
        )
    if name not in COMMANDS and Path(name).is_dir():
        missing = [word for word in rest[:1] if not Path(word).is_dir()]
        what = f"no folder {missing[0]}" if missing else f"{name} is one folder"
        raise InputError(f"{what}; give the folders of two traces, or {', '.join(COMMANDS)}")
    if name in ("-h", "--help"):
        print("usage: python -m jaxsr.compare WHAT [OPTIONS]\n")
        print("\n".join(f"  {what:<10}{meaning}" for what, (_, meaning) in COMMANDS.items()))
        return None
    if name not in COMMANDS:
        raise InputError(
            f"unknown comparison {name!r}; choose one of {', '.join(COMMANDS)}, or give the "
            "folders of two traces"
        )
    module, function = COMMANDS[name][0].split(":")
    return getattr(import_module(f"jaxsr.comparison.{module}"), function)(rest)


if __name__ == "__main__":
    run_program(main, "compare")

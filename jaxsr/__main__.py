"""`jaxsr COMMAND …`, the same as `python -m jaxsr.COMMAND …`."""

import sys
from importlib import import_module

from jaxsr.models.families import FAMILIES
from jaxsr.runtime.cli import no_command, run_command, run_program, version
from jaxsr.runtime.exit_status import ExitStatus

COMMANDS = {
    "train": "train a network",
    "restore": "enlarge or restore images and videos",
    "detect": "find small infrared targets",
    "evaluate": "test a detector on a data set's split",
    "generate": "generate text",
    "check": "check that a torch model computes the same in JAX",
    "export": "write a model as a file that runs without torch: StableHLO, ONNX",
    "compare": "compare what libraries and platforms compute",
    "doctor": "check this machine",
}


def main() -> int:
    """Runs the command named first; returns its exit status."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        return import_module(f"jaxsr.{name}").main(sys.argv[2:])
    return run_command(lambda _: _without_command(name), [])


def _without_command(name: str) -> int:
    """Answers command lines that name no command; returns the exit status."""
    lines = [f"  {command:<10}{meaning}" for command, meaning in COMMANDS.items()]
    families = f"model families: {', '.join(FAMILIES)}; and torch modules of your own"
    ends = "jaxsr COMMAND --help lists options; every command has --version and --quiet"
    completion = 'eval "$(jaxsr --completion)" completes words in bash and zsh'
    text = ["usage: jaxsr COMMAND [OPTIONS]", "", *lines, "", families, ends, completion]
    if sys.argv[1:] == ["--completion"]:
        from jaxsr.runtime.completion import completion_script
        from jaxsr.training.find_task import TASKS, find_options

        print(completion_script(COMMANDS, {t: find_options(t).Config for t in TASKS}), end="")
        return ExitStatus.OK
    if name in ("--version", "-h", "--help", "help"):
        print(f"jaxsr {version()}" if name == "--version" else "\n".join(text))
        return ExitStatus.OK
    print(f"jaxsr: {no_command(sys.argv[1:], COMMANDS)}", file=sys.stderr)
    return ExitStatus.WRONG_INPUT


def program() -> None:
    """The installed command `jaxsr`."""
    run_program(main, "".join(sys.argv[1:2]))


if __name__ == "__main__":
    program()

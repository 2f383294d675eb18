"""`jaxsr COMMAND …`, the same as `python -m jaxsr.COMMAND …`."""

import sys
from importlib import import_module

from jaxsr.errors import did_you_mean, printable
from jaxsr.models.families import FAMILIES
from jaxsr.runtime.cli import run_program, version
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
    lines = [f"  {command:<10}{meaning}" for command, meaning in COMMANDS.items()]
    families = f"model families: {', '.join(FAMILIES)}; and torch modules of your own"
    usage = ["usage: jaxsr COMMAND [OPTIONS]", "", *lines, "", families]
    ends = (
        "jaxsr COMMAND --help lists options; every command has --version and --quiet",
        'eval "$(jaxsr --completion)" completes words in bash and zsh',
    )
    text = "\n".join([*usage, *ends])
    if name == "--completion":
        if words := " ".join(sys.argv[2:]):
            text = f"--completion takes no value, got {words!r}; one script serves bash and zsh"
            print(f"jaxsr: {text}", file=sys.stderr)
            return ExitStatus.WRONG_INPUT
        from jaxsr.runtime.completion import completion_script
        from jaxsr.training.find_task import TASKS, find_options

        print(completion_script(COMMANDS, {t: find_options(t).Config for t in TASKS}), end="")
        return ExitStatus.OK
    if name == "--version":
        print(f"jaxsr {version()}")
        return ExitStatus.OK
    if name in ("-h", "--help", "help"):
        print(text)
        return ExitStatus.OK
    print(f"jaxsr: {_refusal(name)}", file=sys.stderr)
    return ExitStatus.WRONG_INPUT


def _refusal(word: str) -> str:
    """Why the first word is not a command, and what is."""
    if word == "--quiet":
        return "--quiet comes after the command: jaxsr train --quiet"
    if word.startswith("-"):
        near = did_you_mean(word, ("--help", "--version", "--completion"))
        return f"unknown option {word}{near}; options of a command come after it; see jaxsr --help"
    near = did_you_mean(word, COMMANDS)
    return f"no command {printable(word, 80)!r}{near}; there are {', '.join(COMMANDS)}"


def program() -> None:
    """The installed command `jaxsr`."""
    run_program(main, "".join(sys.argv[1:2]))


if __name__ == "__main__":
    program()

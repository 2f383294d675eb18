"""Common behaviour of all commands: options from the command line, errors as one line."""

import atexit
import contextlib
import dataclasses
import gc
import inspect
import io
import itertools
import logging
import os
import re
import shutil
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from jaxsr.errors import InputError, UserError, did_you_mean, printable
from jaxsr.interop.install import install_extra
from jaxsr.interop.lost_process import LostProcessError, lost_process_error
from jaxsr.interop.out_of_memory import out_of_memory_error
from jaxsr.runtime import activity
from jaxsr.runtime.allocator import keep_freed_memory
from jaxsr.runtime.environment import check_environment, variable_error
from jaxsr.runtime.exit_status import ExitStatus
from jaxsr.runtime.help_page import help_view
from jaxsr.runtime.interrupts import end_on_signals, ignore_signals

_EVERYWHERE = "--quiet hides progress and --version prints the version, in every command."
_SMALLER = "use smaller inputs, fewer at once, or --dtype bfloat16 where the command has it"


def run_program(main: Callable[[], int], command: str) -> NoReturn:
    """Runs `main` as the process's own program: sets up allocator and signal handlers first.

    Args:
      main: reads `sys.argv`; returns the exit status.
      command: name of the command that it runs.
    """
    _open_closed_streams()
    try:
        check_environment()
    except InputError as error:
        print(f"jaxsr: {_one_line(error)}", file=sys.stderr)
        sys.exit(ExitStatus.WRONG_INPUT)
    if not {"-h", "--help", "--version"} & {*sys.argv[1:]}:  # answered at once
        keep_freed_memory(command)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Printable())
    warnings.filterwarnings("ignore", module="PIL")  # about large images, whose size jaxsr checks
    # itself
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be UTF-8
    try:
        end_on_signals()  # a warning before `run_command` is also printed
        activity.start_status(command)
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        status = ExitStatus.CLOSED_PIPE
    except KeyboardInterrupt as interrupt:
        status = _say_interrupt(interrupt)
    except Exception:
        traceback.print_exc()
        status = ExitStatus.FAILED
    activity.finish()
    ignore_signals()
    ended_alone = status not in (ExitStatus.OK, ExitStatus.STOPPED) and _ends_alone()
    if status == ExitStatus.INTERRUPTED or ended_alone:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


class _Printable(logging.Formatter):
    """Warnings with file names and file contents: one line each, without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _open_closed_streams() -> None:
    """Opens standard streams that the caller closed, so that files don't take descriptors 0–2."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        descriptor = os.dup(descriptor)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Messages(2, "w", closefd=False)),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )


class _Messages(io.FileIO):
    """Standard error, on a full disk perhaps: what is said is lost, and the work is not."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise
        except OSError:
            return memoryview(data).nbytes


def _ends_alone() -> bool:
    """Whether Python's exit would wait minutes for threads of libraries.

    The other processes of a job do not know that this one failed, or one has left: JAX would wait
    for them at exit, and they for this process's part of the step. Or a save failed.
    """
    agreement = sys.modules.get("jaxsr.interop.agreement")
    checkpoint = sys.modules.get("jaxsr.interop.checkpoint")
    return (agreement is not None and agreement.ends_alone()) or (
        checkpoint is not None and checkpoint.leaves_threads()
    )


def run_command(
    command: Callable[[list[str]], int | None], arguments: Sequence[str] | None = None
) -> int:
    """Runs a command; user errors become one line on stderr and exit status 2.

    User errors are `UserError`, a device out of memory, and errors of the operating system: disk
    full, permission denied, a name too long. A job that lost a process is one line and exit status
    1. A closed pipe, as of `| head`, ends the command quietly. Any other exception is a fault of
    jaxsr and keeps its traceback. `JAXSR_TRACEBACK=1` shows every traceback.

    Args:
      command: does the work; returns the exit status, or None for 0.
      arguments: words of the command line. Default: those of the process.
    """
    try:
        with _few_collections():
            words = list(sys.argv[1:] if arguments is None else arguments)
            if "--version" in words:
                print(f"jaxsr {version()}")
                return ExitStatus.OK
            if "--quiet" in words:
                words.remove("--quiet")
                activity.be_quiet()
            try:
                status = command(words)
            except SystemExit as stop:  # --help
                if isinstance(stop.code, str):
                    raise
                _check_own_exit(stop)
                status = stop.code
            sys.stdout.flush()
            return status or ExitStatus.OK
    except BrokenPipeError:
        _discard_output()
        return ExitStatus.CLOSED_PIPE
    except KeyboardInterrupt as interrupt:
        return _say_interrupt(interrupt)
    except Exception as error:
        shown = out_of_memory_error(error, advice=_SMALLER) or lost_process_error(error) or error
        if not isinstance(shown, UserError):
            shown = variable_error(error) or shown
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("jaxsr"):
            shown = InputError(f"{error.name} is not installed; {install_extra(None)}")
        of_system = isinstance(shown, OSError) and shown.errno is not None
        if not isinstance(shown, UserError) and not of_system:
            raise  # called from Python code
        if os.environ.get("JAXSR_TRACEBACK"):
            traceback.print_exc()
        print(f"jaxsr: {_one_line(shown)}", file=sys.stderr)
        if of_system:
            try:
                sys.stdout.flush()
            except OSError:  # it is the error; Python would try once more at its end
                _discard_output()
        lost = isinstance(shown, LostProcessError)
        return ExitStatus.FAILED if lost else ExitStatus.WRONG_INPUT


def _check_own_exit(stop: SystemExit) -> None:
    """Refuses an exit() in code that a command calls: the command would end as if complete."""
    from jaxsr.models.user_files import place_of

    files = [Path(frame.filename) for frame in traceback.extract_tb(stop.__traceback__)]
    *_, last = (file for file in files if "_sitebuiltins" not in file.name)
    is_own = last.is_relative_to(Path(__file__).parents[1])
    if not (is_own or last.name == "argparse.py" or "tyro" in last.parts):
        raise InputError(
            f"the code that the command runs ends the program, with status {stop.code} "
            f"({place_of(stop)}); raise an error there instead"
        ) from stop


def version() -> str:
    """Version of jaxsr."""
    import jaxsr

    return jaxsr.__version__


def no_command(words: Sequence[str], commands: Iterable[str]) -> str:
    """Says why the first word is not a command of `jaxsr`, and lists the commands."""
    word = words[0]
    if word == "--quiet":
        return "--quiet comes after the command: jaxsr train --quiet"
    if word == "--completion":
        return f"--completion takes no value, got {words[1]!r}; one script serves bash and zsh"
    if word.startswith("-"):
        near = did_you_mean(word, ("--help", "--version", "--completion"))
        return f"unknown option {word}{near}; options of a command come after it; see jaxsr --help"
    near = did_you_mean(word, commands)
    return f"no command {printable(word, 80)!r}{near}; there are {', '.join(commands)}"


def _say_interrupt(interrupt: KeyboardInterrupt) -> ExitStatus:
    vars(interrupt)["handled"] = True
    print(f"jaxsr: {str(interrupt) or 'interrupted'}", file=sys.stderr)
    return ExitStatus.INTERRUPTED


def _discard_output() -> None:
    """Discards the output: Python would flush stdout at exit, and fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Raises the thresholds of garbage collection, and skips the collection at exit.

    torch and JAX make a million objects that stay. Collections that go through all of them take one
    of the five seconds until the first result.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def parse_options(
    kind: Any,
    arguments: Sequence[str],
    *,
    prog: str,
    description: str | None = None,
    replaced: Mapping[str, str] | None = None,
    elsewhere: Callable[[str], str] | None = None,
    first: type | None = None,
    **options: Any,
) -> Any:
    """Runs `tyro.cli`; a rejected option is an `InputError` of one line instead of a drawn box.

    Args:
      kind: the dataclass or function whose fields are the options.
      arguments: words of the command line.
      prog: name of the command in its help.
      description: first paragraph of the help. Default: the docstring of `kind`.
      replaced: options of earlier releases → their replacements.
      elsewhere: ends the error about an option that only other commands have; empty without one.
      first: a dataclass of options that were read before, for the help alone.
      **options: further arguments of `tyro.cli`, `default` for example.

    Raises:
      InputError: an option is unknown or its value wrong, in the words of the check.
    """
    import tyro

    _check_not_empty(kind, arguments)
    _check_listed_once(kind, arguments)
    if description is None:
        description = inspect.cleandoc(kind.__doc__ or "")
    options["prog"] = prog
    if {"-h", "--help"} & {*arguments}:
        width = shutil.get_terminal_size().columns
        for paragraph in (*description.split("\n\n"), _EVERYWHERE):
            print(
                textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False),
                end="\n\n",
            )
        view = help_view(kind, options.pop("default", None), first=first)
        view.__doc__ = ""  # printed above, in the terminal's width
        tyro.cli(view, args=["--help"], config=(tyro.conf.DisallowNone,), **options)
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(kind, args=list(arguments), **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise  # --help
        for option, successor in (replaced or {}).items():
            if any(word.partition("=")[0] == option for word in arguments):
                raise InputError(f"{option} is now {successor}; see {prog} --help") from None
        colourless = re.sub(r"\x1b\[[\d;]*m", "", box.getvalue())  # tyro colours for a terminal
        error = _in_our_words(colourless, arguments)
        if match := re.match(r"unknown option (\S+)", error):
            if belongs := elsewhere(match[1]) if elsewhere else "":
                error = match[0] + belongs
            else:
                names = [f"--{field.name.replace('_', '-')}" for field in _fields(kind, first)]
                error += did_you_mean(match[1], [*names, "--help", "--quiet", "--version"])
        raise InputError(f"{error}; see {prog} --help") from None


def named_options(arguments: Sequence[str]) -> frozenset[str]:
    """Returns the names of the options that a command line gives, as fields are named."""
    words = (word.partition("=")[0] for word in arguments if word.startswith("--"))
    return frozenset(word.removeprefix("--").replace("-", "_") for word in words)


def _fields(*kinds: Any) -> Iterator[dataclasses.Field[Any]]:
    """Returns the fields of the dataclasses among `kinds`."""
    for kind in kinds:
        if dataclasses.is_dataclass(kind):
            yield from dataclasses.fields(kind)


def _check_not_empty(kind: Any, arguments: Sequence[str]) -> None:
    """Refuses an empty text for a path or model, as from a variable that is not set.

    As a path it would be the current folder.

    Raises:
      InputError: an option has an empty text.
    """
    types = get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
    for word, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=None):
        option, equals, value = str(word).partition("=")
        declared = types.get(option.removeprefix("--").replace("-", "_"))
        is_path = declared is Path or Path in get_args(declared) or option == "--model"
        if option.startswith("--") and is_path and (value if equals else following) == "":
            raise InputError(f"{option} got an empty text; give a name, or leave {option} out")


def _check_listed_once(kind: Any, arguments: Sequence[str]) -> None:
    """Refuses a list in parts, `--logger a --logger b`, of which the last alone would count.

    Raises:
      InputError: an option of several values comes twice.
    """
    types = get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
    names = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    for option in dict.fromkeys(names):
        declared = types.get(option.removeprefix("--").replace("-", "_"))
        if names.count(option) > 1 and get_args(declared)[-1:] == (...,):
            raise InputError(f"{option} is given twice; write it once, with all its values")


def _unboxed(text: str) -> str:
    """Extracts the sentences of a message that is drawn as a box with a title and rules."""
    # Keeps "-", which may begin the name of an option, but drops lines that consist of it.
    lines = [line.strip(" │╭╮╰╯─") for line in text.splitlines()]
    lines = [line for line in lines if line.strip("-") and "For full helptext" not in line]
    # The first line is the box's title; the caller adds where the help is.
    lines = [line for line in lines[1:] if not line.endswith("--help")] or lines
    return re.sub(r"^Error parsing [\w.]+: ", "", " ".join(lines))


_KINDS = {"FLOAT": "a number", "INT": "a whole number", "FLOAT FLOAT": "two numbers"}
_KINDS |= {"INT INT": "two whole numbers", "STR": "text", "PATH": "a path"}


def _in_our_words(text: str, arguments: Sequence[str]) -> str:
    """Rewords an error of tyro without its types and help texts."""
    text = _unboxed(text)
    if match := re.match(r"Error parsing (--[\w.-]+): .*Argument helptext: \S+ (.*)", text):
        option, rest = match.groups()
        kind = re.match(r"(?:\{None\}\|)?[\[{]?((?:(?:FLOAT|INT|STR|PATH)\b ?)*)", rest)
        name = kind[1].strip() if kind else ""
        names = [word.partition("=")[0].replace("_", "-") for word in arguments]
        start = names.index(option)
        equals, value = arguments[start].partition("=")[1:]
        following = itertools.takewhile(
            lambda word: not word.startswith("--"), arguments[start + 1 :]
        )
        value = value if equals else " ".join(following)
        many = "numbers" if "..." in rest.partition(")")[0] else _KINDS.get(name, name)
        return f"{option} must be {many}, got {value!r}"
    if match := re.match(
        r"invalid choice (.*) for argument '(.*)'\. Expected one of \((.*)\)", text
    ):
        value, option, choices = match.groups()
        names = [n for n in choices.replace("'", "").strip(",").split(", ") if n != "None"]
        several = "; separate several by spaces" if "," in value else ""
        return f"{option} must be one of {', '.join(names)}, got {value}{several}"
    if match := re.match(r"Missing value for argument '(.*?)'", text):
        return f"{match[1]} needs a value" if match[1].startswith("-") else f"too few {match[1]}"
    words = r"(--\S+ )?(\S+(?: [A-Z]{2,}\b)*)"
    if match := re.match(rf"Missing from .*?: {words} (.*?)\.? \(required\)", text):
        return f"{(match[1] or match[2]).strip()} is missing ({match[3]})"
    if match := re.match(r"Unrecognized options: (\S+)", text):
        word = match[1].strip(",")
        if word.startswith("-"):
            return f"unknown option {word.partition('=')[0]}"
        return f"unexpected word {word}{_one_too_many(word, arguments)}"
    return text


def _one_too_many(word: str, arguments: Sequence[str]) -> str:
    """The option in front of an unexpected word, which has got its only value already."""
    before = arguments[: arguments.index(word)] if word in arguments else []
    if len(before) < 2 or before[-1].startswith("--") or not before[-2].startswith("--"):
        return ""
    return f" after {' '.join(before[-2:])}, which takes one word"


def _one_line(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror and not isinstance(error, UserError):
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return printable(text) or type(error).__name__

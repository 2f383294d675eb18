"""Which errors become one line, and the exit status of each."""

import errno
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import jax
import pytest
from PIL import Image

from jaxsr.__main__ import main as front_door
from jaxsr.errors import InputError, MissingFileError
from jaxsr.runtime.cli import parse_options, run_command
from jaxsr.runtime.exit_status import ExitStatus


def fail(error):
    def command(arguments):
        raise error

    return run_command(command, [])


@pytest.mark.parametrize("status", [None, 0, 1])
def test_a_command_returns_its_status(status):
    assert run_command(lambda arguments: status, []) == (status or 0)


@dataclass(frozen=True)
class Options:
    """Options of a command."""

    out: Path
    """Folder for the results."""
    size: int = 3
    """Rows."""
    names: tuple[str, ...] = ()
    """Names."""


def test_a_list_in_parts_is_refused():
    words = ["--out", "x", "--size", "1", "--size", "2", "--names", "a", "b"]
    options = parse_options(Options, words, prog="tool")
    assert (options.size, options.names) == (2, ("a", "b"))
    with pytest.raises(InputError, match="--names is given twice; write it once, with all its val"):
        parse_options(Options, [*words, "--names=c"], prog="tool")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--out is missing (Folder for the results); see"),
        (["--out"], "--out needs a value; see"),
        (["--out", "x", "--size", "y"], "--size must be a whole number, got 'y'; see"),
        (["--out", "x", "y"], "unexpected word y after --out x, which takes one word; see"),
        (["--out", "x", "--szie", "1"], "unknown option --szie (did you mean --size?); see"),
    ],
)
def test_what_the_parser_rejects_names_the_help_once(words, message):
    with pytest.raises(InputError) as caught:
        parse_options(Options, words, prog="python -m tool")
    text = str(caught.value)
    assert text.startswith(message)
    assert text.endswith("; see python -m tool --help") and text.count("--help") == 1


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        (
            "jaxsr.detection.config:EvaluateConfig",
            [],
            "DATA is missing (Folder of the data set, such",
        ),
        ("jaxsr.generation.config:GenerateConfig", [], "--model is missing (Hugging Face folder"),
        ("jaxsr.comparison.commands:TracesOptions", [], "PATH PATH is missing (Folders of the two"),
        ("jaxsr.comparison.commands:TracesOptions", ["a"], "too few folders; see tool"),
    ],
)
def test_a_missing_argument_comes_with_an_example(kind, words, message):
    module, name = kind.split(":")
    with pytest.raises(InputError) as caught:
        parse_options(getattr(import_module(module), name), words, prog="tool")
    assert str(caught.value).startswith(message)
    assert ("such as" in str(caught.value)) == (not words)


def test_the_words_of_the_command_line_arrive(monkeypatch):
    words = []
    run_command(words.extend, ["a", "b"])
    monkeypatch.setattr(sys, "argv", ["program", "c"])
    run_command(words.extend)
    assert words == ["a", "b", "c"]


@pytest.mark.parametrize("error", [InputError("width is -1"), MissingFileError("no file\nx")])
def test_what_a_user_can_correct_is_one_line(error, capsys):
    assert fail(error) == ExitStatus.WRONG_INPUT
    assert capsys.readouterr().err == f"jaxsr: {' '.join(str(error).split())}\n"


def test_a_device_out_of_memory_is_one_line(capsys):
    text = "RESOURCE_EXHAUSTED: Attempting to allocate 8.00G. There are 2.00G free."
    assert fail(jax.errors.JaxRuntimeError(text)) == ExitStatus.WRONG_INPUT
    assert capsys.readouterr().err == (
        "jaxsr: out of memory: 8.00 GiB are asked for at once, 2.00 GiB are free; use smaller "
        "inputs, fewer at once, or --dtype bfloat16 where the command has it\n"
    )


@pytest.mark.parametrize(
    "number",
    [
        errno.ENOSPC,
        errno.EACCES,
        errno.EROFS,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.EIO,
        errno.EDQUOT,
    ],
)
def test_an_error_of_the_operating_system_is_one_line(number, capsys):
    assert fail(OSError(number, os.strerror(number), "some/file")) == ExitStatus.WRONG_INPUT
    assert capsys.readouterr().err == f"jaxsr: some/file: {os.strerror(number)}\n"


@pytest.mark.parametrize(
    "error", [ValueError("x"), TypeError("x"), KeyError("x"), RuntimeError("x"), OSError("x")]
)
def test_a_fault_of_jaxsr_is_raised(error):
    with pytest.raises(type(error)):
        fail(error)


def test_a_fault_of_jaxsr_prints_its_traceback_and_exits_with_1():
    code = (
        "from jaxsr.runtime.cli import run_command\n"
        "def command(arguments):\n    raise KeyError('a')\n"
        "raise SystemExit(run_command(command, []))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == ExitStatus.FAILED
    assert "Traceback" in done.stderr and "KeyError: 'a'" in done.stderr


@pytest.mark.sample(2)
@pytest.mark.parametrize("words", [["restore", "--help"], ["help"], ["compare"]])
def test_help_into_a_closed_pipe(words):
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxsr", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == ExitStatus.CLOSED_PIPE
    assert error == b""


def test_a_closed_pipe_ends_quietly():
    code = (
        "from jaxsr.runtime.cli import run_command\n"
        "def command(arguments):\n    print('x' * 1_000_000)\n"
        "raise SystemExit(run_command(command, []))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == ExitStatus.CLOSED_PIPE
    assert error == ""


def test_an_interrupted_command(capsys):
    assert fail(KeyboardInterrupt()) == ExitStatus.INTERRUPTED
    assert capsys.readouterr().err == "jaxsr: interrupted\n"


def test_the_traceback_on_demand(capsys, monkeypatch):
    monkeypatch.setenv("JAXSR_TRACEBACK", "1")
    assert fail(InputError("width is -1")) == ExitStatus.WRONG_INPUT
    assert "Traceback" in capsys.readouterr().err


def test_the_table_in_the_docs_has_every_status():
    from pathlib import Path

    table = (Path(__file__).resolve().parents[2] / "docs" / "exit-status.md").read_text()
    for status in ExitStatus:
        assert f"| {status.value} |" in table


def test_a_large_picture_within_the_limit_raises_no_warning(tmp_path):
    Image.new("1", (10_000, 9_500)).save(tmp_path / "large.png")  # Pillow warns from 89 MP on
    code = (
        "from pathlib import Path\n"
        "from jaxsr.data.decode import picture_size\n"
        "from jaxsr.runtime.cli import run_command, run_program\n"
        "path = Path('large.png')\n"
        "run_program(lambda: run_command(lambda _: print(picture_size(path)), []), 'train')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(9500, 10000)\n", "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams(closed, tmp_path):
    code = (
        "from jaxsr.runtime.cli import run_command, run_program\n"
        "def command(arguments):\n"
        "    with open('file', 'w') as file:\n"
        "        print('out')\n"
        "        print(file.fileno() > 2, file=file)\n"
        "        raise OSError(28, 'full')\n"
        "run_program(lambda: run_command(command, []), 'train')\n"
    )
    (tmp_path / "program.py").write_text(code)
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} program.py {closed}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == ExitStatus.WRONG_INPUT
    assert done.stdout == ("" if " >&-" in f" {closed}" else "out\n")
    assert done.stderr == ("" if "2>&-" in closed else "jaxsr: full\n")
    assert (tmp_path / "file").read_text() == "True\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "no command 'trian' (did you mean train?); there are train, restore"),
        (["--quiet"], "--quiet comes after the command: jaxsr train --quiet"),
        (["--verison"], "unknown option --verison (did you mean --version?)"),
        (["--completion", "fish"], "--completion takes no value, got 'fish'"),
        (["train", "mshnt"], "no model family 'mshnt' to train (did you mean mshnet?)"),
        (["train", "--network", "a:B"], "it belongs to train super-resolution and train detection"),
        (["train", "span", "--loss", "l1"], "--loss; it belongs to train super-resolution and"),
    ],
)
def test_what_is_mistyped_names_the_nearest(words, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["jaxsr", *words])
    assert front_door() == ExitStatus.WRONG_INPUT
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("word", ["--help", "--version", "--completion"])
def test_a_full_disk_is_one_line_without_a_command(word, unbuffered):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "jaxsr", word],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (2, b"jaxsr: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize(("words", "status"), [(["nonsense"], 2), (["--version"], 0)])
def test_messages_that_find_no_room_do_not_change_the_status(words, status):
    code = (
        "import sys\nfrom jaxsr.__main__ import main\nfrom jaxsr.runtime.cli import run_program\n"
        "run_program(lambda: (print('a message', file=sys.stderr), main())[1], 'train')"
    )
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert done.returncode == status

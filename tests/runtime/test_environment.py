"""Surroundings in which libraries would end a command without a line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from jaxsr.runtime.environment import variable_error

ROOT = Path(__file__).parents[2]


def run(folder: Path, before: str = "", **variables: str) -> tuple[int, list[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    code = f"{before}; import sys; sys.argv = ['jaxsr', 'restore', 'a.png']\n"
    code += "from jaxsr.__main__ import main; from jaxsr.runtime.cli import run_program\n"
    code += "run_program(main, 'restore')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stderr.decode(errors="replace").strip().splitlines()


@pytest.mark.parametrize(
    ("variables", "before", "message"),
    [
        ({"XLA_FLAGS": "--xla_not_a_flag=3"}, "", "XLA_FLAGS has --xla_not_a_flag=3, which this"),
        ({"XLA_FLAGS": "--nonsense"}, "", "Unknown flag in XLA_FLAGS: --nonsense; correct"),
        ({"XLA_FLAGS": "--xla_cpu_enable_fast_math=garbage"}, "", "interpret value garbage for"),
        ({"JAXSR_ALLOCATOR": "zzz"}, "", "JAXSR_ALLOCATOR is zzz; system is its only value"),
        ({"JAX_DISABLE_JIT": "1"}, "", "JAX_DISABLE_JIT is set, but networks run as compiled"),
        ({"JAX_NUMPY_DTYPE_PROMOTION": "strict"}, "", "JAX_NUMPY_DTYPE_PROMOTION is strict, under"),
        ({"OPENCV_IO_MAX_IMAGE_PIXELS": "abc"}, "", "is 'abc', for which OpenCV aborts"),
        ({"TORCH_LOGS": "garbage"}, "", "TORCH_LOGS is 'garbage', which a library"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "", "encoded in ascii"),
        ({}, "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
         "the current folder cannot be read (No such file or directory)"),
    ],
)  # fmt: skip
def test_one_line_says_what_to_change(tmp_path, variables, before, message):
    status, lines = run(tmp_path, before or "pass", **variables)
    assert (status, len(lines)) == (2, 1), lines
    assert message in lines[0]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("JAX_TRACEBACK_FILTERING", "abc", "Invalid value"),
        ("JAX_ENABLE_X64", "", "invalid truth value"),
        ("JAX_TRACER_ERROR_NUM_TRACEBACK_FRAMES", "x2", "invalid literal for int"),
        ("JAX_DEFAULT_DEVICE", "-7", "jax.default_device must be"),
        ("SOURCE_DATE_EPOCH", "x2", "invalid literal for int"),
    ],
)
def test_a_value_that_jax_refuses_is_one_line(tmp_path, name, value, reason):
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    same = {"XLA_SOMETHING": value, "TORCH_SOMETHING": value}  # which nobody reads
    status, lines = run(tmp_path, "pass", **{name: value, "JAXSR_ACTIVITY": "0", **same})
    assert (status, len(lines)) == (2, 1), lines
    assert lines[0].startswith(f"jaxsr: {name} is {value!r}, which a library refuses ({reason}")


def test_an_error_that_no_variable_made_keeps_its_traceback(monkeypatch):
    monkeypatch.setenv("JAX_LOGGING_LEVEL", "7")
    assert variable_error(ValueError("invalid literal for int() with base 10: '7'")) is None
    named = variable_error(ValueError("Invalid value for JAX flag jax_logging_level"))
    assert "JAX_LOGGING_LEVEL is '7'" in str(named)
    assert variable_error(ValueError("JAX flag jax_logging_level_of_all")) is None


def test_flags_that_jaxlib_knows_pass(tmp_path):
    status, lines = run(tmp_path, "pass", XLA_FLAGS="--xla_dump_to=d --xla_cpu_enable_fast_math")
    assert status == 2 and "no images found" in lines[-1], lines


HOSTILE = "a\x1b[2J\x1b]0;title\x07\u202eb\x85c\r\nd\udcff"


def test_names_from_outside_reach_no_terminal_raw():
    from jaxsr.errors import InputError, first_line, first_of, one_line, printable, printable_text

    error = InputError(HOSTILE)
    for shown in (printable(HOSTILE), one_line(error), first_of([HOSTILE]), first_line(error)):
        assert shown.isprintable() and "\\x1b[2J" in shown
    assert printable(HOSTILE) == r"a\x1b[2J\x1b]0;title\x07\u202eb c d\udcff"
    assert printable("é 東 🙂\u00a0") == "é 東 🙂"
    assert printable("x" * 99, 9) == "x" * 8 + "…"
    assert printable_text("a\n\tb\x1b") == "a\n\tb\\x1b"


def test_a_file_whose_name_controls_the_terminal(tmp_path):
    name = os.fsdecode(b"evil\x1b[31m\nname\xff.png")
    (tmp_path / name).write_bytes(b"no image")
    ended = subprocess.run(
        [sys.executable, "-m", "jaxsr.restore", name, "--engine", "torch"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode != 0
    assert b"\x1b" not in ended.stdout + ended.stderr
    assert rb"evil\x1b[31m name" in ended.stdout + ended.stderr

"""Progress messages of a command: on a terminal, in a log, and with --quiet."""

import io
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from jaxsr.runtime import activity

ROOT = Path(__file__).resolve().parents[2]
SILENCED = """
import os, sys, time
from jaxsr.runtime import activity
from jaxsr.runtime.cli import run_command, run_program

def command(words):
    activity.set_status("compiling")
    time.sleep(0.8)
    terminal, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    time.sleep(1.5)
    os.dup2(terminal, 2)
    print("compiled", flush=True)
    return 0

activity._PATIENCE_S = 0.3
run_program(lambda: run_command(command, sys.argv[1:]), "gaze")
"""
BAR = """
import sys, time
from tqdm import tqdm
from jaxsr.runtime import activity
from jaxsr.runtime.cli import run_command, run_program

def command(words):
    bar = tqdm(total=2, bar_format="{n}/{total} {elapsed}", ncols=30)
    activity.redraw_bar(bar.refresh)
    time.sleep(2.5)
    bar.update(2)
    activity.redraw_bar(None)
    bar.close()
    return 0

activity._PATIENCE_S = 0.3
run_program(lambda: run_command(command, sys.argv[1:]), "gaze")
"""
SLOW = """
import sys, time
from jaxsr.runtime import activity
from jaxsr.runtime.cli import run_command, run_program

def command(words):
    activity.set_status("reading the stars")
    activity.set_done(7)
    time.sleep(0.8)
    print("one", end="", flush=True)
    time.sleep(0.8)
    print(" star", flush=True)
    time.sleep(0.8)
    activity.set_status(None)
    time.sleep(0.5)
    return 0

activity._PATIENCE_S = 0.3
run_program(lambda: run_command(command, sys.argv[1:]), "gaze")
"""
COMPILES = """
import sys, time
from jaxsr.runtime import activity
from jaxsr.runtime.cli import run_command, run_program

def command(words):
    import logging, jax, jax.numpy as jnp
    logging.basicConfig()  # as other libraries do: what JAX logs for debugging stays unseen
    jax.config.update("jax_platforms", "cpu")
    activity.set_status("starting")

    def slow_step(x):
        for k in range(150):
            x = jnp.sin(x) @ x + k
        return x

    f = jax.jit(slow_step)
    f(jnp.ones((8, 8)))
    activity.set_status(None)
    time.sleep(1)
    return 0

activity._PATIENCE_S = 0.05
run_program(lambda: run_command(command, sys.argv[1:]), "gaze")
"""


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("JAXSR_ACTIVITY", "XDG_CACHE_HOME")}
    return kept | {"PYTHONPATH": str(ROOT), "JAXSR_ALLOCATOR": "system", "TERM": "xterm"}


def run(code: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words]
    environ = environment() | variables
    return subprocess.run(
        command, capture_output=True, text=True, env=environ, check=True, cwd=ROOT
    )


def on_a_terminal(code: str) -> str:
    """Runs the code and returns the text that a terminal gets."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=slave, stderr=slave, env=environment(), cwd=ROOT
    )
    os.close(slave)
    received = b""
    ends = time.monotonic() + 60
    while time.monotonic() < ends and select.select([master], [], [], 30)[0]:
        try:
            received += os.read(master, 4096)
        except OSError:  # the terminal's other end is closed
            break
    process.wait()
    os.close(master)
    return received.decode()


def shown(received: str) -> str:
    """The text that stays on the screen."""
    lines = []
    for line in received.replace("\r\n", "\n").split("\n"):
        parts = re.split(r"\r", line)
        lines.append(parts[-1].replace("\x1b[K", ""))
    return "\n".join(lines).strip()


def test_a_wrong_option_is_one_line_on_a_terminal_too():
    """tyro colours its boxes there."""
    code = "from jaxsr.restore import main; raise SystemExit(main(['a.png', '--modle', 'clean']))"
    received = on_a_terminal(code)
    (line,) = received.split("\r\n")[:-1]
    assert line.startswith("jaxsr: unknown option --modle (did you mean --model?); see ")


def test_a_log_gets_a_line():
    done = run(SLOW)
    assert done.stdout == "one star\n"
    assert done.stderr == "reading the stars …\n"


def test_a_terminal_gets_a_sign_that_moves_and_vanishes():
    received = on_a_terminal(SLOW)
    frames = re.findall(r"\r(.) reading the stars, 7 done … \d s\x1b\[K", received)
    assert len(set(frames)) > 3
    assert shown(received) == "one star"


def test_a_sign_moves_while_messages_of_a_compiler_are_silenced():
    """`interop/plugin_start.py` turns file 2 elsewhere while libtpu compiles."""
    received = on_a_terminal(SILENCED)
    assert len(re.findall(r"\r. compiling … \d s", received)) > 12
    assert shown(received) == "compiled"


def test_the_clock_of_a_bar_runs_between_its_steps():
    received = on_a_terminal(BAR)
    assert {"0/2 00:00", "0/2 00:01", "0/2 00:02"} <= set(re.findall(r"\r(0/2 \S{5})", received))
    assert shown(received).startswith("2/2")


@pytest.mark.sample(1)
@pytest.mark.parametrize("cached", [True, False])
def test_what_is_compiled_is_said(tmp_path, cached):
    variables = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)} if cached else {}
    lines = run(COMPILES, **variables).stderr.splitlines()
    assert f"compiling slow_step{' (cached next time)' * cached} …" in lines
    assert not [line for line in lines if "Compiling" in line or "DEBUG" in line]


@pytest.mark.sample(1)
@pytest.mark.parametrize("code", [SLOW, COMPILES])
def test_quiet_says_nothing(code):
    assert run(code, "--quiet").stderr == ""


@pytest.mark.parametrize("words", [["--version"], ["restore", "--version"], ["train", "--version"]])
def test_versions(words):
    import jaxsr

    done = subprocess.run(
        [sys.executable, "-m", "jaxsr", *words],
        capture_output=True, text=True, env=environment(), check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == f"jaxsr {jaxsr.__version__}\n"


def test_help_names_commands_and_families():
    from jaxsr.models.families import FAMILIES

    done = subprocess.run(
        [sys.executable, "-m", "jaxsr", "--help"],
        capture_output=True, text=True, env=environment(), check=True, cwd=ROOT,
    )  # fmt: skip
    assert all(name in done.stdout for name in (*FAMILIES, "restore", "--quiet", "--version"))


class _Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal


def test_lines_on_a_terminal_break_between_words_and_keep_names_with_figures(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    line = "validation at step 20:  psnr_y 27.0883  ssim_y 0.7316"
    assert activity.fitted(line, _Stream(terminal=False)) == line
    assert activity.fitted(line, _Stream(terminal=True)).splitlines() == [
        "validation at step 20:",
        "  psnr_y 27.0883",
        "  ssim_y 0.7316",
    ]
    options = activity.wrapped(
        "options: preset quick  steps=20  batch=8; config.json lists all", 55
    )
    assert activity.fitted(options, _Stream(terminal=True)).splitlines() == [
        "options: preset quick",
        "  steps=20",
        "  batch=8; config.json lists all",
    ]
    sentence = "training on 9 photos, validating on 2 held out"
    assert activity.fitted(sentence, _Stream(terminal=True)).splitlines() == [
        "training on 9 photos,",
        "  validating on 2 held out",
    ]

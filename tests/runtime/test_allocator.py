"""Settings of glibc's allocator: when commands make them, and when they don't."""

import os
import subprocess
import sys

import pytest

from jaxsr.runtime.allocator import SWITCH, TUNABLES, with_tunables

SHOW = """
import os, sys
from jaxsr.runtime.allocator import keep_freed_memory
keep_freed_memory()
print(os.getpid(), os.environ.get("GLIBC_TUNABLES", ""), sys.argv[1:])
"""


def show(**environment):
    clean = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", SWITCH)}
    child = subprocess.Popen(
        [sys.executable, "-c", SHOW, "a b", "--c"],
        env=clean | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = child.communicate(timeout=60)
    pid, rest = out.strip().split(" ", 1)
    assert child.returncode == 0 and int(pid) == child.pid
    return rest


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_a_program_starts_again_with_its_arguments_and_the_settings():
    out = show()
    assert out.endswith("['a b', '--c']")
    assert all(f"{name}={value}" in out for name, value in TUNABLES.items())


def test_what_the_user_set_stays():
    users_tunables = "glibc.malloc.hugetlb=0:glibc.malloc.tcache_count=3"
    assert show(GLIBC_TUNABLES=users_tunables).startswith(
        users_tunables + ":glibc.malloc.mmap_threshold"
    )
    assert show(**{SWITCH: "system"}) == " ['a b', '--c']"
    complete = with_tunables({})
    assert with_tunables(complete) == complete
    for command in ("restore", "train"):
        assert "mmap_threshold=67108864:" in with_tunables({}, command=command)["GLIBC_TUNABLES"]


def test_importing_a_command_changes_nothing():
    code = "import os; import jaxsr.train, jaxsr.restore; print(os.environ.get('GLIBC_TUNABLES'))"
    clean = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "None"


SHOW_MODULE = (
    "import os\nfrom jaxsr.runtime.allocator import keep_freed_memory\nkeep_freed_memory()\n"
)
SHOW_END = "print('GLIBC_TUNABLES' in os.environ)\n"


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
@pytest.mark.parametrize(
    ("words", "typed", "restarts"),
    [
        (["-m", "shown"], "", True),
        (["-X", "dev", "-um", "shown", "-x"], "", True),
        (["jaxsr"], "", True),
        (["-"], SHOW_MODULE + SHOW_END, False),
        ([], SHOW_MODULE + SHOW_END, False),
        (["-m", "pdb", "-c", "continue", "-m", "shown"], "quit\n", False),
        (["-m", "cProfile", "-m", "shown"], "", False),
        (["-m", "trace", "--count", "-C", ".", "--module", "shown"], "", False),
        (["-im", "shown"], "", False),
        (["caller.py"], "", False),
    ],
    ids=[
        "module",
        "flags",
        "command",
        "stdin -",
        "stdin",
        "pdb",
        "profile",
        "trace",
        "-i",
        "runpy",
    ],
)
def test_debuggers_and_scripts_from_standard_input_are_left_alone(tmp_path, words, typed, restarts):
    (tmp_path / "shown.py").write_text(SHOW_MODULE + SHOW_END)
    (tmp_path / "jaxsr").write_text(SHOW_MODULE + SHOW_END)
    (tmp_path / "caller.py").write_text(
        "import runpy\nprint('once')\nrunpy.run_module('shown', run_name='__main__')\n"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", SWITCH)}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=clean | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"},
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert str(restarts) in done.stdout.split(), done.stdout + done.stderr
    assert done.stdout.count("once") <= 1


COMPILES = """
import jax, numpy as np
from jaxsr.runtime.setup import configure_jax

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

configure_jax(None)
arrays = [np.ones(12_500) for _ in range(2_000)]     # 200 MB
last = np.ones(12_500)                               # above them in the heap
del arrays
before = resident()
for seconds in (0.1, 5.0):
    jax.monitoring.record_event_duration_secs("/jax/core/compile/backend_compile_duration", seconds)
    print(before - resident() > 150e6)
"""


def test_memory_of_a_long_compilation_returns_to_the_system():
    done = subprocess.run(
        [sys.executable, "-c", COMPILES],
        env=with_tunables(dict(os.environ)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]

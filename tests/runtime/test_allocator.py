"""What commands tell glibc's allocator, and when they keep their hands off."""

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
    given = "glibc.malloc.hugetlb=0:glibc.malloc.tcache_count=3"
    assert show(GLIBC_TUNABLES=given).startswith(given + ":glibc.malloc.mmap_threshold")
    assert show(**{SWITCH: "system"}) == " ['a b', '--c']"
    complete = with_tunables({})
    assert with_tunables(complete) == complete
    assert "mmap_threshold=67108864:" in with_tunables({}, command="restore")["GLIBC_TUNABLES"]


def test_importing_a_command_changes_nothing():
    code = "import os; import jaxsr.train, jaxsr.restore; print(os.environ.get('GLIBC_TUNABLES'))"
    clean = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "None"

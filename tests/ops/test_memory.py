"""Page faults of a program that enlarges pictures, with and without the setting."""

import os
import subprocess
import sys
import textwrap

import pytest

from jaxsr.ops.memory import keep_freed_memory

PROGRAM = textwrap.dedent("""
    import resource, sys
    from jaxsr import ops
    if sys.argv[1] == "keep":
        assert ops.keep_freed_memory()
    import jax, numpy as np
    image = np.ones((2, 512, 512, 3), np.float32)
    enlarge = jax.jit(lambda x: ops.resize(x, 1024, method="bicubic"))
    for _ in range(4):
        enlarge(image).block_until_ready()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        enlarge(image).block_until_ready()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
""")


@pytest.mark.skipif(sys.platform != "linux", reason="other allocators have no such settings")
def test_fewer_pages_are_asked_for():
    def faults(setting: str) -> int:
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        environment.pop("GLIBC_TUNABLES", None)
        command = [sys.executable, "-c", PROGRAM, setting]
        return int(subprocess.check_output(command, env=environment, text=True))

    assert 1.5 * faults("keep") < faults("system")


def test_other_systems(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()

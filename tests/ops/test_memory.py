"""Page faults of a program that enlarges pictures."""

import os
import subprocess
import sys
import textwrap

import pytest

from jaxsr.ops.memory import keep_freed_memory

PROGRAM = textwrap.dedent("""
    import resource
    from jaxsr import ops
    assert ops.keep_freed_memory()
    import jax, numpy as np
    image = np.ones((2, 512, 512, 3), np.float32)
    enlarge = jax.jit(lambda x: ops.resize(x, 1024, method="bicubic"))
    for _ in range(60):  # threads have arenas of their own, which grow one after another
        enlarge(image).block_until_ready()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(60):
        enlarge(image).block_until_ready()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
""")


@pytest.mark.skipif(sys.platform != "linux", reason="other allocators have no such settings")
def test_results_are_made_in_memory_of_freed_ones():
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    environment.pop("GLIBC_TUNABLES", None)
    faults = int(subprocess.check_output([sys.executable, "-c", PROGRAM], env=environment))
    # Without the setting all pages may be new, or few: it depends on the order of what is freed.
    pages = 60 * 2 * 1024 * 1024 * 3 * 4 // os.sysconf("SC_PAGE_SIZE")
    assert faults < pages / 10


def test_other_systems(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()

"""Torch's kernels in whole processes: the compile cache, other platforms, reruns."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

from jaxsr.interop.aot.topology import load_topology
from jaxsr.interop.lowerings.convolution import convolution

OPTIONS = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

PROGRAM = textwrap.dedent("""
    import sys
    import jax, numpy as np
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    from pathlib import Path
    from jaxsr.interop.lowerings.convolution import convolution
    from jaxsr.interop.mesh import make_mesh, place, place_batch
    from jaxsr.runtime.setup import configure_jax

    events = []
    jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
    configure_jax(Path(sys.argv[1]), least_compile_s=0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3, 8, 8), np.float32)
    w = rng.standard_normal((5, 3, 3, 3), np.float32)
    padding = int(sys.argv[2])
    mesh = make_mesh(2)
    x = place_batch({"x": x}, mesh)["x"]

    @jax.jit
    def step(x, w):
        def loss(w):
            return (convolution(x, w, None, [1, 1], [padding] * 2, [1, 1], False, [0, 0], 1)
                    [..., 2:4, 2:4] ** 2).sum()
        return jax.grad(loss)(w)

    events.clear()
    value = np.asarray(step(x, w))
    print(sum(name.endswith("cache_hits") for name in events), value.tobytes().hex())
""")


def run(*arguments: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    return done.stdout.split()


def test_a_second_process_uses_the_kept_program_and_computes_the_same(tmp_path):
    first, second = run(tmp_path, 1), run(tmp_path, 1)
    assert first[0] == "0"
    assert second == ["1", first[1]]


@pytest.mark.slow
def test_a_program_of_other_options_is_another_program(tmp_path):
    assert run(tmp_path, 1)[1] != run(tmp_path, 2)[1]
    assert run(tmp_path, 2)[0] == "1"


def test_programs_for_a_tpu_have_no_such_calls():
    topology = load_topology("v5e:1x1")
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    shapes = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=device)
        for shape in ((2, 3, 8, 8), (5, 3, 3, 3))
    ]
    lowered = jax.jit(jax.grad(lambda x, w: convolution(x, w, *OPTIONS).sum(), (0, 1))).lower(
        *shapes
    )
    assert "jaxsr_convolution" not in lowered.as_text()

"""Python functions as custom calls: arrays without copies, errors of one line, Ctrl-C."""

import signal
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsr.xla_calls import calls as cpu_calls


@cpu_calls.kernel("test_twice")
def twice(inputs, outputs, attributes):
    assert not inputs[0].flags.owndata
    outputs[0][...] = inputs[0] * attributes["factor"][0]


@cpu_calls.kernel("test_failing")
def failing(inputs, outputs, attributes):
    if attributes["memory"]:
        raise MemoryError("12 GB\nfor an array")
    raise ValueError("no such thing\nand its details")


@cpu_calls.kernel("test_increased")
def increased(inputs, outputs, attributes):
    outputs[0][...] += 1


@cpu_calls.kernel("test_strides")
def strides(inputs, outputs, attributes):
    outputs[0][...] = np.array(inputs[0].strides, np.int32)


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "uint8", "uint16", "int8", "int32", "bool"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 5)], ids=str)
def test_arrays(dtype, shape):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 2, shape), dtype)
    out = jax.jit(lambda x: cpu_calls.call(twice, like(x), x, factor=[1]))(x)
    np.testing.assert_array_equal(out, x)


def test_channels_last_is_the_order_in_memory_alone():
    shape = jax.ShapeDtypeStruct((4,), jnp.int32)
    x = jnp.ones((2, 3, 5, 7), jnp.float32)
    for last, expected in ((False, [420, 140, 28, 4]), (True, [420, 4, 84, 12])):
        run = jax.jit(
            lambda x, last=last: cpu_calls.call(strides, shape, x, channels_last=[last, False])
        )
        np.testing.assert_array_equal(run(x), expected)


def test_in_place():
    @jax.jit
    def run(x):
        y = 2 * x
        out = cpu_calls.call(increased, like(y), y, in_place=True)
        return x, out, cpu_calls.call(increased, like(x), x, in_place=True)

    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(x, np.arange(6).reshape(2, 3))
    for got, want in zip(run(x), (x, 2 * x + 1, x + 1), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (
            [],
            r"INTERNAL.*test_failing of float32\[2, 3\]: ValueError: no such thing; use JAXSR_CPU",
        ),
        ([1], r"RESOURCE_EXHAUSTED.*test_failing of float32\[2, 3\]: MemoryError: 12 GB; use"),
    ],
)
def test_a_failing_kernel_is_an_error_of_one_line(memory, message):
    x = jnp.ones((2, 3), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message) as error:
        jax.block_until_ready(
            jax.jit(lambda x: cpu_calls.call(failing, like(x), x, memory=memory))(x)
        )
    assert len(str(error.value).splitlines()) == 1
    np.testing.assert_array_equal(
        jax.jit(lambda x: cpu_calls.call(twice, like(x), x, factor=[3]))(x), 3 * x
    )


def test_unknown_switch(monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "fast")
    with pytest.raises(
        ValueError, match="JAXSR_CPU_KERNELS='fast': must be 'native', 'torch' or 'xla'"
    ):
        cpu_calls.enabled()


def test_interrupt():
    program = textwrap.dedent("""
        import jax, jax.numpy as jnp, time
        from jaxsr.xla_calls import calls as cpu_calls

        @cpu_calls.kernel("test_slow")
        def slow(inputs, outputs, attributes):
            print("running", flush=True)
            for _ in range(100):
                time.sleep(0.01)

        jax.config.update("jax_platforms", "cpu")
        x = jnp.ones(3)
        run = jax.jit(lambda x: cpu_calls.call(slow, jax.ShapeDtypeStruct((3,), x.dtype), x))
        try:
            jax.block_until_ready(run(x))
            time.sleep(5)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert "interrupted" in output
    assert time.monotonic() - start < 5


def test_an_interrupt_while_xla_computes_skips_no_kernel():
    """Python raises it where the kernel's call begins, and ctypes drops what is raised there."""
    program = textwrap.dedent("""
        import os, signal, threading, time
        import jax, jax.numpy as jnp
        from jaxsr.xla_calls import calls as cpu_calls

        @cpu_calls.kernel("test_plus_one")
        def plus_one(inputs, outputs, attributes):
            outputs[0][...] = inputs[0] + 1

        @jax.jit
        def run(x):
            x = jax.lax.fori_loop(0, 100_000, lambda _, a: jnp.sin(a) * 1.0001, x)
            return x, cpu_calls.call(plus_one, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # in this thread
        x = jnp.full(1000, 0.5)
        jax.block_until_ready(run(x))
        interrupted = 0
        for number in range(5):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                before, after = run(x + number)
                assert (after == before + 1).all()
                time.sleep(1)
            except KeyboardInterrupt:
                interrupted += 1
        print(interrupted)
    """)
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (process.stdout, process.stderr) == ("5\n", "")

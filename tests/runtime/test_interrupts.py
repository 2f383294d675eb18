"""Signals end a program with status 130 and one line, wherever they meet it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from jaxsr.runtime.exit_status import ExitStatus

PROGRAM = """
import ctypes, os, signal, sys, time
from jaxsr.runtime import interrupts
from jaxsr.runtime.cli import run_command, run_program

interrupts._GRACE_S = 0.5

def command(arguments):
    try:
        print("ready", flush=True)
        {body}
    finally:
        print("closed", flush=True)

run_program(lambda: run_command(command, []), "train")
"""


ENVIRONMENT = {
    **os.environ,
    "JAXSR_ALLOCATOR": "system",
    # Python 3.12 and later warn of os.fork beside threads.
    "PYTHONWARNINGS": "ignore:This process (pid=:DeprecationWarning",
}


def run_program(
    body: str, *signals: int, until: str = "ready", hangup: signal.Handlers = signal.SIG_DFL
) -> tuple[int, str, str]:
    """(status, further output, stderr) of a program that gets the signals after a line."""
    before = signal.signal(signal.SIGHUP, hangup)  # also where the tests run under nohup
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(body=body)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdout
    while process.stdout.readline().strip() != until:
        assert process.poll() is None
    for number in signals:
        time.sleep(0.1)  # two of one kind at once count as one
        process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def test_a_signal_before_the_command_begins_is_said():
    program = """
import os, signal
from jaxsr.runtime import cli, interrupts

cli.end_on_signals = lambda: (interrupts.end_on_signals(), os.kill(os.getpid(), signal.SIGTERM))
cli.run_program(lambda: print("ran"), "train")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        ExitStatus.INTERRUPTED, "", "jaxsr: ended by SIGTERM\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGTERM, "jaxsr: ended by SIGTERM\n"),
        (signal.SIGHUP, "jaxsr: ended by SIGHUP\n"),
        (signal.SIGINT, "jaxsr: interrupted\n"),
    ],
)
def test_a_signal_closes_what_is_open(number, line):
    status, output, errors = run_program("time.sleep(60)", number)
    assert (status, output, errors) == (ExitStatus.INTERRUPTED, "closed\n", line)


@pytest.mark.parametrize(
    ("signals", "line"),
    [
        ([signal.SIGTERM], "jaxsr: ended by SIGTERM\n"),
        ([signal.SIGINT, signal.SIGINT], "jaxsr: interrupted\n"),
    ],
)
def test_native_code_does_not_keep_a_program_alive(signals, line):
    # Other threads receive the signals, so nothing wakes the main thread.
    body = (
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT}); "
        "[print('asleep', flush=True), ctypes.CDLL(None).sleep(60)]"
    )
    status, output, errors = run_program(body, *signals, until="asleep")
    assert (status, output, errors) == (ExitStatus.INTERRUPTED, "", line)


def test_a_signal_for_a_forked_worker_does_not_end_its_parent():
    body = (
        "worker = os.fork() or time.sleep(60); time.sleep(0.3); os.kill(worker, signal.SIGTERM); "
        "print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])); time.sleep(1.5)"
    )
    assert run_program(body) == (0, f"{-signal.SIGTERM}\nclosed\n", "")


def test_ignored_signals_stay_ignored():
    assert run_program("time.sleep(1)", signal.SIGHUP, hangup=signal.SIG_IGN) == (0, "closed\n", "")


def test_a_signal_behind_the_end_does_not_change_the_status():
    body = "import atexit; atexit.register(lambda: [print('exit', flush=True), time.sleep(1)])"
    assert run_program(body, signal.SIGTERM, until="exit") == (0, "", "")


KERNEL = """
        import jax, jax.numpy as jnp
        from jaxsr.xla_calls import calls as cpu_calls

        @cpu_calls.kernel("test_slow")
        def slow(inputs, outputs, attributes):
            print("inside", flush=True)
            time.sleep(0.5)

        jax.config.update("jax_platforms", "cpu")
        run = jax.jit(lambda x: cpu_calls.call(slow, jax.ShapeDtypeStruct((3,), x.dtype), x))
        jax.block_until_ready(run(jnp.ones(3)))
        time.sleep(5)
"""


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "jaxsr: interrupted\n"),
        pytest.param(signal.SIGTERM, "jaxsr: ended by SIGTERM\n", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, "jaxsr: ended by SIGHUP\n", marks=pytest.mark.slow),
    ],
)
def test_one_signal_during_a_kernel_closes_what_is_open(number, line):
    status, output, errors = run_program(KERNEL, number, until="inside")
    assert (status, output, errors) == (ExitStatus.INTERRUPTED, "closed\n", line)


BEFORE_A_KERNEL = """
        import jax, jax.numpy as jnp
        from jaxsr.xla_calls import calls as cpu_calls

        @cpu_calls.kernel("test_quick")
        def quick(inputs, outputs, attributes):
            outputs[0][...] = inputs[0]

        @jax.jit
        def run(x):
            x = jax.lax.fori_loop(0, 300_000, lambda _, a: jnp.sin(a) * 1.0001, x)
            return cpu_calls.call(quick, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # in this thread
        jax.block_until_ready(run(jnp.ones(1000)))
        print("inside", flush=True)
        run(jnp.ones(1000))
        time.sleep(5)
"""


def test_one_interrupt_before_a_kernel_does_not_count_as_two():
    status, output, errors = run_program(BEFORE_A_KERNEL, signal.SIGINT, until="inside")
    assert (status, output, errors) == (ExitStatus.INTERRUPTED, "closed\n", "jaxsr: interrupted\n")


DESTRUCTOR = """
        class Slow:
            def __del__(self):
                print("inside", flush=True)
                time.sleep(1)

        Slow()
        time.sleep(5)
"""


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "jaxsr: interrupted\n"),
        pytest.param(signal.SIGTERM, "jaxsr: ended by SIGTERM\n", marks=pytest.mark.slow),
        (signal.SIGHUP, "jaxsr: ended by SIGHUP\n"),
    ],
)
def test_a_signal_where_python_drops_exceptions_comes_later(number, line):
    status, output, errors = run_program(DESTRUCTOR, number, until="inside")
    assert (status, output, errors) == (ExitStatus.INTERRUPTED, "closed\n", line)


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "jaxsr: interrupted\n"),
        pytest.param(signal.SIGTERM, "jaxsr: ended by SIGTERM\n", marks=pytest.mark.slow),
    ],
)
def test_a_signal_that_a_library_catches_comes_again(number, line):
    body = """try:
            print("inside", flush=True)
            time.sleep(60)
        except:
            pass
        print("goes on", flush=True)
        time.sleep(60)"""
    status, output, errors = run_program(body, number, until="inside")
    assert (status, output, errors) == (ExitStatus.INTERRUPTED, "goes on\nclosed\n", line)


def test_a_debugger_that_catches_every_interrupt_keeps_the_program():
    body = """for _ in range(6):
            try:
                print("inside", flush=True)
                time.sleep(0.5)
            except KeyboardInterrupt:
                pass"""
    status, output, _ = run_program(body, signal.SIGINT, until="inside")
    assert status == ExitStatus.OK
    assert output.endswith("inside\nclosed\n")


LOADS = """from importlib.machinery import ExtensionFileLoader
        class Spec:
            origin = "/nothing"
            @property
            def name(self):  # Python code that a library of C++ calls while it is loaded
                if not vars(self):
                    print("inside", flush=True)
                    time.sleep(1)
                    self.loaded = True
                    print("loaded", flush=True)
                return "slow"
        try:
            ExtensionFileLoader("slow", "/nothing").create_module(Spec())
        except ImportError:
            pass
        time.sleep(60)"""


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "jaxsr: interrupted\n"),
        pytest.param(signal.SIGTERM, "jaxsr: ended by SIGTERM\n", marks=pytest.mark.slow),
    ],
)
def test_a_signal_waits_until_a_library_is_loaded(number, line):
    status, output, errors = run_program(LOADS, number, until="inside")
    assert (status, output, errors) == (ExitStatus.INTERRUPTED, "loaded\nclosed\n", line)


def test_a_signal_waits_until_modules_of_a_library_are_imported(tmp_path):
    """Code of C++ that torch's modules call imports others, and aborts where that raises."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "slow_library.py").write_text(
        'import time\nprint("inside", flush=True)\ntime.sleep(1)\nprint("loaded", flush=True)\n'
    )
    body = f"sys.path.append({str(library)!r}); import slow_library; time.sleep(60)"
    status, output, errors = run_program(body, signal.SIGTERM, until="inside")
    ended = "jaxsr: ended by SIGTERM\n"
    assert (status, output, errors) == (ExitStatus.INTERRUPTED, "loaded\nclosed\n", ended)

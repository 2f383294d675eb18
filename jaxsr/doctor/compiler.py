"""Whether XLA, as installed here, computes programs that a release of it got wrong.

The programs run in a child process, because some of them end it. The child prints a line of JSON
for each. Where it dies or hangs, the program after the last line is at fault, and another child
runs the rest.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from jaxsr.doctor.checks import Finding
from jaxsr.doctor.sentinels import SENTINELS
from jaxsr.doctor.sentinels.sentinel import NotHereError
from jaxsr.errors import counted, one_line
from jaxsr.interop.annotations import PyTree

# A TPU takes up to half a minute to start.
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Verdict:
    """The result of one program."""

    name: str
    ran: bool
    """False where this machine cannot run the program."""
    problem: str | None = None
    """The fault; None for a right result, and where it did not run."""


def check_compiler(platform: str) -> Iterator[Finding]:
    """One finding for each program that fails here, and one for all others."""
    installed = _versions(platform)
    verdicts = list(run_sentinels(platform))
    failures = [verdict for verdict in verdicts if verdict.problem is not None]
    right = sum(verdict.ran for verdict in verdicts) - len(failures)
    absent = len(verdicts) - len(failures) - right
    detail = f"{right} of {len(verdicts)} programs agree with NumPy in float64 ({installed})"
    detail += f"; {absent} need more devices" if absent else ""
    avoided = sum(SENTINELS[verdict.name].avoided is not None for verdict in failures)
    if avoided:
        faults = counted(avoided, "known compiler fault")
        all_of = f"{'all ' * (avoided > 1)}avoided"
        yield Finding("compiler", "ok", f"{faults}, {all_of}", is_summary=True)
    yield Finding("known miscompilations", "ok" if right else "note", detail)
    for verdict in failures:
        program = SENTINELS[verdict.name]
        detail = f"{verdict.problem} ({installed}); known: {program.fault}, {program.source}"
        if program.avoided is None:
            yield Finding(verdict.name, "fail", detail, program.workaround)
        else:
            advice = f"jaxsr avoids it: {program.avoided}; in your own JAX code: "
            advice += program.workaround
            yield Finding(verdict.name, "note", detail, advice, is_detail=True)


def run_sentinels(
    platform: str,
    names: Sequence[str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> Iterator[Verdict]:
    """Runs sentinels in child processes.

    Args:
      platform: `auto`, or one that JAX knows.
      names: of the programs, keys of `SENTINELS`. Default: all.
      environment: of the children. Default: that of this process.
      timeout_s: for one program, the start of its process included.

    Yields:
      A verdict for each name, in order.
    """
    # -P: no module of the current folder, in which a stranger's numpy.py may lie.
    command = [sys.executable, "-P", "-m", "jaxsr.doctor.compiler", platform]
    environment = dict(os.environ if environment is None else environment)
    places = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    names = list(SENTINELS if names is None else names)
    return run_in_children(command, names, environment=environment, timeout_s=timeout_s)


def run_in_children(
    command: Sequence[str],
    names: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> Iterator[Verdict]:
    """Runs programs in a child process, and the remaining ones in another if it dies.

    Args:
      command: of the child, without the names; it calls `print_verdict` for each, in order.
      names: of the programs.
      environment: of the children. Default: that of this process.
      timeout_s: for one program, the start of its process included.

    Yields:
      A verdict for each name, in order.
    """
    waiting = list(names)
    while waiting:
        child = subprocess.Popen(
            [*command, *waiting],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=dict(os.environ if environment is None else environment),
        )
        for verdict in _verdicts(child, timeout_s):
            waiting.remove(verdict.name)
            yield verdict
        status = child.wait()
        if waiting:
            yield Verdict(waiting.pop(0), True, _death(status, timeout_s))


def print_verdict(verdict: Verdict) -> None:
    """Tells the parent of a child process; other lines on stdout are ignored."""
    print(json.dumps(vars(verdict)), flush=True)


def _verdicts(child: "subprocess.Popen[str]", timeout_s: float) -> Iterator[Verdict]:
    """Verdicts that a child prints, until it ends or is silent for too long."""
    lines: queue.Queue[str | None] = queue.Queue()
    assert child.stdout is not None
    output = child.stdout

    def read() -> None:
        for line in output:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (line := lines.get(timeout=timeout_s)) is not None:
            if line.startswith("{"):
                yield Verdict(**json.loads(line))
    except queue.Empty:
        pass
    finally:
        child.kill()  # no effect on one that has ended


def _death(status: int, timeout_s: float) -> str:
    if status == -signal.SIGKILL:
        return f"no result within {timeout_s:g} s, or killed for lack of memory"
    if status < 0:
        return f"the process died of {signal.Signals(-status).name}"
    return f"the process ended with status {status}"


def _versions(platform: str) -> str:
    plugins = {"tpu": ["libtpu"], "cuda": ["jax-cuda13-plugin"]}.get(platform, [])
    versions = []
    for name in ("jax", "jaxlib", *plugins):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join([*versions, platform])


def _main(platform: str, names: Sequence[str]) -> None:
    """The child process."""
    import jax

    if platform != "auto":
        jax.config.update("jax_platforms", platform)
    jax.config.update("jax_num_cpu_devices", 4)
    for name in names:
        print_verdict(_judge(name))


def _judge(name: str) -> Verdict:
    import jax

    program = SENTINELS[name]
    try:
        with jax.default_matmul_precision("highest"):
            result, reference = program.run()
            result = np.asarray(result)
    except NotHereError:
        return Verdict(name, False)
    except Exception as error:
        return Verdict(name, True, f"{type(error).__name__}: {one_line(error)[:200]}")
    return Verdict(name, True, difference(result, reference, program.tolerance))


def difference(result: PyTree, reference: PyTree, tolerance: float) -> str | None:
    """How a result differs from its reference; None where it agrees.

    Args:
      result: of the device.
      reference: of the same shape.
      tolerance: in units of the largest finite value of the reference.
    """
    result, reference = (np.asarray(value, np.float64) for value in (result, reference))
    if result.shape != reference.shape:
        return f"shape {result.shape} instead of {reference.shape}"
    finite = np.abs(reference[np.isfinite(reference)])
    scale = finite.max() if finite.size and finite.max() else 1.0
    with np.errstate(invalid="ignore"):
        right = np.abs(result - reference) <= tolerance * scale
    right |= (result == reference) | (np.isnan(result) & np.isnan(reference))
    wrong = np.argwhere(~right)
    if not len(wrong):
        return None
    first = tuple(wrong[0].tolist())
    return (
        f"{len(wrong)} of {result.size} values are wrong, the first {result[first]:.6g} instead of "
        f"{reference[first]:.6g}"
    )


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])

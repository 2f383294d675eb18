"""Random chains of operations against NumPy: no crash, and no value outside its rounding error.

Programs run in child processes. A failure prints its seed, and the program shrunk; it then belongs
into `jaxsr/doctor/sentinels/`.
"""

import os
import sys
from collections.abc import Iterable

import numpy as np
import pytest

from jaxsr.doctor.compiler import run_in_children
from jaxsr.runtime.xla_flags import YNN_FUSION, disable_ynn_fusion
from tests.doctor.fuzz_programs import Steps, build, describe, judge, random_steps, shrink

COMMAND = [sys.executable, "-m", "tests.doctor.fuzz_programs"]
PER_CHILD = 250


def problems(programs: Iterable[int | Steps], *, ynn: str = "") -> dict[str, str]:
    """Problems by program; `ynn` is the setting of XLA's YNN fusion."""
    names = [str(program) for program in programs]
    environment = os.environ | {"XLA_FLAGS": f"--{YNN_FUSION}={ynn}"}
    return {
        verdict.name: verdict.problem
        for first in range(0, len(names), PER_CHILD)
        for verdict in run_in_children(
            COMMAND, names[first : first + PER_CHILD], environment=environment
        )
        if verdict.problem is not None
    }


def report(failures: dict[str, str]) -> str:
    """Seeds, problems and shrunk programs."""
    lines = []
    for seed, problem in failures.items():
        steps = shrink(random_steps(int(seed)), lambda candidate: bool(problems([candidate])))
        lines.append(f"seed {seed}: {problem}\n{steps}\n{describe(steps)}")
    return "\n\n".join(lines)


def test_20_programs_agree_with_numpy():
    failures = problems(range(20))
    assert not failures, report(failures)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_5000_programs_agree_with_numpy():
    failures = problems(range(5000))
    assert not failures, report(failures)


@pytest.mark.slow
def test_the_fuzz_finds_the_ynn_fusion():
    # Of the programs 0 to 399, which take half a minute, those that fail with jaxlib 0.10.2.
    assert problems(FAIL_WITH_YNN, ynn="+reduce")
    assert not problems(FAIL_WITH_YNN)


FAIL_WITH_YNN = (54, 70, 326)


def test_programs_cover_what_fusions_take():
    built = [build(random_steps(seed))[0] for seed in range(300)]
    assert {values[0].exact.ndim for values in built} == set(range(1, 8))
    assert {value.dtype for values in built for value in values} == {
        "float32",
        "bfloat16",
        "int32",
    }
    assert np.mean([len(values) for values in built]) > 4


def test_errors_are_not_so_wide_that_anything_passes():
    relative: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(500):
        values = build(random_steps(seed))[0]
        scale = np.abs(values[-1].exact).max(initial=0)
        if values[-1].dtype != "int32" and scale > 0:
            narrow = "bfloat16" in {value.dtype for value in values}
            relative[narrow].append(float(np.max(values[-1].error)) / scale)
    # Roundings are 6e-8 and 4e-3; cancellation makes the errors of a few programs large.
    assert np.quantile(relative[False], 0.5) < 1e-5 and np.quantile(relative[False], 0.9) < 1e-2
    assert np.quantile(relative[True], 0.5) < 3e-2


def test_a_wrong_value_is_seen_and_shrunk(monkeypatch):
    import jax

    right = jax.numpy.tanh
    monkeypatch.setattr(jax.numpy, "tanh", lambda x: right(x) * 1.001)
    # float32 [2, 3]; twice tanh; then a transposition.
    steps = [[0, 2, 2, 3, 5], [0, 0, 0, 3, 0, 0], [0, 1, 0, 3, 0, 0], [5, 1, 0, 1, 0, 0]]
    assert "values of v" in str(judge(steps))
    small = shrink(steps, lambda candidate: judge(candidate) is not None)
    assert len(small) == 2 and small[0][1] == 1 and "tanh" in describe(small)


def test_a_crash_is_a_finding(monkeypatch, tmp_path):
    script = "import os, sys\nfrom jaxsr.doctor.compiler import Verdict, print_verdict\n"
    script += "for n in sys.argv[1:]:\n    n == '3' and os.abort()\n"
    script += "    print_verdict(Verdict(n, True))\n"
    (tmp_path / "child.py").write_text(script)
    monkeypatch.setitem(globals(), "COMMAND", [sys.executable, str(tmp_path / "child.py")])
    assert problems(range(6)) == {"3": "the process died of SIGABRT"}


def test_this_process_is_guarded():
    disable_ynn_fusion()  # idempotent
    assert os.environ["XLA_FLAGS"].count(YNN_FUSION) == 1

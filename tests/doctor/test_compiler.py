"""The sentinels find XLA's faults and nothing else, and survive the death of their process."""

import dataclasses
import os
import sys

import numpy as np
import pytest

from jaxsr.doctor import compiler
from jaxsr.doctor.compiler import check_compiler, difference, run_sentinels
from jaxsr.doctor.devices import probe
from jaxsr.doctor.sentinels import SENTINELS
from jaxsr.runtime.xla_flags import YNN_FUSION, flags_error

YNN = [program.name for program in SENTINELS.values() if YNN_FUSION in program.workaround]


def verdicts(**options):
    return {verdict.name: verdict for verdict in run_sentinels("cpu", **options)}


def test_there_are_20_at_least_and_each_has_its_source():
    assert len(SENTINELS) >= 20
    for program in SENTINELS.values():
        assert program.source.startswith("https://github.com/") or program.source.endswith(".py")
        assert program.fault and program.workaround


@pytest.mark.slow  # tests/test_doctor.py runs them all by the command
def test_nothing_that_jaxsr_does_not_avoid_fails_here():
    listed = verdicts()
    assert [*listed] == [*SENTINELS] and all(verdict.ran for verdict in listed.values())
    failed = {verdict.name for verdict in listed.values() if verdict.problem}
    assert {name for name in failed if SENTINELS[name].avoided is None} == set()
    assert not failed & set(YNN)


def test_they_find_the_ynn_fusion_when_it_is_on():
    environment = os.environ | {"XLA_FLAGS": f"--{YNN_FUSION}=+reduce"}
    listed = verdicts(names=YNN, environment=environment)
    # jaxlib 0.11.2 has mended all but the last.
    assert listed["window maximum of a dilated input"].problem
    if compiler.version("jaxlib") == "0.10.2":
        assert {name for name in YNN if listed[name].problem} == set(YNN)
        assert "SIGSEGV" in str(listed["product summed at rank 7"].problem)
        assert "1 of 32769 values" in str(listed["vmapped product squared and summed"].problem)


CHILD = """
import json, os, sys, time
for name in sys.argv[1:]:
    print("noise of a library")
    if name == "dies":
        os.abort()
    if name == "hangs":
        time.sleep(60)
    if name == "leaves":
        sys.exit(3)
    print(json.dumps({"name": name, "ran": True}), flush=True)
"""


def test_a_death_or_a_hang_is_attributed_and_the_rest_is_run(monkeypatch, tmp_path):
    (tmp_path / "child.py").write_text(CHILD)
    start = compiler.subprocess.Popen

    def replaced(command, **options):
        return start([sys.executable, str(tmp_path / "child.py"), *command[5:]], **options)

    monkeypatch.setattr(compiler.subprocess, "Popen", replaced)
    names = ["a", "dies", "b", "hangs", "leaves", "c"]
    listed = verdicts(names=names, timeout_s=2.0)
    assert [*listed] == names
    problems = {name: verdict.problem for name, verdict in listed.items()}
    assert problems["a"] is problems["b"] is problems["c"] is None
    assert problems["dies"] == "the process died of SIGABRT"
    assert "no result within 2 s" in str(problems["hangs"])
    assert problems["leaves"] == "the process ended with status 3"


def test_a_failure_is_named_with_versions_source_and_workaround(monkeypatch):
    failing, avoided = "dot product attention", "rows shifted in place then reshaped"
    listed = [
        compiler.Verdict(failing, True, "3 of 4 values are wrong"),
        compiler.Verdict(avoided, True, "2 of 4 values are wrong"),
        compiler.Verdict("gather from a constant", True),
        compiler.Verdict("embedding gradient accumulated in a scan", False),
    ]
    monkeypatch.setattr(compiler, "run_sentinels", lambda platform: listed)
    program = SENTINELS[failing]
    monkeypatch.setitem(SENTINELS, failing, dataclasses.replace(program, avoided=None))
    known, summary, first, second = check_compiler("cpu")
    assert (known.status, known.detail) == ("ok", "1 known compiler fault, avoided")
    assert summary.detail.startswith("1 of 4 programs agree") and "1 need more" in summary.detail
    assert (first.status, first.advice) == ("fail", program.workaround)
    assert "jaxlib " in first.detail and program.source in first.detail
    assert second.status == "note" and "concatenate" in str(second.advice)


def test_an_error_is_a_problem_and_missing_devices_are_none(monkeypatch):
    def broken():
        raise RuntimeError("INTERNAL: no\nsuch pass")

    def absent():
        raise compiler.NotHereError("4 devices")

    program = SENTINELS["gather from a constant"]
    for run, verdict in (
        (broken, compiler.Verdict("x", True, "RuntimeError: INTERNAL: no such pass")),
        (absent, compiler.Verdict("x", False)),
    ):
        monkeypatch.setitem(SENTINELS, "x", dataclasses.replace(program, name="x", run=run))
        assert compiler._judge("x") == verdict


@pytest.mark.parametrize(
    ("result", "reference", "problem"),
    [
        ([1.0, 2.0], [1.0, 2.0], None),
        ([1.0, 2.00001], [1.0, 2.0], None),
        ([1.0, 2.1], [1.0, 2.0], "1 of 2 values are wrong, the first 2.1 instead of 2"),
        ([np.nan, -np.inf], [np.nan, -np.inf], None),
        ([np.nan, 1.0], [0.0, 1.0], "1 of 2 values are wrong, the first nan instead of 0"),
        ([0.0], [0.0, 0.0], "shape (1,) instead of (2,)"),
        ([], [], None),
    ],
)
def test_results_are_judged_in_units_of_the_largest(result, reference, problem):
    assert difference(result, reference, 1e-5) == problem


def test_children_take_no_module_of_the_current_folder(tmp_path, monkeypatch):
    """A model's or run's folder may be a stranger's, and have a `numpy.py`."""
    for name in ("jaxlib", "jax", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    name = next(iter(SENTINELS))
    (verdict,) = run_sentinels("cpu", [name])
    assert verdict.name == name and verdict.ran
    assert probe("cpu")[0] is not None
    assert flags_error("--xla_cpu_enable_fast_math=false") is None
    assert not (tmp_path / "ran").exists()

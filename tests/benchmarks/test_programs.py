"""Results of the benchmarks have one schema and a commit, and every benchmark's options parse."""

import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import benchmarks
from benchmarks.harness import report as _results
from benchmarks.harness.processes import Worker, race_workers
from benchmarks.harness.report import RESULTS, SCHEMA, Report, ReportOptions, read_rows
from benchmarks.harness.turns import take_turns, time_calls
from benchmarks.reliability import __main__ as reliability
from benchmarks.reliability.hostile_inputs import Options as HostileOptions
from benchmarks.reliability.hostile_inputs import measure_kind
from benchmarks.reliability.kills import Options as KillsOptions
from benchmarks.reliability.kills import differences, measure_processes
from benchmarks.zoo import checks as zoo
from jaxsr.errors import InputError, UserError
from tests.oracles.hostile.files import KINDS

FILES = sorted(RESULTS.glob("*.json"))
PROGRAMS = [
    path for path in RESULTS.parent.rglob("*.py") if "    run_benchmark(" in path.read_text()
]
NAMES = sorted(path.parent.name if path.stem == "__main__" else path.stem for path in PROGRAMS)
ENVIRONMENT = {"commit", "versions", "machine", "load_average_before", "load_average_after"}


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    rounds: int = 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_committed_results_have_the_schema(path):
    document = json.loads(path.read_text())
    assert document["schema"] == SCHEMA
    assert document["benchmark"] in NAMES
    assert isinstance(document["options"], dict)
    assert document["rows"]
    for row in (document, *document["rows"]):
        assert set(row.get("environment", ENVIRONMENT)) == ENVIRONMENT


def test_every_program_is_found_by_its_name_alone():
    assert len(NAMES) == len(set(NAMES))
    rooms = {path.parent.name for path in PROGRAMS if path.stem != "__main__"}
    assert rooms == {*benchmarks.ROOMS}


def test_texts_name_programs_that_exist():
    root = RESULTS.parents[1]
    texts = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("examples/*/README.md")]
    texts += [path for top in ("jaxsr", "interop", "ops") for path in root.glob(f"{top}/**/*.py")]
    texts += [root / "benchmarks" / "README.md", *root.glob("jaxsr/**/*.md")]
    for path in texts:
        if path.name != "CHANGELOG.md":  # which names what there was
            named = set(re.findall(r"\bbenchmarks\.([a-z_]+)", path.read_text()))
            assert named <= {*NAMES}, f"{path} names {named - {*NAMES}}"


@pytest.mark.parametrize("name", NAMES)
def test_help(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    for module in (f"benchmarks.{name}", f"benchmarks.{name}.__main__"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    assert stop.value.code in (0, None)
    assert f"usage: python -m benchmarks.{name}" in capsys.readouterr().out


def test_an_unknown_option_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_step", "--nothing"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("benchmarks.train_step", run_name="__main__", alter_sys=True)
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one commit, whose results folder the benchmarks write to."""
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (tmp_path / "code.py").write_text("")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(_results, "RESULTS", results)
    return tmp_path


def test_a_tree_with_changes_is_refused(checkout):
    (checkout / "code.py").write_text("x = 1")
    with pytest.raises(InputError, match="commit first, or write elsewhere with --out"):
        Report("ops", Options(out=checkout / "benchmarks" / "results" / "ops.json"))
    elsewhere = checkout / "ops.json"
    Report("ops", Options(out=elsewhere)).add({"name": "blur"})
    assert json.loads(elsewhere.read_text())["environment"]["commit"].endswith("-dirty")


def test_a_file_is_complete_after_each_row(checkout):
    """Results of an earlier benchmark do not change the tree."""
    (checkout / "benchmarks" / "results" / "other.json").write_text("{}")
    out = checkout / "benchmarks" / "results" / "ops.json"
    report = Report("ops", Options(out=out, rounds=5), device="cpu")
    for name in ("blur", "resize"):
        report.add({"name": name})
        document = json.loads(out.read_text())
        assert document["rows"][-1] == {"name": name}
    assert document["options"] == {"rounds": 5}
    assert document["device"] == "cpu"
    assert set(document["environment"]) == ENVIRONMENT
    assert not document["environment"]["commit"].endswith("-dirty")


def test_rows_of_earlier_runs_stay_with_their_environment(tmp_path, monkeypatch):
    out = tmp_path / "restore.json"
    options = Options(out=out)
    first = Report("restore", options, key=("size",))
    first.add({"size": 1, "value": "first"})
    first.add({"size": 2, "value": "first"})
    assert not any("environment" in row for row in json.loads(out.read_text())["rows"])
    monkeypatch.setattr(_results.os, "getloadavg", lambda: (100.0, 100.0, 100.0))
    second = Report("restore", options, key=("size",))
    second.write(device="cpu")  # as benchmarks do before their first row
    second.add({"size": 2, "value": "second"})
    rows = json.loads(out.read_text())["rows"]
    assert [row["value"] for row in rows] == ["first", "second"]
    assert rows[0]["environment"]["load_average_before"] != [100.0, 100.0, 100.0]
    assert "environment" not in rows[1]
    assert [set(row["environment"]) for row in read_rows(out)] == [ENVIRONMENT] * 2


def test_contenders_take_turns():
    calls = []
    contenders = {name: lambda name=name: calls.append(name) or len(calls) for name in "abc"}
    results = take_turns(contenders, rounds=4, warmup=1)
    assert calls[:3] == ["a", "b", "c"]
    assert all(set(calls[i : i + 3]) == {*"abc"} for i in range(3, 15, 3))
    assert sorted(itertools.chain(*results.values())) == list(range(4, 16))
    timing = time_calls({"sum": lambda: sum(range(1000))}, rounds=3)["sum"]
    assert 0 < timing.least_ms <= timing.median_ms
    assert set(dataclasses.asdict(timing)) == {
        "median_ms", "quartiles_ms", "least_ms", "least_cpu_ms", "median_cpu_ms"
    }  # fmt: skip


def count_turns(start):
    goes_on = yield {"ready": start}
    while goes_on:
        start += 1
        goes_on = yield {"turn": start}
    yield {"end": start}


def fail(start):
    raise SystemExit(7)
    yield {}


def test_a_worker_runs_only_in_its_turn():
    worker = Worker(count_turns, (5,))
    assert worker.ready == {"ready": 5}
    deadline = time.monotonic() + 10
    while Path(f"/proc/{worker.pid}/stat").read_text().split()[2] != "T":  # stopped by a signal
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert worker.turn() == {"turn": 6}
    assert worker.turn() == {"turn": 7}
    end = worker.finish()
    assert end["end"] == 7
    assert end["peak_host_mib"] > 0


def test_a_worker_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match="exit status 7"):
        Worker(fail, (5,))


def refuse(start):
    raise ValueError("no such contender")
    yield {}


@pytest.mark.sample(1)
@pytest.mark.parametrize("waits", [False, True])
def test_the_race_goes_on_without_a_worker_that_fails(waits):
    starts = {
        name: partial(Worker, steps, (5,), waits=waits)
        for name, steps in (("a", count_turns), ("b", refuse), ("c", count_turns))
    }
    raced, failures = race_workers(starts, rounds=2)
    assert failures == {"b": "ValueError: no such contender"}
    assert [raced[name].turns for name in "ac"] == [[{"turn": 6}, {"turn": 7}]] * 2
    assert raced["a"].ready == {"ready": 5} and raced["c"].end["end"] == 7
    assert multiprocessing.active_children() == []


def test_a_path_among_the_options_is_recorded_by_its_name(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Options(ReportOptions):
        photos: Path

    Report("x", Options(photos=tmp_path / "kodak", out=tmp_path / "x.json")).write()
    assert json.loads((tmp_path / "x.json").read_text())["options"] == {"photos": "kodak"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_damage_is_accepted(tmp_path):
    """A shortened form of `python -m benchmarks.damage`, in a process of its own."""
    out = tmp_path / "damage.json"
    words = ["--flips", "64", "--cuts", "40", "--seed", "1", "--out", str(out)]
    command = [sys.executable, "-m", "benchmarks.damage", *words]
    root = RESULTS.parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(out.read_text())["rows"]
    assert sum(row["tries"] for row in rows) == 104
    assert len({row["kind"] for row in rows}) == 8
    assert not any(row["accepted"] for row in rows)


@pytest.mark.parametrize("kind", list(KINDS))
def test_sound_inputs_of_every_kind_can_be_made_and_read(kind, tmp_path):
    make, read = KINDS[kind]
    name, content = next(iter(make().items()))
    (tmp_path / name).write_bytes(content)
    with contextlib.suppress(UserError, OSError):  # of hostile kinds the first may be refused
        read(tmp_path / name)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", list(KINDS))
def test_hostile_inputs_are_read_or_refused(kind, tmp_path):
    """A shortened form of `python -m benchmarks.hostile_inputs`."""
    row = measure_kind(kind, 60, HostileOptions(keep=tmp_path))
    assert row["wrong"] == 0, row
    assert row["read"] + row["refused"] == 60 and row["refused"] > 0


def _misbehaves(path):
    {"fault": lambda: 1 / 0, "memory": lambda: bytearray(b"x") * (3 * 2**30), "crash": os.abort}[
        path.read_text()
    ]()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("content", "outcome"),
    [("fault", "fault"), ("memory", "too much memory"), ("crash", "crash")],
)
def test_the_reader_notices(content, outcome, tmp_path, monkeypatch):
    import subprocess

    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from benchmarks.reliability import hostile_inputs\n"
        "from tests.benchmarks.test_programs import _misbehaves\n"
        "hostile_inputs.KINDS['x'] = (lambda: {}, _misbehaves)\n"
        "reads = hostile_inputs.reads('x')\n"
        "next(reads); print(reads.send(Path(sys.argv[1]))[0])\n"
    )
    path = tmp_path / "x"
    path.write_text(content)
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=RESULTS.parents[1],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if outcome == "crash":
        assert done.returncode == -signal.SIGABRT, done.stderr
    elif done.returncode != 77:  # what the watching thread ends the process with
        assert done.stdout.strip() == outcome, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "kills"), [(1, 3), (2, 2)])
def test_killed_runs_end_bit_equal(processes, kills):
    """A shortened form of `python -m benchmarks.kills`."""
    row = measure_processes(processes, kills, 1, KillsOptions(steps=90))
    assert row["wrong"] == [] and row["runs_compared"] >= 1


def test_a_run_that_differs_is_found(tmp_path):
    import numpy as np

    from jaxsr.interop.weights import export_weights

    for name, value in (("a", 1.0), ("b", 1.0), ("c", 1.0 + 2**-23)):
        (tmp_path / name).mkdir()
        weights = {"w": np.full(4, value, np.float32)}
        export_weights(tmp_path / name / "generator.safetensors", weights)
        loss = 0.5 if name != "b" else 0.25
        line = json.dumps({"step": 5, "generator/loss": loss}) + "\n"
        (tmp_path / name / "metrics.jsonl").write_text(line + '{"step": 6, "gen')
    assert differences(tmp_path / "a", tmp_path / "a") == []
    assert differences(tmp_path / "b", tmp_path / "a") == ["step 5"]
    assert differences(tmp_path / "c", tmp_path / "a") == ["w"]


def test_reliability_repeats_what_its_page_names():
    command = [sys.executable, "-m", "benchmarks.reliability", "--dry-run"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    tests = re.findall(r"tests/\S+", run.stdout)
    assert "tests/test_option_fuzz.py" in tests
    assert all((RESULTS.parents[1] / path).exists() for path in tests)
    programs = re.findall(r"benchmarks\.(\w+)", reliability.PAGE.read_text())
    assert set(programs) == {*reliability.PROGRAMS, "reliability"}


@pytest.mark.slow
def test_the_zoo_runs_continues_and_counts(tmp_path):
    out = tmp_path / "zoo.json"
    command = [sys.executable, "-m", "benchmarks.zoo", "--group", "torch.nn", "--only", "RNN"]
    first = subprocess.run([*command, "--out", out], capture_output=True, text=True, check=True)
    assert "ok         torch.nn:RNNCell" in first.stdout
    assert "torch.nn: 2 ok" in first.stdout
    rows = {row["model"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["RNN"]["checks"] | {"jit of apply": "ok"} == rows["RNN"]["checks"]
    assert rows["RNN"]["forward_error"] < 1e-5 and rows["RNN"]["gradient_error"] < 1e-5
    again = subprocess.run([*command, "--out", out], capture_output=True, text=True, check=True)
    assert "ok" not in again.stdout  # both rows were there


def test_the_zoos_page_is_current():
    rows = read_rows(zoo.RECORD)
    assert zoo.TABLE.read_text() == zoo.render(rows), "run python -m benchmarks.zoo, commit both"
    assert not [row for row in rows if row["status"] == "crashed"]
    for row in rows:
        assert not re.search(r"/tmp/|site-packages", row["reason"])


@pytest.mark.slow
def test_what_bounds_a_model_of_the_zoo(tmp_path):
    (tmp_path / "zoo_faults.py").write_text(FAULTY)
    environment = os.environ | {"PYTHONPATH": f"{RESULTS.parents[1]}{os.pathsep}{tmp_path}"}
    command = [sys.executable, tmp_path / "zoo_faults.py"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["timeout", "crashed", "refused"], run.stderr


FAULTY = """
import os, time
from torch import nn

class Sleeps(nn.Module):
    def forward(self, x):
        time.sleep(60)

class Exits(nn.Module):
    def forward(self, x):
        os._exit(3)

class Branches(nn.Module):
    def forward(self, x):
        return x if x.mean() > 0 else -x

if __name__ == "__main__":
    from benchmarks.zoo import checks as zoo
    from benchmarks.zoo.models import Entry

    for name, timeout_s in (("Sleeps", 10), ("Exits", 60), ("Branches", 60)):
        entry = Entry("torch.nn", name, f"zoo_faults:{name}", {}, (("2,3",),))
        print(zoo.run_entry(entry, zoo.Options(timeout_s=timeout_s))["status"])
"""

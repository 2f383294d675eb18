"""`benchmarks.gpu`: parts in processes with bounds, what a second call runs, the page."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu import run as gpu
from benchmarks.gpu.page import page
from benchmarks.gpu.parts import Part
from benchmarks.harness.processes import rows_of_child
from jaxsr.errors import InputError


def rows_and_end(compute, timeout_s=20.0, **options):
    *rows, end = rows_of_child(compute, timeout_s=timeout_s, **options)
    return rows, end


def test_rows_come_as_they_are_computed():
    def compute():
        yield {"at": time.monotonic()}
        time.sleep(0.5)
        yield {"at": time.monotonic()}

    rows = rows_of_child(compute, timeout_s=20)
    assert time.monotonic() - next(rows)["at"] < 0.4
    assert "at" in next(rows)
    assert list(rows) == [{"status": "ok", "reason": ""}]


def test_what_ended_a_part_is_its_last_row(tmp_path):
    def fails():
        yield {"name": "first"}
        raise ValueError("two\nlines")

    def crashes():
        os.write(2, b"the driver says no\n")
        os.kill(os.getpid(), signal.SIGKILL)
        yield {}

    rows, end = rows_and_end(fails)
    assert rows == [{"name": "first"}]
    assert end == {"status": "failed", "reason": "ValueError: two lines"}
    rows, end = rows_and_end(crashes, log=tmp_path / "log")
    assert end["status"] == "crashed"
    assert end["reason"] == "the process ended with exit status -9: the driver says no"


def test_a_part_is_killed_with_what_it_started(tmp_path):
    marker = tmp_path / "marker"

    def starts():
        script = f"import time; time.sleep(3); open({str(marker)!r}, 'w')"
        subprocess.Popen([sys.executable, "-c", script])
        yield {"name": "started"}
        time.sleep(60)

    rows, end = rows_and_end(starts, timeout_s=1.5)
    assert rows == [{"name": "started"}]
    assert end == {"status": "timeout", "reason": "more than 2 s"}
    time.sleep(2)
    assert not marker.exists()


def test_processor_time_is_bounded_apart_from_wall_time():
    def waits():
        time.sleep(1.5)
        yield {"name": "waited"}

    def computes():
        yield {"name": "began"}
        while True:
            pass

    assert rows_and_end(waits, processor_s=1)[1]["status"] == "ok"
    rows, end = rows_and_end(computes, processor_s=1)
    assert rows == [{"name": "began"}]
    assert end == {"status": "timeout", "reason": "more than 1 s of processor time"}


def no_rows(setting):
    return ()


PARTS = (
    Part(name="families", rows=no_rows, timeout_s=9),
    Part(name="zoo", rows=no_rows, timeout_s=9),
    Part(name="steps", rows=no_rows, timeout_s=9, timed=True),
    Part(name="device only", rows=no_rows, timeout_s=9, needs_gpu=True),
)


@pytest.fixture
def children(monkeypatch):
    """Stands for the parts' processes: the rows of each, and the parts that were begun."""
    rows = {"families": [{"name": "llama", "ok": True}], "zoo": [{"name": "vit", "ok": False}]}
    begun = []

    def fake(compute, *, timeout_s, log, start):
        part, setting = compute.args
        begun.append((part.name, setting.done))
        yield from rows.get(part.name, [])
        status = "failed" if part.name == "zoo" and len(begun) < 5 else "ok"
        yield {"status": status, "reason": "/tmp/site-packages/x.py: boom" * (status != "ok")}

    monkeypatch.setattr(gpu, "rows_of_child", fake)
    monkeypatch.setattr(gpu, "PARTS", PARTS)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return begun


def test_a_second_call_runs_what_is_missing_or_failed(children, tmp_path, capsys):
    out = tmp_path / "gpu.json"
    options = gpu.Options(device="cpu", out=out)
    gpu.measure(options)
    assert sorted(name for name, _ in children) == ["families", "steps", "zoo"]
    ends = {
        row["part"]: row["status"] for row in json.loads(out.read_text())["rows"] if not row["name"]
    }
    assert ends == {"families": "ok", "zoo": "failed", "steps": "ok", "device only": "needs a GPU"}
    children[:] = [("", frozenset())] * 4
    gpu.measure(options)
    # Of a failed part, rows that are not ok are computed again.
    assert children[4:] == [("zoo", frozenset())]
    text = out.with_suffix(".md").read_text()
    assert "| zoo | ok | 0 | 1 | 1 |" in text
    assert "2 rows, 1 not ok" in capsys.readouterr().out


def test_no_part_begins_without_time(children, tmp_path, capsys):
    options = gpu.Options(device="cpu", minutes=0.01, out=tmp_path / "gpu.json")
    gpu.measure(options)
    assert children == []
    assert "no time is left; call again to go on" in capsys.readouterr().out
    assert "| steps | not run | 0 | 0 | 0 | no time is left" in (tmp_path / "gpu.md").read_text()
    gpu.measure(dataclasses.replace(options, minutes=1))
    assert sorted(name for name, _ in children) == ["families", "steps", "zoo"]


def test_wrong_options_are_refused():
    with pytest.raises(InputError, match="there is no part 'speed'; there are families, "):
        gpu.Options(part=("speed",))
    with pytest.raises(InputError, match=r"minutes must be positive, got 0"):
        gpu.Options(minutes=0)


def test_the_page_holds_goals_against_figures():
    environment = {"commit": "abc", "versions": {"jax": "0.11.2"}}

    def row(part, name, **figures):
        return {"part": part, "name": name, "environment": environment, **figures}

    rows = [
        row("rates", "product 8192³ bfloat16 default, JAX", tflops=700.0),
        row("forecasts", "fast-srgan step", memory_mib=900.0, gflop=1400.0, roofline_ms=2.0),
        row("steps", "fast-srgan, jaxsr", contender="jaxsr", images_per_s=110.0,
            step_ms_median=4.0, program_mib=1000),
        row("steps", "fast-srgan, compiled", contender="torch.compile max", images_per_s=100.0),
        row("kernels", "blur", fraction_of_copy_bandwidth=0.9),
        row("decoding", "jaxsr, batch 1", share_of_copy_bandwidth=0.75),
        row("families", "llama tf32", ok=False, bound=0.1),
        row("families", "", status="ok", seconds=3.0),
    ]  # fmt: skip
    text = page(rows, "cuda")
    assert "| steps: × torch.compile ≥ 1.2 | 1.1 | **no** |" in text
    assert "| kernels: least share of copy bandwidth ≥ 0.8 | 0.9 | yes |" in text
    assert "| decoding: share of copy bandwidth ≥ 0.7 | 0.75 | yes |" in text
    assert "| families: within bounds ≥ 1 | 0 | **no** |" in text
    assert "| fast-srgan step | 900 | 1000 | 0.90 | 2 | 4 | 350 | 50.0% |" in text
    assert "torch.compile" not in page(rows, "cpu").partition("## ")[0]


@pytest.mark.slow
def test_the_parts_run_on_the_cpu(tmp_path):
    parts = ["families", "forecasts", "compiled ahead", "deterministic", "rates", "steps"]
    parts += ["restoring", "conformance", "zoo"]
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--quick"]
    command += ["--minutes", "9", "--out", str(out), "--part", *parts]
    subprocess.run(command, check=True, cwd=Path(gpu.__file__).parents[2])
    rows = json.loads(out.read_text())["rows"]
    assert {row["part"]: row["status"] for row in rows if not row["name"]} == dict.fromkeys(
        parts, "ok"
    )
    assert all(row.get("ok", True) for row in rows)

"""The diagnosis: healthy here, and each kind of failure named with a workaround."""

import importlib.metadata
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsr import doctor
from jaxsr.doctor import (
    adapter,
    arithmetic,
    checks,
    devices,
    diagnose,
    installation,
    models,
    storage,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def diagnosis():
    """The command's output on this machine, in a process of its own."""
    command = [sys.executable, "-m", "jaxsr.doctor", "--platform", "cpu", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, json.loads(done.stdout)


def test_this_machine_is_healthy(diagnosis):
    status, report = diagnosis
    failed = [f for f in report["findings"] if f["status"] == "fail"]
    # A checkout may be older or newer than its installed metadata; everything else must hold.
    failed = [f for f in failed if f["section"] != "installation"]
    assert not failed
    assert status == (0 if report["healthy"] else 1)


def test_every_section_looks_at_something(diagnosis):
    sections = [f["section"] for f in diagnosis[1]["findings"]]
    assert list(dict.fromkeys(sections)) == [
        "installation",
        "devices",
        "compiler",
        "arithmetic",
        "CPU kernels",
        "torch in JAX",
        "models",
        "storage",
    ]
    assert {"fast-srgan", "mshnet", "llama"} <= {f["subject"] for f in diagnosis[1]["findings"]}


def test_a_wrong_version_and_a_missing_library_are_named(monkeypatch):
    requirements = ["torch>=99", "numpy>=1", "no-such-library>=2", "libtpu>=99; extra == 'aot'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requirements)
    findings = {f.subject: f for f in installation.check_installation()}
    assert (
        findings["torch"].status == "fail" and findings["torch"].advice == "pip install 'torch>=99'"
    )
    assert findings["numpy"].status == "ok"
    assert findings["no-such-library"].detail == "is not installed"


def test_a_platform_that_is_not_here_is_one_failure():
    listed = list(devices.check_devices("tpu"))
    assert listed[0].status == "fail" and "--platform cpu" in str(listed[0].advice)


def test_an_error_of_a_platform_is_its_first_sentence(monkeypatch):
    error = (
        "RuntimeError: Unable to initialize backend 'tpu': ABORTED: no lock. Run x. (set JAX_P=)"
    )
    monkeypatch.setattr("jaxsr.doctor.devices.probe", lambda platform: (None, error))
    [failure] = devices.check_devices("tpu")
    assert failure.detail == "ABORTED: no lock"


def test_a_device_that_never_answers_is_reported(monkeypatch):
    monkeypatch.setattr(devices, "_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(devices, "_TIMEOUT_S", 0.5)
    (finding,) = devices.check_devices("auto")
    assert finding.status == "fail" and "other hosts" in str(finding.advice)


@pytest.mark.parametrize(("platform", "failed"), [("cpu", []), ("auto", ["TPU", "CUDA"])])
def test_accelerators_count_where_they_may_be_taken(monkeypatch, platform, failed):
    """The machine has a TPU and a GPU, and JAX takes its CPU."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    exists = os.path.exists
    nodes = ("/dev/nvidia0", "/dev/accel0")
    monkeypatch.setattr(os.path, "exists", lambda path: path in nodes or exists(path))
    findings = list(devices.check_devices(platform))
    assert [finding.subject for finding in findings if finding.status == "fail"] == failed


def test_only_the_user_s_own_flags_are_named(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=")
    assert not [f for f in devices._variables("cpu") if f.subject == "XLA_FLAGS"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type= --xla_dump_to=/x")
    (finding,) = [f for f in devices._variables("cpu") if f.subject == "XLA_FLAGS"]
    assert finding.detail == "is set: --xla_dump_to=/x"


def test_wrong_arithmetic_is_seen(monkeypatch):
    import jax

    true = jax.numpy.exp
    monkeypatch.setattr(jax.numpy, "exp", lambda x: true(x) * 1.01)
    findings = {f.subject: f for f in arithmetic.check_arithmetic()}
    assert findings["exp"].status == "fail"
    assert findings["float32 product, highest"].status == "ok"


def printed(monkeypatch, capsys, **options):
    """The lines of a diagnosis whose sections found these."""
    found = {
        "installation": [checks.Finding("jax", "ok", "1"), checks.Finding("torch", "ok", "2")],
        "compiler": [
            checks.Finding("compiler", "ok", "2 known faults, all avoided", is_summary=True),
            checks.Finding("loops", "note", "are wrong", "avoid them", is_detail=True),
        ],
        "devices": [
            checks.Finding("host", "ok", "2 cores"),
            checks.Finding("memory", "note", "little", "buy more"),
        ],
    }
    sections = {name: (lambda found=listed: iter(found)) for name, listed in found.items()}
    monkeypatch.setattr(diagnose, "_checks", lambda config: sections)
    assert diagnose.diagnose(doctor.DoctorConfig(**options)) == 0
    return capsys.readouterr().out.splitlines()


def test_it_is_short_unless_asked(monkeypatch, capsys):
    assert printed(monkeypatch, capsys) == [
        "installation",
        "  ok    2 checks",
        "compiler",
        "  ok    2 known faults, all avoided",
        "devices",
        "  note  memory: little",
        "        → buy more",
        "  ok    1 check",
        "",
        "all is well; --verbose prints every check",
    ]
    all_lines = printed(monkeypatch, capsys, verbose=True)
    assert "  note  loops: are wrong" in all_lines and "  ok    torch: 2" in all_lines
    assert all_lines[-1] == "all is well"


def test_an_installed_extra_is_not_said_to_run():
    details = [f.detail for f in installation.check_installation() if f.status == "ok"]
    assert not any("complete: running" in detail for detail in details)


def test_a_check_that_breaks_does_not_stop_the_others():
    def broken():
        raise RuntimeError("no such thing")
        yield

    def fine():
        yield checks.Finding("x", "ok", "y")

    listed = list(checks.run_checks({"a": broken, "b": fine}))
    assert [(name, f.status) for name, f in listed] == [("a", "fail"), ("b", "ok")]
    assert "no such thing" in listed[0][1].detail


def test_a_network_that_differs_is_a_failure(monkeypatch):
    monkeypatch.setattr(models, "_difference", lambda *_: 0.5)
    assert {f.status for f in models.check_models()} == {"fail"}


def test_gradients_that_are_not_numbers_are_a_failure(monkeypatch):
    errors = itertools.cycle([0.0, math.nan])
    monkeypatch.setattr(adapter, "relative_error", lambda *_, **__: next(errors))
    assert {f.status for f in [*adapter.check_adapter()][1:]} == {"fail"}


def test_an_adapter_that_raises_is_a_failure(monkeypatch):
    def refuse(*_):
        raise TypeError("torchax changed")

    monkeypatch.setattr(adapter, "_difference", refuse)
    lowerings, *programs = adapter.check_adapter()
    assert lowerings.status == "ok"  # read from a table, without a program
    assert {f.status for f in programs} == {"fail"}


def test_an_unwritable_cache_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    finding = next(iter(storage.check_storage()))
    assert finding.status == "fail" and "XDG_CACHE_HOME" in str(finding.advice)


def test_exit_status_and_lines(monkeypatch, capsys):
    lines = {"some section": lambda: iter([checks.Finding("disk", "fail", "is full", "buy one")])}
    monkeypatch.setattr(diagnose, "_checks", lambda config: lines)
    assert doctor.main([]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  disk: is full" in shown and "→ buy one" in shown and "1 of 1" in shown
    assert doctor.main(["--platform", "npu"]) == 2

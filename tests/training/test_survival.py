"""Real processes: killed at random moments, stopped politely, moved to other meshes, run as two."""

import contextlib
import json
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxsr.interop.weights import read_weights

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "fast-srgan",
    "--model.width", "8", "--model.depth", "2", "--batch", "8", "--crop", "32", "--ema", "0.9",
    "--log-every", "5", "--validation-px", "64", "--no-tensorboard", "--platform", "cpu",
    "--schedule", "constant",  # so that a run of another length takes the same steps
)  # fmt: skip


def start(
    out: Path, *options: object, hangup: signal.Handlers = signal.SIG_DFL, **environment: str
) -> subprocess.Popen[str]:
    """Starts a run; `hangup` is its handler of SIGHUP, also where the tests run under nohup."""
    command = [sys.executable, "-m", "jaxsr.train", *TINY, "--out", str(out), *map(str, options)]
    environment = {**os.environ, **environment}
    before = signal.signal(signal.SIGHUP, hangup)
    try:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGHUP, before)


def finish(process: subprocess.Popen[str]) -> str:
    lines, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]
    return lines


def records(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(out: Path) -> dict[int, float]:
    return {r["step"]: r["generator/loss"] for r in records(out) if "generator/loss" in r}


def assert_same_weights(a: Path, b: Path) -> None:
    ours, _ = read_weights(a / "generator.safetensors")
    theirs, _ = read_weights(b / "generator.safetensors")
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)


def saved_steps(out: Path) -> list[int]:
    """Steps of the checkpoints that are complete."""
    folder = out / "checkpoints"
    return [int(p.name) for p in folder.iterdir() if p.name.isdigit()] if folder.exists() else []


def wait_for_step(process: subprocess.Popen[str], out: Path, step: int) -> None:
    """Returns when the run has recorded the step, or is over."""
    while process.poll() is None:
        path = out / "metrics.jsonl"
        if path.exists() and f'"step": {step},' in path.read_text():
            return
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_at_random_moments_ends_bit_equal(tmp_path):
    options = ("--mesh", 2, "--steps", 200, "--save-every", 10, "--validate-every", 50)
    finish(start(tmp_path / "whole", *options))
    out = tmp_path / "killed"
    rng = random.Random(0)
    kills = 0
    while kills < 10 or kills % 2:
        process = start(out, *options, "--resume")
        # Every second start dies before it gets anywhere: two kills without progress between.
        if kills % 2 == 0:
            done = max(losses(out), default=0) if (out / "metrics.jsonl").exists() else 0
            wait_for_step(process, out, min(done + rng.randrange(10, 40), 200))
            time.sleep(rng.random())
        else:
            time.sleep(rng.uniform(0.5, 6))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    assert kills >= 10, f"the run ended after {kills} kills; make it longer"
    finish(start(out, *options, "--resume"))
    assert_same_weights(out, tmp_path / "whole")
    assert losses(out) == losses(tmp_path / "whole")


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGTERM, "SIGTERM"),
        pytest.param(signal.SIGINT, "Ctrl-C", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, "SIGHUP", marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_exits_0(tmp_path, number, name):
    options = ("--mesh", 2, "--steps", 2000, "--validate-every", 2000)
    process = start(tmp_path / "run", *options)
    wait_for_step(process, tmp_path / "run", 5)
    process.send_signal(number)
    lines = finish(process)
    stopped = re.search(rf"stopped by {name} after step (\d+); go on with --resume", lines)
    assert stopped, lines
    saved = [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()]
    assert stopped[1] in saved
    weights, notes = read_weights(tmp_path / "run" / "generator.safetensors")
    assert notes["step"] == int(stopped[1]) and notes["validation"] == {} and weights


def test_sigterm_before_the_first_step_is_said(tmp_path):
    process = start(tmp_path / "run")
    status = Path(f"/proc/{process.pid}/status")
    while True:  # until it has a handler; importing JAX and torch takes seconds more
        (caught,) = re.findall(r"SigCgt:\s*(\w+)", status.read_text())
        if int(caught, 16) >> (signal.SIGTERM - 1) & 1:
            break
        time.sleep(0.01)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "jaxsr: ended by SIGTERM\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_eight_devices_then_four_then_eight(tmp_path):
    options = ("--steps", 30, "--validate-every", 30)
    finish(start(tmp_path / "whole", *options, "--mesh", 8))
    out = tmp_path / "moved"
    for mesh, until in ((8, 10), (4, 20), (8, 30)):
        finish(start(out, "--mesh", mesh, "--steps", until, "--validate-every", until, "--resume"))
    moved, unmoved = losses(out), losses(tmp_path / "whole")
    assert moved.keys() == unmoved.keys()
    for step, loss in unmoved.items():
        assert moved[step] == pytest.approx(loss, rel=1e-4), step


def run_together(out: Path, processes: int, *options: object) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        start(
            out,
            *options,
            JAXSR_COORDINATOR=f"127.0.0.1:{port}",
            JAXSR_PROCESSES=str(processes),
            JAXSR_PROCESS=str(index),
        )
        for index in range(processes)
    ]
    for process in started:
        finish(process)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    options = ("--mesh", 8, "--steps", 20, "--validate-every", 10)
    finish(start(tmp_path / "one", *options))
    run_together(tmp_path / "two", 2, *options)
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert one.keys() == two.keys()
    for step, loss in one.items():
        assert two[step] == pytest.approx(loss, rel=1e-5), step
    figures = [r for r in records(tmp_path / "two") if "validation/psnr_y" in r]
    assert [f["step"] for f in figures] == [10, 20]


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_keeps_what_was_saved(tmp_path):
    """Needs the right to mount a small file system."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here")
    options = ("--mesh", 2, "--steps", 400, "--save-every", 5, "--validate-every", 400)
    process = start(disk / "run", *options, "--tensorboard")
    try:
        while process.poll() is None and not saved_steps(disk / "run"):
            time.sleep(0.05)
        before = saved_steps(disk / "run")
        with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"\0" * 4096)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 2 and "Traceback" not in errors, errors[-2000:]
        lines = [line for line in errors.splitlines() if line.startswith("jaxsr: ")]
        assert len(lines) == 1 and "no space left" in lines[0].lower(), errors[-2000:]
        (disk / "filler").unlink()
        # Older ones may have been cleared away for newer ones, but never all of them.
        assert before and saved_steps(disk / "run")
    finally:
        process.kill()
        process.wait()
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_second_interrupt_stops_at_once(tmp_path):
    options = ("--mesh", 2, "--steps", 2000, "--validate-every", 2000)
    process = start(tmp_path / "run", *options)
    wait_for_step(process, tmp_path / "run", 5)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGSTOP)  # so that the first one is not finished with
    time.sleep(0.2)
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    # The first may have been enough, if the save was quick.
    assert process.returncode in (0, 130), errors[-2000:]
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_run_under_nohup_survives_its_terminal(tmp_path):
    options = ("--mesh", 2, "--steps", 60, "--validate-every", 60)
    process = start(tmp_path / "run", *options, hangup=signal.SIG_IGN)
    wait_for_step(process, tmp_path / "run", 5)
    process.send_signal(signal.SIGHUP)
    finish(process)
    assert max(losses(tmp_path / "run")) == 60


@pytest.mark.slow
def test_a_second_run_of_a_folder_is_refused(tmp_path):
    out = tmp_path / "run"
    options = ("--mesh", 2, "--steps", 2000, "--validate-every", 2000)
    first = start(out, *options)
    wait_for_step(first, out, 5)
    before = (out / "config.json").read_bytes()
    second = start(out, *options, "--resume", "--log-every", 7)
    _, errors = second.communicate(timeout=120)
    assert second.returncode == 2
    assert f"in use by another run, process {first.pid} on {platform.node()}" in errors
    assert (out / "config.json").read_bytes() == before
    first.send_signal(signal.SIGKILL)  # the lock dies with its process
    first.communicate()
    finish(start(out, "--mesh", 2, "--steps", 20, "--validate-every", 2000, "--resume"))


@pytest.mark.slow
def test_a_folder_removed_under_the_run_is_said(tmp_path):
    out = tmp_path / "run"
    process = start(out, "--steps", 100_000, "--validate-every", 100_000, "--save-every", 20)
    wait_for_step(process, out, 5)
    shutil.rmtree(out, ignore_errors=True)
    _, errors = process.communicate(timeout=120)
    lines = [line for line in errors.splitlines() if line.startswith("jaxsr: ")]
    assert process.returncode == 2 and len(lines) == 1, errors[-2000:]


@pytest.mark.slow
def test_a_folder_replaced_by_another_runs_stays_as_it_is(tmp_path):
    out, other = tmp_path / "run", tmp_path / "other"
    finish(start(other, "--steps", 2))
    process = start(out, "--steps", 100_000, "--validate-every", 100_000, "--save-every", 20)
    wait_for_step(process, out, 5)
    weights = (other / "generator.safetensors").read_bytes()
    out.rename(tmp_path / "aside")
    other.rename(out)
    _, errors = process.communicate(timeout=120)
    assert (
        process.returncode == 2
        and f"{out} was removed, emptied or replaced under the run" in errors
    )
    assert (out / "generator.safetensors").read_bytes() == weights
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["2"]


@pytest.mark.slow
def test_a_picture_removed_under_the_run_keeps_the_steps(tmp_path):
    data, out = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (80, 80, 3), dtype=np.uint8)
    for number in range(4):
        Image.fromarray(pixels + np.uint8(number)).save(data / f"{number}.png")
    process = start(
        out, "--steps", 100_000, "--preset", "quick", "--data", data,
        "--cache-gb", 0, "--resident-gb", 0,
    )  # fmt: skip
    wait_for_step(process, out, 5)
    for path in data.iterdir():
        path.unlink()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors[-2000:]
    last = errors.strip().splitlines()[-1]
    assert last.startswith("jaxsr: ") and "no longer is: no such file or directory" in last
    (step,) = saved_steps(out)
    assert f"the state of step {step} is saved" in errors

"""Signals end a run whose data do not come: the last step is saved, and nothing waits for them."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TASK = """
import ctypes
import os
import time

from tests.training import user_tasks

def sleep():
    while os.path.exists("stall"):
        try:
            time.sleep(1000)
        except OSError:
            pass

def block():
    if os.path.exists("stall"):
        lock = ctypes.create_string_buffer(64)
        for _ in range(2):  # the second call never returns, and no signal interrupts it
            ctypes.CDLL(None).pthread_mutex_lock(lock)

class Slow(user_tasks.Points):
    wait = staticmethod(sleep)

    def __getitem__(self, index):
        time.sleep(0.005)
        type(self).wait()
        return super().__getitem__(index)

class Plain(Slow):
    def __getitem__(self, index):
        sleep()
        return self.x[index], self.x[index].sum(keepdims=True)

class Blocking(Slow):
    wait = staticmethod(block)

class Fit(user_tasks.Fit):
    def train_data(self):
        return Slow(20)

class Ahead(user_tasks.Fit):
    def train_data(self):
        return Plain(20)

class Blocked(user_tasks.Fit):
    def train_data(self):
        return Blocking(20)

class Validated(user_tasks.Fit):
    def validation_data(self):
        return Slow(13)
"""


def stalled(folder: Path, task: str, *words: str) -> subprocess.Popen[str]:
    """A run of this task, with these options, that has taken a few steps and waits for its data."""
    (folder / "stalling.py").write_text(TASK)
    command = [
        sys.executable, "-m", "jaxsr.train", f"stalling:{task}", *words, "--out", "run",
        "--platform", "cpu", "--no-tensorboard", "--log-every", "1", "--steps", "100000",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
    )
    metrics = folder / "run" / "metrics.jsonl"
    while process.poll() is None:
        if metrics.exists() and '"step": 3,' in metrics.read_text():
            break
        time.sleep(0.02)
    (folder / "stall").touch()
    before = -1
    while process.poll() is None and before < (before := metrics.stat().st_size):
        time.sleep(1.5)
    return process


NO_DATA = r"the data of step \d+ do not come"


@pytest.mark.parametrize(
    ("words", "number", "reason"),
    [
        (["Fit"], signal.SIGTERM, NO_DATA),
        *(
            pytest.param(words, number, reason, marks=pytest.mark.slow)
            for words, number, reason in (
                (["Fit"], signal.SIGINT, NO_DATA),
                (["Fit", "--workers", "2"], signal.SIGTERM, NO_DATA),
                (["Ahead", "--prefetch", "3"], signal.SIGTERM, NO_DATA),
                (["Validated", "--validate-every", "4"], signal.SIGTERM,
                 r"the validation of step \d+ goes on"),
            )
        ),
    ],
)  # fmt: skip
def test_a_signal_saves_the_last_step(tmp_path, words, number, reason):
    process = stalled(tmp_path, *words)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors, errors[-3000:]
    by = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert re.search(f"^jaxsr: stopped by {by}: {reason}$", errors.splitlines()[-1]), errors[-3000:]
    (step,) = re.findall(r"the state of step (\d+) is saved", errors)
    assert (tmp_path / "run" / "checkpoints" / step).is_dir()
    if "--validate-every" in words:  # it is repeated at the resume
        (tmp_path / "stall").unlink()
        again = [word for word in process.args if word != "100000"]  # pyright: ignore
        subprocess.run(
            [*again, step, "--resume"], cwd=tmp_path, check=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        )  # fmt: skip
        records = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        assert any(f'"step": {step},' in one and "validation/" in one for one in records)


@pytest.mark.slow
def test_a_signal_ends_a_run_whose_data_hang_in_native_code(tmp_path):
    process = stalled(tmp_path, "Blocked")
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and errors.endswith("jaxsr: ended by SIGTERM\n")

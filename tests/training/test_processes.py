"""Jobs of several processes on the loopback: equal to one, killed and restarted, on fewer too."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.training.test_survival import (
    assert_same_weights,
    finish,
    losses,
    saved_steps,
    start,
    wait_for_step,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def launch(out: Path, processes: int, *options: object) -> list[subprocess.Popen[str]]:
    """The processes of one job, eight devices in all."""
    port = free_port()
    return [
        start(
            out,
            "--mesh",
            8,
            *options,
            JAXSR_COORDINATOR=f"127.0.0.1:{port}",
            JAXSR_PROCESSES=str(processes),
            JAXSR_PROCESS=str(index),
        )
        for index in range(processes)
    ]


def complete(job: list[subprocess.Popen[str]]) -> None:
    for process in job:
        finish(process)


def kill(job: list[subprocess.Popen[str]], victim: int) -> None:
    """One process is killed; the others must end by themselves, as a job manager expects."""
    job[victim].send_signal(signal.SIGKILL)
    job[victim].communicate()
    try:
        for process in job:
            if process is not job[victim]:
                process.communicate(timeout=300)
                assert process.returncode != 0
    finally:
        for process in job:
            process.kill()


def test_four_processes_equal_one(tmp_path):
    options = ("--steps", 20, "--validate-every", 10)
    complete(launch(tmp_path / "one", 1, *options))
    complete(launch(tmp_path / "four", 4, *options))
    one, four = losses(tmp_path / "one"), losses(tmp_path / "four")
    assert one.keys() == four.keys()
    for step, loss in one.items():
        assert four[step] == pytest.approx(loss, rel=1e-5), step  # float32, another order of sums


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_job_and_a_restart_resumes_exactly(tmp_path, victim):
    options = ("--steps", 60, "--save-every", 5, "--validate-every", 60)
    complete(launch(tmp_path / "whole", 2, *options))
    out = tmp_path / "killed"
    job = launch(out, 2, *options, "--resume")
    wait_for_step(job[0], out, 20)
    kill(job, victim)
    resumed_from = max(saved_steps(out))
    assert 5 <= resumed_from < 60
    complete(launch(out, 2, *options, "--resume"))
    assert losses(out) == losses(tmp_path / "whole")
    assert_same_weights(out, tmp_path / "whole")


def test_a_killed_job_goes_on_with_fewer_processes(tmp_path):
    options = ("--steps", 40, "--save-every", 5, "--validate-every", 40)
    complete(launch(tmp_path / "whole", 4, *options))
    out = tmp_path / "moved"
    job = launch(out, 4, *options, "--resume")
    wait_for_step(job[0], out, 10)
    kill(job, 3)
    complete(launch(out, 2, *options, "--resume"))
    moved, whole = losses(out), losses(tmp_path / "whole")
    assert moved.keys() == whole.keys()
    for step, loss in whole.items():
        assert moved[step] == pytest.approx(loss, rel=1e-4), step


def test_slurm_needs_no_options(tmp_path):
    """`srun` sets these variables; JAX finds the coordinator in them."""
    number = str(os.getpid() % 4096)  # the job's number chooses the port
    job = [
        start(
            tmp_path / "run", "--mesh", 8, "--steps", 4, "--validate-every", 4,
            SLURM_JOB_ID=number, SLURM_STEP_NODELIST="127.0.0.1", SLURM_NTASKS="2",
            SLURM_PROCID=str(index), SLURM_LOCALID=str(index), SLURM_STEP_NUM_NODES="1",
        )
        for index in range(2)
    ]  # fmt: skip
    began = time.monotonic()
    complete(job)
    assert max(losses(tmp_path / "run")) == 4
    assert time.monotonic() - began < 600

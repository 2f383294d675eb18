"""Jobs of several processes on the loopback: equal to one, killed and restarted, on fewer too."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.training.test_survival import (
    ROOT,
    assert_same_weights,
    finish,
    losses,
    saved_steps,
    start,
    wait_for_step,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TASKS = Path(__file__).with_name("user_tasks.py")


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
                _, errors = process.communicate(timeout=300)
                assert process.returncode != 0
                if victim:  # JAX's own service ends the others where the first one dies
                    last = errors.strip().splitlines()[-1]
                    assert last.startswith("jaxsr: another process of this job ended"), last
                    assert "Traceback" not in errors
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
    moved, unmoved = losses(out), losses(tmp_path / "whole")
    assert moved.keys() == unmoved.keys()
    for step, loss in unmoved.items():
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


@pytest.mark.parametrize(
    ("processes", "signalled", "number"),
    [
        (2, [0], signal.SIGTERM),
        (2, [1], signal.SIGTERM),
        (2, [0, 1], signal.SIGINT),
        (4, [2], signal.SIGHUP),
        (4, [0, 1, 2, 3], signal.SIGTERM),
    ],
)
def test_a_signal_to_one_or_to_all_saves_one_step(tmp_path, processes, signalled, number):
    options = ("--steps", 400, "--validate-every", 400)
    out = tmp_path / "stopped"
    job = launch(out, processes, *options)
    wait_for_step(job[0], out, 10)
    for index in signalled:
        job[index].send_signal(number)
    complete(job)
    (step,) = saved_steps(out)
    assert 10 <= step < 400
    last = max(losses(out))
    assert last == step
    # Bit-equal to a run that was told beforehand to end at that step.
    complete(launch(tmp_path / "planned", processes, "--steps", step, "--validate-every", 400))
    assert losses(out) == losses(tmp_path / "planned")
    until = step + 20
    resumed = ("--steps", until, "--validate-every", 400, "--resume")
    complete(launch(out, processes, *resumed))
    complete(launch(tmp_path / "planned", processes, *resumed))
    assert losses(out) == losses(tmp_path / "planned")
    assert_same_weights(out, tmp_path / "planned")


def test_processes_with_other_options_all_say_which(tmp_path):
    port, job = free_port(), []
    for index, rate in enumerate((0.1, 0.1, 0.2)):
        job.append(
            start(
                tmp_path / "run", "--mesh", 8, "--steps", 4, "--lr", rate,
                JAXSR_COORDINATOR=f"127.0.0.1:{port}", JAXSR_PROCESSES="3",
                JAXSR_PROCESS=str(index),
            )
        )  # fmt: skip
    for process in job:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 2, errors[-2000:]
        assert "process 2 on" in errors and "has lr 0.2, not 0.1" in errors
    assert not (tmp_path / "run").exists()


def test_a_mesh_without_a_device_of_each_process_is_refused(tmp_path):
    port = free_port()
    settings = {"JAXSR_COORDINATOR": f"127.0.0.1:{port}", "JAXSR_PROCESSES": "2"}
    job = [
        start(tmp_path / "run", "--mesh", 1, JAXSR_PROCESS=str(index), **settings)  # pyright: ignore
        for index in range(2)
    ]
    for process in job:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 2, errors[-2000:]
        assert "a mesh of 1 device has none of process 1" in errors and "use --mesh 2" in errors


@pytest.mark.parametrize(
    ("other", "differs", "named"),
    [
        ("code", "the code of this job's processes differ: process", "has fit_task "),
        ("variable", "the environment variables of this job's processes differ: process", "X64"),
        ("program", "the programs of this job's processes differ: process", "step of train"),
        ("weights", "the first weights of this job's processes differ: process", "network."),
    ],
)
def test_processes_with_other_code_stop_before_the_first_step(tmp_path, other, differs, named):
    port, job = free_port(), []
    for index in range(2):
        folder = tmp_path / f"host-{index}"
        folder.mkdir()
        loss = "l1_loss" if index and other == "code" else "mse_loss"
        source = TASKS.read_text().replace("mse_loss", loss)
        if other == "weights":  # of its own for each process, such as weights that a host has
            source += "\n\ntorch.manual_seed = lambda seed: torch.random.default_generator.seed()\n"
        if other == "program":
            source += (
                "\n\nimport os\n\nloss, scale = Fit.loss, 1 + int(os.environ['JAXSR_PROCESS'])\n"
                "Fit.loss = lambda self, *inputs: (loss(self, *inputs)[0] * scale, {})\n"
            )
        (folder / "fit_task.py").write_text(source)
        command = [sys.executable, "-m", "jaxsr.train", "fit_task:Fit", "--platform", "cpu"]
        job.append(
            subprocess.Popen(
                [*command, "--mesh", "2", "--out", str(tmp_path / "run")],
                cwd=folder,
                env=os.environ
                | {
                    "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
                    "JAXSR_COORDINATOR": f"127.0.0.1:{port}",
                    "JAXSR_PROCESSES": "2",
                    "JAXSR_PROCESS": str(index),
                    "JAX_ENABLE_X64": str(int(index and other == "variable")),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for process in job:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 2, errors[-2000:]
        assert differs in errors and named in errors
    if other != "program":
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loser", [0, 1])
def test_a_process_that_loses_its_data_ends_the_job(tmp_path, loser):
    pixels = np.random.default_rng(0).integers(0, 255, (80, 80, 3), dtype=np.uint8)
    folders = [tmp_path / "data-0", tmp_path / "data-1"]
    for folder in folders:
        folder.mkdir()
        for number in range(4):
            Image.fromarray(pixels + np.uint8(number)).save(folder / f"{number}.png")
    port, out = free_port(), tmp_path / "run"
    job = [
        start(
            out, "--mesh", 8, "--preset", "quick", "--steps", 4000, "--data", folder,
            "--cache-gb", 0, "--resident-gb", 0,
            JAXSR_COORDINATOR=f"127.0.0.1:{port}", JAXSR_PROCESSES="2", JAXSR_PROCESS=str(index),
        )
        for index, folder in enumerate(folders)
    ]  # fmt: skip
    wait_for_step(job[0], out, 5)
    for path in folders[loser].iterdir():
        path.unlink()
    try:
        _, errors = job[loser].communicate(timeout=120)
        assert job[loser].returncode == 2
        assert "no longer is: no such file or directory" in errors
        assert_follows(job[1 - loser], loser, "no longer is: no such file")
    finally:
        for process in job:
            process.kill()


def assert_follows(process: subprocess.Popen[str], loser: int, why: str) -> None:
    """It ends soon after another one failed, in one line that says why."""
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1, errors[-2000:]
    last = errors.strip().splitlines()[-1]
    assert last.startswith(f"jaxsr: process {loser} on ") and why in last, last
    assert "Traceback" not in errors and "distributed service detected" not in errors


@pytest.mark.parametrize("loser", [0, 1])
def test_a_process_that_cannot_write_a_checkpoint_ends_the_job(tmp_path, loser):
    out = tmp_path / "run"
    job = launch(out, 2, "--preset", "quick", "--steps", 4000, "--save-every", 20)
    wait_for_step(job[0], out, 1)
    resource.prlimit(job[loser].pid, resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
    try:
        _, errors = job[loser].communicate(timeout=120)
        assert job[loser].returncode == 2, errors[-2000:]
        assert errors.strip().splitlines()[-1].startswith("jaxsr: ")
        assert_follows(job[1 - loser], loser, "")
    finally:
        for process in job:
            process.kill()


@pytest.mark.parametrize("victim", [0, 1])
def test_ctrl_c_before_the_first_step_ends_the_job_without_an_abort(tmp_path, victim):
    job = launch(tmp_path / "run", 2, "--steps", 4000)
    while not (tmp_path / "run" / "run.lock").exists() and job[0].poll() is None:
        time.sleep(0.02)
    job[victim].send_signal(signal.SIGINT)
    try:
        for process in job:
            _, errors = process.communicate(timeout=60)
            assert process.returncode in (0, 2, 130), errors[-2000:]
            assert "distributed service detected" not in errors and "Traceback" not in errors
    finally:
        for process in job:
            process.kill()

"""Training runs killed at random moments: resumed, they end bit-equal to one left alone.

For each number of processes, runs of a small network are started again and again with
`--resume`, and meet SIGKILL or SIGTERM somewhere between their start and their end. A job's
processes are killed one after the other, up to half a second apart; SIGTERM goes to one of them or
to all. A run that reaches its end is compared with an uninterrupted one: every loss that was
logged, and every weight. Exit status 1 if any of them differs, or a job does not end as it must.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness.report import Report, ReportOptions, Row, run_benchmark
from jaxsr.errors import InputError
from jaxsr.interop.weights import read_weights

ROOT = Path(__file__).resolve().parents[2]
NETWORK = (
    "span", "--model.width", "8", "--model.depth", "2", "--batch", "8", "--crop", "32",
    "--ema", "0.9", "--log-every", "5", "--validation-px", "64", "--no-tensorboard",
    "--schedule", "constant", "--save-every", "10", "--validate-every", "100",
)  # fmt: skip
PLATFORMS = {
    "cpu": ("--platform", "cpu", "--mesh", "4"),
    "cuda": ("--platform", "cuda", "--mesh", "1", "--deterministic"),
}
"""Options of the runs by platform."""
_LONGEST_S = 400.0


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run."""

    processes: tuple[int, ...] = (1, 2, 4)
    """Processes of a job; devices are 4 in all."""
    kills: tuple[int, ...] = (60, 25, 15)
    """SIGKILLs for each of these."""
    terminations: tuple[int, ...] = (10, 6, 4)
    """SIGTERMs for each."""
    steps: int = 300
    """Steps of a run."""
    seed: int = 0
    """Seed for the moments."""
    platform: Literal["cpu", "cuda"] = "cpu"
    """Where the runs compute; with cuda, on one GPU and with --deterministic."""

    def __post_init__(self) -> None:
        if not len(self.processes) == len(self.kills) == len(self.terminations):
            raise InputError(
                f"kills={self.kills} and terminations={self.terminations} need a number for each "
                f"of processes={self.processes}"
            )


class Job:
    """The processes of one run.

    Args:
      out: the run's folder.
      processes: how many.
      steps: of the run.
      platform: one of `PLATFORMS`.
    """

    def __init__(self, out: Path, processes: int, steps: int, platform: str = "cpu") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._out = out
        # Files, for nobody reads pipes while the job runs.
        self._logs = [out.parent / f"{out.name}-{index}.log" for index in range(processes)]
        command = [sys.executable, "-m", "jaxsr.train", *NETWORK, *PLATFORMS[platform]]
        command += ["--out", str(out), "--steps", str(steps), "--resume"]
        self._started: list[subprocess.Popen[bytes]] = []
        for index, path in enumerate(self._logs):
            environment = {**os.environ, "XDG_CACHE_HOME": str(out.parent / "cache")}
            if processes > 1:
                environment |= {
                    "JAXSR_COORDINATOR": f"127.0.0.1:{port}",
                    "JAXSR_PROCESSES": str(processes),
                    "JAXSR_PROCESS": str(index),
                }
            with path.open("wb") as log:
                self._started.append(
                    subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
                )

    @property
    def is_over(self) -> bool:
        return all(process.poll() is not None for process in self._started)

    def wait_for_step(self, step: int) -> None:
        """Returns when the step is logged, or the job is over."""
        while not self.is_over and last_step(self._out) < step:
            time.sleep(0.02)

    def kill(self, rng: random.Random) -> None:
        """SIGKILL to every process, in any order."""
        for process in rng.sample(self._started, len(self._started)):
            process.kill()
            time.sleep(rng.choice((0.0, rng.random() / 2)))
        for process in self._started:
            process.wait()

    def terminate(self, rng: random.Random) -> list[int]:
        """SIGTERM to one process or to all; returns the exit statuses."""
        victims = self._started if rng.random() < 0.5 else [rng.choice(self._started)]
        for process in victims:
            process.terminate()
        return self.wait()

    def wait(self) -> list[int]:
        """The exit statuses, once the job has ended by itself or been too slow to."""
        until = time.monotonic() + _LONGEST_S
        try:
            return [p.wait(max(until - time.monotonic(), 0.1)) for p in self._started]
        except subprocess.TimeoutExpired:
            self.kill(random.Random(0))
            return [-int(signal.SIGKILL)] * len(self._started)

    def log(self) -> str:
        """The end of what the processes printed."""
        return "\n".join(path.read_text(errors="replace")[-600:] for path in self._logs)


def last_step(out: Path) -> int:
    """The last step that a run has logged; 0 before the first."""
    return max(losses(out), default=0)


def losses(out: Path) -> dict[int, float]:
    """The loss of every step that a run has logged."""
    path, logged = out / "metrics.jsonl", {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:  # being written
            continue
        if "generator/loss" in record:
            logged[record["step"]] = record["generator/loss"]
    return logged


def differences(out: Path, reference: Path) -> list[str]:
    """Names of weights and steps in which a run differs from an uninterrupted one."""
    reference_losses, run_losses = losses(reference), losses(out)
    names = [
        f"step {step}" for step, loss in reference_losses.items() if run_losses.get(step) != loss
    ]
    weights, reference_weights = (
        read_weights(run / "generator.safetensors")[0] for run in (out, reference)
    )
    return names + [n for n, w in reference_weights.items() if not (weights[n] == w).all()]


class _Campaign:
    """Runs of one number of processes under fire."""

    def __init__(self, folder: Path, processes: int, options: Options) -> None:
        self.folder, self.processes, self.steps = folder, processes, options.steps
        self.platform = options.platform
        self.rng = random.Random(options.seed + processes)
        self.compared, self.wrong = 0, []
        self.number = 0
        self.reference = folder / "reference"
        job = self._start(self.reference)
        if any(statuses := job.wait()):
            raise InputError(f"a run left alone ended with {statuses}: {job.log()}")

    def _start(self, out: Path) -> Job:
        return Job(out, self.processes, self.steps, self.platform)

    @property
    def out(self) -> Path:
        return self.folder / f"run-{self.number}"

    def strike(self, number: signal.Signals) -> None:
        """Starts or resumes a run, and ends it at a random moment."""
        while True:
            job, done = self._start(self.out), last_step(self.out)
            # SIGTERM before the first step ends a process that has nothing to save.
            if number == signal.SIGTERM or self.rng.random() < 0.7:
                job.wait_for_step(done + self.rng.randrange(5, self.steps // 3))
                time.sleep(self.rng.random() / 4)
            else:
                time.sleep(self.rng.uniform(0.2, 8))
            if job.is_over:  # it came to its end before the moment
                self._compare(job)
                continue
            if number == signal.SIGKILL:
                job.kill(self.rng)
            elif any(statuses := job.terminate(self.rng)):
                self.wrong.append(f"SIGTERM ended with {statuses}: {job.log()}")
            return

    def finish(self) -> None:
        """Lets the current run go to its end and compares it."""
        self._compare(self._start(self.out))

    def _compare(self, job: Job) -> None:
        if any(statuses := job.wait()):
            self.wrong.append(f"a resumed run ended with {statuses}: {job.log()}")
        elif names := differences(self.out, self.reference):
            self.wrong.append(f"{len(names)} differ: {', '.join(names[:3])}")
        self.compared += 1
        self.number += 1


def measure_processes(processes: int, kills: int, terminations: int, options: Options) -> Row:
    """Strikes runs of so many processes; returns the row."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        campaign = _Campaign(Path(folder), processes, options)
        strikes = [signal.SIGKILL] * kills + [signal.SIGTERM] * terminations
        campaign.rng.shuffle(strikes)
        for number in strikes:
            campaign.strike(number)
            print(
                f"{processes} processes: {number.name}, step {last_step(campaign.out)}", flush=True
            )
        campaign.finish()
    row: dict[str, Any] = {
        "processes": processes,
        "kills": kills,
        "terminations": terminations,
        "runs_compared": campaign.compared,
        "wrong": campaign.wrong,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    return row


def measure(options: Options) -> None:
    """Every number of processes in turn."""
    report = Report("kills", options)
    wrong = 0
    numbers = zip(options.processes, options.kills, options.terminations, strict=True)
    for processes, kills, terminations in numbers:
        row = measure_processes(processes, kills, terminations, options)
        report.show(row)
        wrong += len(row["wrong"])
    if wrong:
        raise InputError(f"{wrong} runs were not resumed bit-equal or did not end as they must")


if __name__ == "__main__":
    run_benchmark(measure, Options)

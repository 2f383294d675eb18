"""Training steps of jaxsr and of plain torch, raced on one machine.

Every contender trains the same objective with the same optimiser and updates. Each lives in a
process of its own, stopped while another has its turn: idle threads of torch.compile slow others by
half. Every round times a few steps of each, waiting for the device inside the timed region. All
have the allocator settings of jaxsr's commands, unless `--allocator own` leaves torch with what it
gets when it is run as it comes. Reported are the median and spread over rounds, the ratio to the
best torch, the time to the first finished step with an empty and with a filled compilation cache,
and the process's peak memory.
"""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from _timing import surroundings

from jaxsr.runtime.allocator import with_tunables

CONTENDERS = ("jaxsr", "torch eager", "torch channels_last", "torch.compile")

Told = Mapping[str, Any]
"""The options as the child process has them, with `name`, the contender's, and `cache`."""


@dataclass(frozen=True, kw_only=True)
class RaceOptions:
    """What every race of steps is told."""

    batch: int
    """Images per step."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the networks compute in, on both sides."""
    platform: Literal["cpu", "cuda"] = "cpu"
    """Where both sides compute."""
    mesh: int = 1
    """Devices that jaxsr's step is split over; a CPU simulates them, best one for each core."""
    allocator: Literal["kept", "own"] = "kept"
    """Every contender keeps freed memory in huge pages (`jaxsr.runtime.allocator`), or,
    as when torch is run as it comes, only jaxsr."""
    lane_folding: Literal["auto", "off"] = "auto"
    """How jaxsr holds images: auto puts channels last on CPUs, off has them as torch does."""
    rounds: int = 7
    """Turns of each contender."""
    steps: int = 3
    """Steps timed in one turn."""
    contenders: tuple[str, ...] = CONTENDERS
    """Who takes part."""
    out: Path | None = None
    """JSON to write. Default: only printed."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The step to race."""

    objective: Any
    """Networks and losses, see `jaxsr.interop.train.objective`."""
    phase: str
    """Phase of the objective."""
    exported: str
    """Its main network."""
    torch_batch: Mapping[str, Any]
    """Prepared NumPy arrays."""
    jax_batch: Callable[[Any], Mapping[str, Any]]
    """The batch on a mesh as jaxsr's step takes it."""
    prepare: Callable[[Any, Any], Any] = lambda batch, key: batch
    """What jaxsr's step does with it first."""


def race_steps(
    benchmark: str,
    description: str,
    options_class: type[RaceOptions],
    workload: Callable[[Told], Workload],
    **notes: Any,
) -> None:
    """The command line of a race: parent and, with `--child`, contender.

    Args:
      benchmark: its name in the JSON.
      description: for `--help`.
      options_class: what to ask.
      workload: builds the step in a contender's process.
      **notes: further entries of the JSON.
    """
    if "--child" in sys.argv:
        _child(json.loads(sys.argv[-1]), workload)
        return
    import tyro

    options = tyro.cli(options_class, description=description)
    where = surroundings()
    with tempfile.TemporaryDirectory() as cache:
        cold = _start("jaxsr", options, cache) if "jaxsr" in options.contenders else None
        first_cold = cold.ready()["first_step_s"] if cold else None
        if cold:
            cold.stop()
        players: dict[str, _Player] = {}
        starts = {}
        times: dict[str, list[float]] = {name: [] for name in options.contenders}
        try:
            for name in options.contenders:
                players[name] = _start(name, options, cache)
                starts[name] = players[name].ready()
            for _ in range(options.rounds):
                for name, player in players.items():
                    times[name].append(player.turn())
            ends = {name: player.stop() for name, player in players.items()}
        finally:
            # Who is stopped would wait for ever, with all its memory.
            for player in players.values():
                player.process.kill()
    rows = []
    for name in players:
        step = median(times[name])
        row = {
            "contender": name,
            "images_per_s": options.batch / step,
            "step_ms_median": 1e3 * step,
            "step_ms_min": 1e3 * min(times[name]),
            "step_ms_max": 1e3 * max(times[name]),
            "first_step_s": starts[name]["first_step_s"],
            "loss_after": ends[name]["loss"],
            "peak_host_mib": ends[name]["peak_host_mib"],
            "peak_device_mib": ends[name]["peak_device_mib"],
        }
        if name == "jaxsr":
            row["first_step_cold_s"] = first_cold
        rows.append(row)
    torch_rows = [r["images_per_s"] for r in rows if r["contender"] != "jaxsr"]
    for row in rows:
        row["ratio_to_best_torch"] = row["images_per_s"] / max(torch_rows) if torch_rows else None
    report = {
        "benchmark": benchmark,
        "options": dataclasses.asdict(options),
        **where,
        "device": starts[options.contenders[0]]["device"],
        "torch_threads": starts[options.contenders[0]]["torch_threads"],
        "load_average_after": os.getloadavg(),
        **notes,
        "rows": rows,
    }
    _print(rows)
    text = json.dumps(report, indent=1, default=str)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    print(json.dumps({"benchmark": benchmark, "rows": rows}, default=str))


class _Player:
    """The parent's end of a contender: one line of JSON each way."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a contender died: {self.process.args}")
        return json.loads(line)

    def _write(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def ready(self) -> dict[str, Any]:
        found = self._read()
        self.process.send_signal(signal.SIGSTOP)
        return found

    def turn(self) -> float:
        self.process.send_signal(signal.SIGCONT)
        self._write("turn")
        seconds = self._read()["step_s"]
        self.process.send_signal(signal.SIGSTOP)
        return seconds

    def stop(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGCONT)
        self._write("stop")
        found = self._read()
        self.process.wait()
        return found


def _start(name: str, options: RaceOptions, cache: str) -> _Player:
    told = json.dumps({"name": name, "cache": cache, **dataclasses.asdict(options)}, default=str)
    command = [sys.executable, sys.argv[0], "--child", told]
    keeps = name == "jaxsr" or options.allocator == "kept"
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=with_tunables(dict(os.environ)) if keeps else None,
    )
    return _Player(process)


def _child(told: dict[str, Any], workload: Callable[[Told], Workload]) -> None:
    """Sets a contender up, then steps whenever the parent says so."""
    began = time.perf_counter()
    contender = _jax_contender if told["name"] == "jaxsr" else _torch_contender
    run, loss = contender(told, workload)
    run(1)
    _say({"first_step_s": time.perf_counter() - began, **_device(told)})
    run(1)  # the first step may have allocated what later ones reuse
    for word in sys.stdin:
        if word.strip() == "stop":
            break
        start = time.perf_counter()
        run(told["steps"])
        _say({"step_s": (time.perf_counter() - start) / told["steps"]})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    _say({"loss": loss(), "peak_host_mib": round(peak), "peak_device_mib": _device_peak(told)})


def _say(message: dict[str, Any]) -> None:
    """One line to the parent."""
    print(json.dumps(message), flush=True)


def _jax_contender(told: dict[str, Any], workload: Callable[[Told], Workload]):
    import jax

    from jaxsr.interop import mesh as meshes
    from jaxsr.interop.train.optimizers import OptimizerConfig, make_optimizer
    from jaxsr.interop.train.step import StepConfig, TrainStep, convert, init_state

    jax.config.update("jax_platforms", told["platform"])
    if told["platform"] == "cpu":
        jax.config.update("jax_num_cpu_devices", told["mesh"])
    jax.config.update("jax_compilation_cache_dir", told["cache"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    work = workload(told)
    phase = work.objective.phase(work.phase)
    optimizers = {p.network: make_optimizer(OptimizerConfig(), 1000) for p in phase.players}
    config = StepConfig(dtype=told["dtype"], lane_folding=told["lane_folding"])
    model = convert(work.objective, config)
    mesh = meshes.make_mesh(told["mesh"])
    state = init_state(model, optimizers, exported=work.exported, seed=0, ema=False)
    state = meshes.place(state, meshes.tree_shardings(state, mesh))
    batch = work.jax_batch(mesh)
    step = jax.jit(
        TrainStep(model, phase, optimizers, prepare=work.prepare, mesh=mesh, config=config),
        donate_argnums=0,
    )
    metrics: dict[str, Any] = {}

    def run(steps: int) -> None:
        nonlocal state, metrics
        for _ in range(steps):
            state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))

    return run, lambda: float(metrics[f"{work.exported}/loss"])


def _torch_contender(told: dict[str, Any], workload: Callable[[Told], Workload]):
    import torch

    from jaxsr.interop.train.optimizers import OptimizerConfig
    from jaxsr.interop.train.step import StepConfig
    from jaxsr.interop.train.torch_step import TorchStep

    work = workload(told)
    networks = [player.network for player in work.objective.phase(work.phase).players]
    stepper = TorchStep(
        work.objective,
        {n: OptimizerConfig() for n in networks},
        dict.fromkeys(networks, 1000),
        exported=work.exported,
        config=StepConfig(dtype=told["dtype"]),
        device=told["platform"],
        compiled=told["name"] == "torch.compile",
        channels_last=told["name"] == "torch channels_last",
        check_finite=False,  # it would wait for the device at every step
        norms=False,
    )
    batch = {n: stepper.place(rows) for n, rows in work.torch_batch.items()}
    metrics: dict[str, Any] = {}

    def run(steps: int) -> None:
        nonlocal metrics
        for _ in range(steps):
            metrics = stepper.train_step(work.phase, batch)
        if told["platform"] == "cuda":
            torch.cuda.synchronize()

    return run, lambda: float(metrics[f"{work.exported}/loss"])


def _device(told: dict[str, Any]) -> dict[str, Any]:
    import torch
    from torch import cuda

    device = cuda.get_device_name() if told["platform"] == "cuda" and cuda.is_available() else "cpu"
    return {"device": device, "torch_threads": torch.get_num_threads()}


def _device_peak(told: dict[str, Any]) -> int | None:
    if told["platform"] != "cuda":
        return None
    if told["name"] == "jaxsr":
        import jax

        stats = jax.local_devices()[0].memory_stats() or {}
        return round(stats.get("peak_bytes_in_use", 0) / 2**20)
    import torch

    return round(torch.cuda.max_memory_allocated() / 2**20)


def _print(rows: list[dict[str, Any]]) -> None:
    print(f"{'contender':<20}{'images/s':>10}{'ms/step':>10}{'ratio':>8}{'first s':>9}{'MiB':>7}")
    for row in rows:
        ratio = row["ratio_to_best_torch"]
        print(
            f"{row['contender']:<20}{row['images_per_s']:>10.2f}{row['step_ms_median']:>10.1f}"
            f"{ratio if ratio is None else round(ratio, 2)!s:>8}{row['first_step_s']:>9.1f}"
            f"{row['peak_device_mib'] or row['peak_host_mib']:>7}"
        )

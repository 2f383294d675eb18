"""Training steps of jaxsr and of plain torch, raced on one machine.

Every contender trains the same objective with the same optimiser and updates, in a process of its
own. A round times a few steps of each, after one that is not timed, waiting for the device inside
the timed region.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from benchmarks.harness.gpu_kernels import kernel_times
from benchmarks.harness.processes import Steps, Worker, race_workers
from benchmarks.harness.report import Report, ReportOptions, Row

if TYPE_CHECKING:
    from jaxsr.interop.aot.compile import Ahead
    from jaxsr.interop.train.objective import Objective

CONTENDERS = ("jaxsr", "torch eager", "torch channels_last", "torch.compile")
COMPILED_LAST = "torch.compile, channels_last"
MAX_AUTOTUNE = "torch.compile max-autotune, channels_last"
OptionsT = TypeVar("OptionsT", bound="RaceOptions")


@dataclass(frozen=True, kw_only=True)
class RaceOptions(ReportOptions):
    """Options of every race of steps."""

    batch: int
    """Images per step."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype in which the networks compute, on both sides."""
    platform: Literal["cpu", "cuda"] = "cpu"
    """Where both sides compute."""
    mesh: int = 1
    """Devices that jaxsr's step is split over; a CPU simulates them, best one for each core."""
    lane_folding: Literal["auto", "off"] = "auto"
    """Layout of jaxsr's images: auto puts channels last on CPUs, off keeps torch's."""
    rounds: int = 7
    """Turns of each contender."""
    steps: int = 3
    """Steps timed in one turn."""
    contenders: tuple[str, ...] = CONTENDERS
    """Who takes part; also "torch.compile, channels_last" and "torch.compile max-autotune,
    channels_last"."""
    cold_start: bool = True
    """Start jaxsr twice, to time its first step without and with its programs in the cache."""
    longest_start_s: float | None = None
    """A contender whose first step takes longer is left out. Default: none is."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The step to race."""

    objective: "Objective"
    """Networks and losses."""
    phase: str
    """Phase of the objective."""
    exported: str
    """Its main network."""
    torch_batch: Mapping[str, Any]
    """Prepared NumPy arrays."""
    jax_batch: Callable[[Any], Mapping[str, Any]]
    """The batch on a mesh as jaxsr's step takes it."""
    prepare: Callable[[Any, Any], Any] = lambda batch, key: batch
    """First part of jaxsr's step: makes its batch from the one on the mesh."""


def race_steps(
    benchmark: str, options: OptionsT, workload: Callable[[OptionsT], Workload], **notes: Any
) -> None:
    """Times every contender's steps, prints them, and writes the report.

    Args:
      benchmark: its name in the JSON.
      options: of the race.
      workload: builds the step in a contender's process.
      **notes: further entries of the JSON.
    """
    report = Report(benchmark, options, **notes)
    for row in race_rows(options, workload):
        report.add(row)
        print({name: value for name, value in row.items() if name != "kinds"}, flush=True)


def race_rows(options: OptionsT, workload: Callable[[OptionsT], Workload]) -> list[Row]:
    """A row for each contender; one of a contender that failed has its `error` and no figures.

    Args:
      options: of the race.
      workload: builds the step in a contender's process.
    """
    with tempfile.TemporaryDirectory() as cache:
        start = partial(_start, options=options, workload=workload, cache=cache)
        first_cold_s = None
        if options.cold_start and "jaxsr" in options.contenders:
            cold = start("jaxsr")
            first_cold_s = cold.ready["first_step_s"]
            cold.kill()
        # A GPU's host has processors for all compilers at once.
        waits = options.platform == "cpu"
        starts = {name: partial(start, name, waits=waits) for name in options.contenders}
        raced, failures = race_workers(starts, rounds=options.rounds)
    rows = []
    for name, result in raced.items():
        seconds = [turn["step_s"] for turn in result.turns]
        row = {
            "contender": name,
            "images_per_s": options.batch / median(seconds),
            "step_ms_median": 1e3 * median(seconds),
            "step_ms_min": 1e3 * min(seconds),
            "step_ms_max": 1e3 * max(seconds),
            **result.ready,
            **result.end,
        }
        rows.append(row | ({"first_step_cold_s": first_cold_s} if name == "jaxsr" else {}))
    of_torch = [row["images_per_s"] for row in rows if row["contender"] != "jaxsr"]
    for row in rows:
        row["ratio_to_best_torch"] = row["images_per_s"] / max(of_torch) if of_torch else None
    return rows + [{"contender": name, "error": text} for name, text in failures.items()]


def _start(
    name: str, *, options: RaceOptions, workload: Any, cache: str, waits: bool = True
) -> Worker:
    return Worker(
        _contender,
        (name, options, workload, cache),
        command="train" if name == "jaxsr" else "",
        longest_start_s=options.longest_start_s,
        waits=waits,
    )


def _contender(
    name: str, options: OptionsT, workload: Callable[[OptionsT], Workload], cache: str
) -> Steps:
    start = time.perf_counter()
    # Of this race alone: torch.compile would find what an earlier one compiled.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/inductor"
    program_mib: Callable[[], Row] = dict
    if name == "jaxsr":
        run, loss, program_mib = _jax_contender(options, workload, cache)
    else:
        run, loss = _torch_contender(name, options, workload)
    run(1)
    goes_on = yield {"first_step_s": time.perf_counter() - start, **_device(options)}
    while goes_on:
        # Training does not pause. After the other contenders' turns a step finds caches cold, and
        # what was freed since no longer in memory: a virtual machine's host may have taken it.
        run(1)
        start = time.perf_counter()
        run(options.steps)
        goes_on = yield {"step_s": (time.perf_counter() - start) / options.steps}
    end = {"loss_after": loss(), "peak_device_mib": _device_peak(name, options)}
    framework = "jax" if name == "jaxsr" else "torch"
    yield end | program_mib() | kernel_times(framework, lambda: run(options.steps), options.steps)


def _jax_contender(
    options: OptionsT, workload: Callable[[OptionsT], Workload], cache: str
) -> tuple[Callable[[int], None], Callable[[], float], Callable[[], Row]]:
    import jax

    from jaxsr.interop import mesh as meshes
    from jaxsr.runtime.setup import configure_jax, share_gpu_memory

    jax.config.update("jax_platforms", options.platform)
    if options.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", options.mesh)
    share_gpu_memory()
    configure_jax(Path(cache), least_compile_s=0)
    work = workload(options)
    mesh = meshes.make_mesh(options.mesh)
    step, state = _jax_step(options, work, mesh)
    state = meshes.place(state, meshes.tree_shardings(state, mesh))
    batch = work.jax_batch(mesh)
    metrics: dict[str, Any] = {}

    def run(steps: int) -> None:
        nonlocal state, metrics
        for _ in range(steps):
            state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))

    def program_mib() -> Row:
        """Without what XLA takes to try kernels, which is in the device's peak."""
        if options.platform == "cpu":
            return {}
        sizes = step.lower(state, batch).compile().memory_analysis()
        results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        needed = sizes.argument_size_in_bytes + results + sizes.temp_size_in_bytes
        return {"program_mib": round(needed / 2**20)}

    return run, lambda: float(metrics[f"{work.exported}/loss"]), program_mib


def _jax_step(options: RaceOptions, work: Workload, mesh: Any) -> tuple[Any, Any]:
    """The jitted step on a mesh, and the state before the first one, on the default device."""
    import jax

    from jaxsr.interop.train.optimizers import OptimizerConfig, make_optimizer
    from jaxsr.interop.train.step import StepConfig, TrainStep, convert, init_state

    phase = work.objective.phase(work.phase)
    optimizers = {p.network: make_optimizer(OptimizerConfig(), 1000) for p in phase.players}
    config = StepConfig(dtype=options.dtype, lane_folding=options.lane_folding)
    model = convert(work.objective, config, device=mesh.devices.flat[0])
    state = init_state(model, optimizers, exported=work.exported, seed=0, ema=False)
    step = TrainStep(model, phase, optimizers, prepare=work.prepare, mesh=mesh, config=config)
    return jax.jit(step, donate_argnums=0), state


def compile_step(
    options: OptionsT, workload: Callable[[OptionsT], Workload], target: str
) -> "Ahead":
    """jaxsr's step compiled ahead of time; JAX computes on the CPU in this process.

    Args:
      options: of the race.
      workload: builds the step.
      target: one device, such as `h200:1`.
    """
    from jaxsr.interop import mesh as meshes
    from jaxsr.interop.aot.compile import abstract, compile_ahead
    from jaxsr.interop.aot.topology import load_topology

    topology = load_topology(target)
    mesh = meshes.make_mesh(1, topology.devices)
    work = workload(options)
    step, state = _jax_step(options, work, mesh)
    batch = work.jax_batch(meshes.make_mesh(1))
    everywhere = meshes.replicated(mesh)
    arguments = abstract(state, everywhere), abstract(batch, everywhere)
    return compile_ahead(step, arguments, topology, name=work.phase, training=True)


def _torch_contender(
    name: str, options: OptionsT, workload: Callable[[OptionsT], Workload]
) -> tuple[Callable[[int], None], Callable[[], float]]:
    import torch

    from jaxsr.interop.train.optimizers import OptimizerConfig
    from jaxsr.interop.train.step import StepConfig
    from jaxsr.interop.train.torch_step import TorchStep

    work = workload(options)
    networks = [player.network for player in work.objective.phase(work.phase).players]
    stepper = TorchStep(
        work.objective,
        {n: OptimizerConfig() for n in networks},
        dict.fromkeys(networks, 1000),
        exported=work.exported,
        config=StepConfig(dtype=options.dtype),
        device=options.platform,
        compiled="max-autotune" if name == MAX_AUTOTUNE else name.startswith("torch.compile"),
        channels_last="channels_last" in name,
        check_finite=False,  # it would wait for the device at every step
        norms=False,
    )
    batch = {n: stepper.place(rows) for n, rows in work.torch_batch.items()}
    metrics: dict[str, Any] = {}

    def run(steps: int) -> None:
        nonlocal metrics
        for _ in range(steps):
            metrics = stepper.train_step(work.phase, batch)
        if options.platform == "cuda":
            torch.cuda.synchronize()

    return run, lambda: float(metrics[f"{work.exported}/loss"])


def _device(options: RaceOptions) -> dict[str, Any]:
    import torch
    from torch import cuda

    device = cuda.get_device_name() if options.platform == "cuda" and cuda.is_available() else "cpu"
    return {"device": device, "torch_threads": torch.get_num_threads()}


def _device_peak(name: str, options: RaceOptions) -> int | None:
    if options.platform != "cuda":
        return None
    if name == "jaxsr":
        import jax

        stats = jax.local_devices()[0].memory_stats() or {}
        return round(stats.get("peak_bytes_in_use", 0) / 2**20)
    import torch

    return round(torch.cuda.max_memory_allocated() / 2**20)

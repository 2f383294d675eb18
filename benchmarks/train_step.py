"""Images per second of one Fast-SRGAN training step: jaxsr's jitted step against plain torch.

    python benchmarks/train_step.py [--platform cuda] [--dtype bfloat16] [--phase adversarial]

Every contender trains the same objective on the same prepared batch (degradation is left out on
both sides) with the same optimiser and updates. Each lives in a process of its own, so that one
framework's idle threads don't slow the other, and they take turns: every round times a few steps
of each, waiting for the device inside the timed region. Reported are the median and spread over
rounds, the ratio to the best torch, the time to the first finished step with an empty and with a
filled compilation cache, and the process's peak memory. Shapes, versions, device and commit stand
in the JSON.
"""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

CONTENDERS = ("jaxsr", "torch eager", "torch channels_last", "torch.compile")
SLOW_TO_START_S = 1200


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    phase: Literal["pretrain", "adversarial"] = "pretrain"
    """Phase of the step; the adversarial one has both players and no perceptual loss."""
    width: int = 64
    """Feature channels of the generator."""
    depth: int = 8
    """Blocks of the generator."""
    norm: Literal["instance", "batch", "none"] = "instance"
    """Normalisation of both networks."""
    batch: int = 8
    """Images per step."""
    crop: int = 96
    """High-resolution side in pixels; the input is a quarter of it."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the networks compute in, on both sides."""
    platform: Literal["cpu", "cuda"] = "cpu"
    """Where both sides compute."""
    rounds: int = 7
    """Turns of each contender."""
    steps: int = 3
    """Steps timed in one turn."""
    contenders: tuple[str, ...] = CONTENDERS
    """Who takes part."""
    out: Path | None = None
    """JSON to write. Default: only printed."""


def main() -> None:
    """Runs the contest and prints the table."""
    import tyro

    options = tyro.cli(Options, description=(__doc__ or "").splitlines()[0])
    with tempfile.TemporaryDirectory() as cache:
        cold = _start("jaxsr", options, cache) if "jaxsr" in options.contenders else None
        first_cold = cold.ready()["first_step_s"] if cold else None
        if cold:
            cold.stop()
        players = {name: _start(name, options, cache) for name in options.contenders}
        starts = {name: player.ready() for name, player in players.items()}
        times: dict[str, list[float]] = {name: [] for name in players}
        for _ in range(options.rounds):
            for name, player in players.items():
                times[name].append(player.turn())
        ends = {name: player.stop() for name, player in players.items()}
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
        "benchmark": "train_step",
        "options": dataclasses.asdict(options),
        "machine": starts[options.contenders[0]]["machine"],
        "commit": _commit(),
        "load_average": os.getloadavg(),
        "rows": rows,
    }
    _print(rows)
    text = json.dumps(report, indent=1, default=str)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    print(json.dumps({"benchmark": "train_step", "rows": rows}, default=str))


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
        return self._read()

    def turn(self) -> float:
        self._write("turn")
        return self._read()["step_s"]

    def stop(self) -> dict[str, Any]:
        self._write("stop")
        found = self._read()
        self.process.wait()
        return found


def _start(name: str, options: Options, cache: str) -> _Player:
    told = json.dumps({"name": name, "cache": cache, **dataclasses.asdict(options)}, default=str)
    command = [sys.executable, __file__, "--child", told]
    player = _Player(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    return player


def _child(told: dict[str, Any]) -> None:
    """Sets a contender up, then steps whenever the parent says so."""
    began = time.perf_counter()
    run, loss = (_jax_contender if told["name"] == "jaxsr" else _torch_contender)(told)
    run(1)
    say({"first_step_s": time.perf_counter() - began, "machine": _machine(told)})
    run(1)  # the first step may have allocated what later ones reuse
    for word in sys.stdin:
        if word.strip() == "stop":
            break
        start = time.perf_counter()
        run(told["steps"])
        say({"step_s": (time.perf_counter() - start) / told["steps"]})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    say({"loss": loss(), "peak_host_mib": round(peak), "peak_device_mib": _device_peak(told)})


def say(message: dict[str, Any]) -> None:
    """One line to the parent."""
    print(json.dumps(message), flush=True)


def _objective(told: dict[str, Any]) -> Any:
    import torch

    from jaxsr.models.fast_srgan.config import FastSRGANConfig
    from jaxsr.models.fast_srgan.objective import build_objective

    torch.manual_seed(0)
    config = FastSRGANConfig(
        width=told["width"],
        depth=told["depth"],
        norm=told["norm"],
        discriminator_norm=told["norm"],
        perceptual_weight=0.0,
        pixel_weight=1.0,
    )
    return build_objective(config, phases=[told["phase"]])


def _batch(told: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    rows, side = told["batch"], told["crop"]
    batch = {
        "low": rng.uniform(-1, 1, (rows, 3, side // 4, side // 4)),
        "high": rng.uniform(-1, 1, (rows, 3, side, side)),
    }
    if told["phase"] == "adversarial":
        for name in ("label_real", "label_fake", "label_generator"):
            batch[name] = rng.uniform(0, 1, (rows, 1, 1, 1))
    return {name: array.astype(np.float32) for name, array in batch.items()}


def _jax_contender(told: dict[str, Any]):
    import jax

    from jaxsr.interop import mesh as meshes
    from jaxsr.interop.optimizers import OptimizerConfig, make_optimizer
    from jaxsr.interop.step import StepConfig, convert, init_state, make_train_step

    jax.config.update("jax_platforms", told["platform"])
    jax.config.update("jax_compilation_cache_dir", told["cache"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    objective = _objective(told)
    phase = objective.phase(told["phase"])
    networks = [player.network for player in phase.players]
    optimizers = {n: make_optimizer(OptimizerConfig(), 1000) for n in networks}
    config = StepConfig(compute_dtype=told["dtype"])
    model = convert(objective, config)
    mesh = meshes.make_mesh(1)
    state = init_state(model, optimizers, exported="generator", seed=0, ema=False)
    state = meshes.place(state, meshes.tree_shardings(state, mesh))
    batch = meshes.place_batch(_batch(told), mesh)
    step = jax.jit(
        make_train_step(
            model, phase, optimizers, prepare=lambda batch, key: batch, mesh=mesh, config=config
        ),
        donate_argnums=0,
    )
    metrics: dict[str, Any] = {}

    def run(steps: int) -> None:
        nonlocal state, metrics
        for _ in range(steps):
            state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))

    return run, lambda: float(metrics["generator/loss"])


def _torch_contender(told: dict[str, Any]):
    import torch

    from jaxsr.interop.optimizers import OptimizerConfig
    from jaxsr.interop.step import StepConfig
    from jaxsr.interop.torch_engine import TorchStep

    objective = _objective(told)
    networks = [player.network for player in objective.phase(told["phase"]).players]
    stepper = TorchStep(
        objective,
        {n: OptimizerConfig() for n in networks},
        dict.fromkeys(networks, 1000),
        exported="generator",
        config=StepConfig(compute_dtype=told["dtype"]),
        device=told["platform"],
        compiled=told["name"] == "torch.compile",
        channels_last=told["name"] == "torch channels_last",
        check_finite=False,  # it would wait for the device at every step
    )
    batch = {n: stepper.place(rows) for n, rows in _batch(told).items()}
    metrics: dict[str, Any] = {}

    def run(steps: int) -> None:
        nonlocal metrics
        for _ in range(steps):
            metrics = stepper.train_step(told["phase"], batch)
        if told["platform"] == "cuda":
            torch.cuda.synchronize()

    return run, lambda: float(metrics["generator/loss"])


def _machine(told: dict[str, Any]) -> dict[str, Any]:
    import jax
    import torch
    from torch import cuda

    device = cuda.get_device_name() if told["platform"] == "cuda" and cuda.is_available() else "cpu"
    return {
        "device": device,
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "jax": jax.__version__,
        "python": sys.version.split()[0],
    }


def _device_peak(told: dict[str, Any]) -> int | None:
    if told["platform"] != "cuda":
        return None
    if told["name"] == "jaxsr":
        import jax

        stats = jax.local_devices()[0].memory_stats() or {}
        return round(stats.get("peak_bytes_in_use", 0) / 2**20)
    import torch

    return round(torch.cuda.max_memory_allocated() / 2**20)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _print(rows: list[dict[str, Any]]) -> None:
    print(f"{'contender':<20}{'images/s':>10}{'ms/step':>10}{'ratio':>8}{'first s':>9}{'MiB':>7}")
    for row in rows:
        ratio = row["ratio_to_best_torch"]
        print(
            f"{row['contender']:<20}{row['images_per_s']:>10.2f}{row['step_ms_median']:>10.1f}"
            f"{ratio if ratio is None else round(ratio, 2)!s:>8}{row['first_step_s']:>9.1f}"
            f"{row['peak_device_mib'] or row['peak_host_mib']:>7}"
        )


if __name__ == "__main__":
    if "--child" in sys.argv:
        _child(json.loads(sys.argv[-1]))
    else:
        main()

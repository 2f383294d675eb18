"""Parts of `benchmarks.gpu` that run commands: killed and resumed, repeated, compiled ahead."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu.parts import WITHOUT_DEVICE, Setting
from benchmarks.harness.processes import Steps, Worker
from benchmarks.harness.report import Row
from jaxsr.errors import InputError

_TF32_BOUND = 8 * 2.0**-10


def killed(setting: Setting) -> Iterator[Row]:
    """A training run killed and resumed, against one left alone."""
    from benchmarks.reliability.kills import Options, measure_processes

    steps = 60 if setting.quick else 150
    terminations = 0 if setting.quick else 1
    options = Options(platform=setting.device, steps=steps)
    row = measure_processes(1, 1, terminations, options)
    yield {"name": "killed and resumed", "ok": not row["wrong"], "steps": steps, **row}


def repeated(setting: Setting) -> Iterator[Row]:
    """Two `--deterministic` training runs from the same seed, bit by bit."""
    from benchmarks.reliability.kills import Job, differences

    steps = 20 if setting.quick else 60
    outs = [setting.folder / name for name in ("first", "second")]
    for out in outs:
        job = Job(out, 1, steps, setting.device)
        if any(job.wait()):
            raise InputError(f"a run ended with an error: {job.log()}")
    names = differences(*outs)
    yield {
        "name": "two deterministic runs",
        "ok": not names,
        "steps": steps,
        "reason": f"{len(names)} differ: {', '.join(names[:3])}" if names else "",
    }


def ahead(setting: Setting) -> Iterator[Row]:
    """A program compiled without the device: is it found and loaded there, and does it compute?

    A network without convolutions: their algorithms are chosen on the device.
    """
    folder = setting.folder / "compiled without it"
    with mock.patch.dict(os.environ, WITHOUT_DEVICE):
        worker = Worker(_compiled_ahead, (setting.target, folder), keeps_memory=False)
    worker.kill()
    yield {"name": f"compiled for {setting.target}", **worker.ready}
    if setting.device == "cpu":
        yield {"name": "loaded on the GPU", "reason": "needs a GPU"}
        return
    loaded, compiled = (
        Worker(_ran, (name,), keeps_memory=False)
        for name in (folder, setting.folder / "compiled on it")
    )
    for worker in (loaded, compiled):
        worker.kill()
    scale = float(np.abs(compiled.ready["values"]).max())
    difference = np.abs(loaded.ready["values"] - compiled.ready["values"]).max() / scale
    was_cached = loaded.ready["cache_hits"] > 0
    yield {
        "name": "loaded on the GPU",
        "found": was_cached,
        "difference": float(difference),
        # The device compiles products with other tiles, which round differently.
        "ok": was_cached and difference <= _TF32_BOUND,
    }


def _program(device: Any, folder: Path) -> tuple[Any, Any]:
    """The forward of a language model, compiled for a device, and its arguments."""
    import jax

    from jaxsr.comparison.arguments import Arguments
    from jaxsr.comparison.jax_runs import JaxRuns
    from jaxsr.interop.aot.compile import abstract
    from jaxsr.models.registry import find_family, random_network
    from jaxsr.runtime.setup import configure_jax

    configure_jax(folder, least_compile_s=0)
    runs = JaxRuns(random_network("llama"), Arguments.of((find_family("llama").example(),), {}))
    arguments = runs.state, runs.inputs(), runs.key
    where = jax.sharding.SingleDeviceSharding(device)
    lowered = jax.jit(runs.forward(train=False)).lower(*abstract(arguments, where))
    return lowered.compile(), arguments


def _compiled_ahead(target: str, folder: Path) -> Steps:
    from jaxsr.interop.aot.topology import load_topology

    _program(load_topology(target).devices[0], folder)
    entries = len(list(folder.iterdir()))
    yield {"entries": entries, "ok": entries > 0}


def _ran(folder: Path) -> Steps:
    """On the GPU: the outputs, and what the compile cache gave."""
    import jax
    from jax import monitoring

    from jaxsr.runtime.setup import share_gpu_memory

    share_gpu_memory()
    events: list[str] = []
    monitoring.register_event_listener(lambda event, **_: events.append(event))
    compiled, arguments = _program(jax.devices()[0], folder)
    hits = sum(name.endswith("cache_hits") for name in events)
    outputs = jax.tree.leaves(compiled(*jax.device_put(arguments))[0])
    yield {"values": np.concatenate([np.ravel(x) for x in outputs]), "cache_hits": hits}

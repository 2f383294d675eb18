"""Parts of `benchmarks.gpu` that run commands: killed and resumed, repeated, compiled ahead."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks._gpu_parts import WITHOUT_DEVICE, Setting
from benchmarks._race import Steps, Worker
from benchmarks._results import Row
from jaxsr.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
_LONGEST_S = 240.0


def killed(setting: Setting) -> Iterator[Row]:
    """A training run killed and resumed, against one left alone."""
    from benchmarks.kills import Options, measure_processes

    steps = 60 if setting.quick else 150
    terminations = 0 if setting.quick else 1
    options = Options(platform=setting.device, steps=steps)
    row = measure_processes(1, 1, terminations, options)
    yield {"name": "killed and resumed", "ok": not row["wrong"], "steps": steps, **row}


def repeated(setting: Setting) -> Iterator[Row]:
    """Two `--deterministic` training runs from the same seed, bit by bit."""
    from benchmarks.kills import Job, differences

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
    """A program compiled without the device, and one compiled on it: do they give the same bits?"""
    from PIL import Image

    from benchmarks.restore import picture_file

    photo = picture_file(setting.folder, (96, 128))
    caches = {name: setting.folder / name for name in ("compiled without it", "compiled on it")}
    command = [sys.executable, "-m", "jaxsr.restore", str(photo), "--batch", "8"]
    without = caches["compiled without it"]
    compiled = subprocess.run(
        [*command, "--aot", setting.target, "--aot-save", str(without)],
        cwd=ROOT, env=os.environ | WITHOUT_DEVICE, capture_output=True, text=True,
        timeout=_LONGEST_S, check=False,
    )  # fmt: skip
    if compiled.returncode:
        reason = " ".join((compiled.stderr or compiled.stdout).split())[-300:]
        yield {"name": f"compiled for {setting.target}", "ok": False, "reason": reason}
        return
    entries = [path.name for path in without.iterdir()]
    yield {"name": f"compiled for {setting.target}", "ok": bool(entries), "entries": len(entries)}
    if setting.device == "cpu":
        yield {"name": "loaded on the GPU", "reason": "needs a GPU"}
        return
    results: dict[str, bytes] = {}
    for name, cache in caches.items():
        out = setting.folder / f"out of {cache.name}"
        options = ["--out", str(out), "--platform", "cuda", "--compile-cache", str(cache)]
        worker = Worker(_restored, ([*command[3:], *options],))
        worker.kill()
        pictures = [path for path in out.rglob("*") if path.suffix in (".png", ".jpg")]
        with Image.open(pictures[0]) as picture:
            results[name] = picture.convert("RGB").tobytes()
        loaded = worker.ready["programs_from_the_cache"] or cache is not without
        ok = worker.ready["status"] == 0 and bool(loaded)
        yield {"name": f"restored, {name}", **worker.ready, "ok": ok}
    first, second = results.values()
    different = sum(a != b for a, b in zip(first, second, strict=True))
    yield {"name": "the same bits", "ok": different == 0, "values_that_differ": different}


def _restored(arguments: list[str]) -> Steps:
    """Runs `jaxsr.restore` in this process, and counts what its compile cache did."""
    from jax import monitoring

    from jaxsr.restore import main

    events: list[str] = []
    monitoring.register_event_listener(lambda event, **_: events.append(event))
    status = main(arguments)
    yield {
        "status": int(status),
        "programs_from_the_cache": sum(name.endswith("cache_hits") for name in events),
        "programs_compiled": sum(name.endswith("cache_misses") for name in events),
    }

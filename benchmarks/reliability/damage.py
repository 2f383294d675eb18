"""Damages every kind of file that jaxsr reads back, and checks that nothing damaged is accepted.

A small run, an export, a KV cache, a trace and compiled programs are made once. Each try flips one
to eight bits of one file, or cuts, empties or removes it, and reads it back as the commands do. A
try passes where what is read is bit-equal to a sound state, or is refused by name in one line.
"""

import contextlib
import io
import json
import logging
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.report import Report, ReportOptions, run_benchmark
from jaxsr.errors import UserError

Outcome = str
"""`refused`, `sound` (bit-equal to a sound state), or `accepted`, which is a fault."""


@dataclass(frozen=True, kw_only=True)
class Options(ReportOptions):
    """Options of the run."""

    flips: int = 1000
    """Tries that flip bits, over all kinds of files."""
    cuts: int = 200
    """Tries that cut, empty or remove a file."""
    seed: int = 0
    """Seed for places and bits."""


@dataclass(frozen=True)
class Kind:
    """One kind of file, and how it is read."""

    folder: Path
    """A folder of files, of which one is damaged at a time."""
    read: Callable[[Path], Any]
    """Reads the folder as the commands do; the result compares by `==`."""
    sound: tuple[Any, ...]
    """States that a reader may return: the folder as it is, or an older sound state."""


def bits(tree: Any) -> dict[str, bytes]:
    """Every array of a tree, by its path, as bytes."""
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        jax.tree_util.keystr(path): np.asarray(x).tobytes() + str(np.shape(x)).encode()
        for path, x in leaves
    }


def training_state(step: int) -> dict[str, Any]:
    """A small state, another one for every step."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(step)
    return {
        "step": jnp.int32(step),
        "params": {f"layer{i}": jax.random.normal(key, (16, 8 + i)) for i in range(4)},
        "half": jax.random.normal(key, (40,), jnp.bfloat16),
        "counts": np.arange(step, step + 3),
    }


def checkpoint_kind(folder: Path) -> Kind:
    """Two checkpoints with metrics; damage is done to the newer one."""
    from jaxsr.interop.checkpoint import Checkpoints

    like = training_state(0)
    with Checkpoints(folder, metric="psnr", notes={"family": "span"}) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, training_state(step), {"psnr": 20.0 + step})

    def read(path: Path) -> Any:
        with Checkpoints(path, metric="psnr") as checkpoints:
            restored = checkpoints.restore(like)
            assert restored is not None
            return restored[0], bits(restored[1]), checkpoints.best_step

    sound = ((step, bits(training_state(step)), step) for step in (2, 1))
    return Kind(folder, read, tuple(sound))


def run_kind(folder: Path) -> Kind:
    """The configuration of a run; without checkpoints a damaged one is refused."""
    from jaxsr.interop.atomic_write import atomic_write
    from jaxsr.interop.sealed_json import seal
    from jaxsr.training.config_file import read_config, to_json
    from jaxsr.training.presets import span
    from jaxsr.training.run_folder import read_run

    folder.mkdir()
    content = to_json("span", span.QUICK, data={"files": 3, "digest": "0"}, cpu_threads=2)
    atomic_write(folder / "config.json", seal(content, indent=2).encode())

    def read(path: Path) -> Any:
        run = read_run(path)
        return run, run and read_config(path).run_config(span.SpanRun)

    return Kind(folder, read, (read(folder), (None, None)))


def log_kind(folder: Path) -> Kind:
    """`metrics.jsonl` of a run; lines that are damaged are left out."""
    from jaxsr.training.metrics_logger import Records

    def records(path: Path, start: int) -> Records:
        return Records(path, start_step=start, total_steps=50, batch=1)

    folder.mkdir()
    silent = contextlib.redirect_stderr(io.StringIO())
    with silent, contextlib.closing(records(folder, 0)) as log:
        log.steps(40, "main", {step: {"loss": 1 / step} for step in range(1, 41)})
    lines = (folder / "metrics.jsonl").read_text().splitlines()

    def read(path: Path) -> Any:
        records(path, 40).close()
        read_lines = (path / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in read_lines if line not in lines]

    return Kind(folder, read, ([],))


def weights_kind(folder: Path) -> Kind:
    """An exported network, read as a model."""
    from jaxsr.interop.weights import export_weights
    from jaxsr.models.load import load_model
    from jaxsr.models.registry import random_network

    folder.mkdir()
    network = random_network("span")
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    export_weights(folder / "generator.safetensors", arrays, metadata={"family": "span"})

    def read(path: Path) -> Any:
        model = load_model(path / "generator.safetensors")
        return bits({n: t.numpy() for n, t in model.network.state_dict().items()}), model.family

    return Kind(folder, read, (read(folder),))


def cache_kind(folder: Path) -> Kind:
    """A KV cache of two rows."""
    import torch

    from jaxsr.generation.cache_file import load_snapshot, save_snapshot
    from jaxsr.generation.decoder import BatchSnapshot
    from jaxsr.models.llama.config import LlamaConfig
    from jaxsr.models.llama.network import CausalLM

    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=2, head_dim=8, max_position_embeddings=512,
        rms_norm_eps=1e-5, rope_theta=1e4, model_type="llama",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    with torch.device("meta"):
        network = CausalLM(config)
    cache = {n: rng.normal(size=(2, 2, 9, 8)).astype(np.float32) for n in network.cache_shapes()}
    snapshot = BatchSnapshot(
        cache=cache, filled=np.array([9, 5]), token=np.array([7, 8]),
        done=np.array([False, True]),
        prompt=np.array([[3, 4], [-1, 5]]), outputs=np.array([[7], [8]]),
        requests=np.array([0, 1]), seeds=np.array([0, 0]),
    )  # fmt: skip
    folder.mkdir()
    file = "cache.safetensors"
    save_snapshot(
        folder / file, snapshot, fingerprint="f", model="m", prompts=["a", "b"], tokenizer="t"
    )

    def read(path: Path) -> Any:
        loaded, prompts = load_snapshot(
            path / file, fingerprint="f", model="m", network=network, tokenizer="t"
        )
        return bits(vars(loaded)), prompts

    return Kind(folder, read, (read(folder),))


def trace_kind(folder: Path) -> Kind:
    """A recorded run of a small network."""
    import torch

    from jaxsr.comparison.backend_spec import BackendSpec
    from jaxsr.comparison.recorded_trace import make_trace, open_backend
    from jaxsr.comparison.trace_file import load_trace, save_trace
    from jaxsr.comparison.workload_loader import load_workload
    from jaxsr.comparison.workload_options import WorkloadOptions

    with torch.random.fork_rng():
        workload = load_workload(WorkloadOptions(model="span", size=16))
        side = BackendSpec(engine="torch", platform="cpu")
        save_trace(make_trace(workload, open_backend(workload, side)), folder)

    def read(path: Path) -> Any:
        trace = load_trace(path)
        return repr(vars(trace)), bits(trace.outputs), repr(trace.records), repr(trace.weights)

    return Kind(folder, read, (read(folder),))


def compiled_kind(folder: Path) -> Kind:
    """Entries of the compile cache; a damaged one is a program to compile again."""
    from jaxsr.runtime.compile_cache import SealedCache

    cache = SealedCache(str(folder), max_size=-1)
    values = {name: random.Random(name).randbytes(5000) for name in ("prefill", "decode")}
    for name, value in values.items():
        cache.put(name, value)

    def read(path: Path) -> Any:
        reopened = SealedCache(str(path), max_size=-1)
        return all(reopened.get(name) in (None, value) for name, value in values.items())

    return Kind(folder, read, (True,))


def program_kind(folder: Path) -> Kind:
    """A traced program; a damaged one is traced again."""
    import jax
    import jax.numpy as jnp

    from jaxsr.generation.stored_programs import stored

    x = jax.device_put(jnp.arange(6.0), jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",)), jax.sharding.PartitionSpec()
    ))  # fmt: skip

    def read(path: Path) -> Any:
        return bits(stored(path, "sin", jnp.sin, (x,), name="sin")(x))

    return Kind(folder, read, (read(folder),))


KINDS: Mapping[str, Callable[[Path], Kind]] = {
    "checkpoint": checkpoint_kind,
    "configuration": run_kind,
    "log": log_kind,
    "exported weights": weights_kind,
    "KV cache": cache_kind,
    "trace": trace_kind,
    "compile cache": compiled_kind,
    "traced program": program_kind,
}
"""Every kind of file that jaxsr reads back."""


def flip(path: Path, rng: random.Random) -> None:
    """Flips one to eight bits; of an empty file, adds a byte."""
    content = bytearray(path.read_bytes()) or bytearray(b"x")
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))


def cut(path: Path, rng: random.Random) -> None:
    """Cuts the file anywhere, empties it, or removes it."""
    how = rng.choice(("cut", "cut", "empty", "remove"))
    if how == "remove":
        path.unlink()
    else:
        content = path.read_bytes()
        end = rng.randrange(len(content)) if how == "cut" and content else 0
        path.write_bytes(content[:end])


def try_once(
    kind: Kind, damage: Callable[[Path, random.Random], None], rng: random.Random, scratch: Path
) -> tuple[Outcome, str]:
    """Damages a copy of the folder in one file, and reads it.

    Returns:
      The outcome, and the damaged file with what was said.
    """
    copy = scratch / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(kind.folder, copy)
    newest = copy / "2" if (copy / "2").is_dir() else copy
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    path = rng.choice(files)
    damage(path, rng)
    name = path.relative_to(copy).as_posix()
    try:
        result = kind.read(copy)
    except UserError as error:
        one_line = "\n" not in str(error)
        return ("refused" if one_line else "accepted"), f"{name}: {error}"
    except Exception as error:
        return "accepted", f"{name}: {type(error).__name__}: {error}"
    return ("sound" if result in kind.sound else "accepted"), name


def measure(options: Options) -> None:
    """Runs all tries; a fault ends the benchmark with status 1."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    logging.disable(logging.WARNING)  # each damaged file is named in one
    rng = random.Random(options.seed)
    report = Report("damage", options)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for number, (name, make) in enumerate(KINDS.items()):
            kind = make(scratch / str(number))
            for how, total, damage in (
                ("flip", options.flips, flip), ("cut", options.cuts, cut)
            ):  # fmt: skip
                # The remainder goes to the first kinds, so that the sums are those asked for.
                tries = total // len(KINDS) + (number < total % len(KINDS))
                begin = time.perf_counter()
                outcomes = [try_once(kind, damage, rng, scratch) for _ in range(tries)]
                counts = Counter(outcome for outcome, _ in outcomes)
                faults += [f"{name}, {how}: {text}" for o, text in outcomes if o == "accepted"]
                row = {
                    "kind": name,
                    "damage": how,
                    "tries": tries,
                    **{name: counts[name] for name in ("refused", "sound", "accepted")},
                    "seconds": round(time.perf_counter() - begin, 1),
                }
                report.show(row)
    logging.disable(logging.NOTSET)
    if faults:
        raise SystemExit("\n".join(["damage was accepted:", *faults[:20]]))


if __name__ == "__main__":
    run_benchmark(measure, Options)

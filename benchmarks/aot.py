"""What the TPU compiler makes of every family at its real settings: no TPU, no measurement.

    python -m benchmarks.aot                 # compiles what results/aot.json does not hold yet
    python -m benchmarks.aot --only mshnet --count 2
    python -m benchmarks.aot --table         # prints the table of what is there
    python -m benchmarks.aot --table folding # that of docs/lane-folding.md: plain → folded

Each program's figures are written as soon as it is compiled, so that nothing is lost where the
whole takes hours. Memory, FLOPs, bytes and communication are the compiler's, for one device; times
are a roofline and labelled as estimates.

- `train`: both phases of Fast-SRGAN and MSHNet, the published batch on every device, statistics
  local, on 8 chips of three kinds in both dtypes.
- `folding`: a step with narrow convolutions folded into lanes (docs/lane-folding.md), and as they
  are, on one chip, with the largest batch that fits it: found by compiling, or, where one
  compilation takes minutes, by the memory of this one in proportion, which the row says. Other rows
  have what `auto` chooses.
- `scale`: the same on 8, 64 and 256 chips: what a device computes and sends must not grow.
- `fsdp`: parameters and optimiser state split in two, against plain data parallelism.
- `llama`: Llama-3.1-8B's prefill and decode, tensor-parallel over 8 chips, a cache of 8192 tokens.
- `infer`: a batch of tiles and of pictures. `ops`: every kernel of `jaxsr.ops`.
"""

import argparse
import dataclasses
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

# Before JAX is imported: this machine's own devices are not of interest.
os.environ["JAX_PLATFORMS"] = "cpu"

RESULTS = Path(__file__).resolve().parent / "results" / "aot.json"

KINDS = ("v5e:2x4", "v6e:2x4", "v5p:2x2x2")
SIZES = ("v5e:2x4", "v5e:8x8", "v5e:16x16")
DTYPES = ("bfloat16", "float32")
# Family, preset, phase.
STEPS = (
    ("fast-srgan", "super-resolution", "pretrain"),
    ("fast-srgan", "super-resolution", "adversarial"),
    ("mshnet", "mshnet-toolbox", "main"),
)
# The preset is for a CPU: its batch of small crops would leave most of an accelerator idle.
LARGER = {"batch": 64, "crop": 256}
# Name of the row: title, family, preset, phase, options other than the preset's.
FOLDED_STEPS: dict[str, tuple[str, str, str, str, dict[str, Any]]] = {
    "mshnet main": ("MSHNet", "mshnet", "mshnet-toolbox", "main", {}),
    "span pretrain": ("SPAN, 48 channels", "span", "restore", "pretrain", LARGER),
    "span of 28 channels pretrain": (
        "SPAN, 28 channels",
        "span",
        "restore",
        "pretrain",
        LARGER | {"model": {"width": 28}},
    ),
    "fast-srgan pretrain": ("Fast-SRGAN", "fast-srgan", "super-resolution", "pretrain", {}),
}
LLAMA_3_1_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}

Programs = dict[str, Callable[[], Any]]


def programs() -> Programs:
    """Everything there is to compile, by name, the most telling first."""
    found: Programs = {}
    for topology in KINDS:
        for dtype in DTYPES:
            for family, preset, phase in STEPS:
                name = f"train {family} {phase} {dtype} {topology}"
                found[name] = partial(train, family, preset, phase, topology, dtype)
    for row, topology, dtype in folded_steps():
        _, family, preset, phase, options = FOLDED_STEPS[row]
        for choice in ("on", "off"):
            found[f"folding {choice} {row} {dtype} {topology}"] = partial(
                train, family, preset, phase, topology, dtype, lane_folding=choice,
                options=options,
            )  # fmt: skip
    for scheme in (None, "int8"):
        for kind in ("prefill", "decode"):
            name = f"llama 3.1-8b {scheme or 'bfloat16'} {kind} v5e:2x4"
            found[name] = partial(llama, scheme, kind, "v5e:2x4")
    for family, preset, phase in STEPS:
        for topology in SIZES[1:]:  # 8 chips are among `train`
            name = f"scale {family} {phase} bfloat16 {topology}"
            found[name] = partial(train, family, preset, phase, topology, "bfloat16")
    for dtype in DTYPES:  # mesh 8 is among `train`
        name = f"fsdp fast-srgan adversarial {dtype} mesh data=4,fsdp=2 v5e:2x4"
        found[name] = partial(
            train, *STEPS[1], "v5e:2x4", dtype, mesh="data=4,fsdp=2", batch_norm="global"
        )
    for topology in ("v5e:2x4", "v6e:2x4"):
        for dtype in DTYPES:
            found[f"infer fast-srgan tiles {dtype} {topology}"] = partial(tiles, topology, dtype)
        found[f"infer mshnet float32 {topology}"] = partial(pictures, topology)
    for topology in ("v5e:1x1", "v6e:1x1"):
        for name, (call, shapes) in kernels().items():
            found[f"ops {name} {topology}"] = partial(kernel, name, call, shapes, topology)
    return found


def folded_steps() -> Iterator[tuple[str, str, str]]:
    """Name, topology and dtype of every step that is compiled plain and folded."""
    return itertools.product(FOLDED_STEPS, ("v5e:1x1", "v6e:1x1"), DTYPES)


def train(
    family: str,
    preset: str,
    phase: str,
    topology_name: str,
    dtype: str,
    *,
    mesh: str | None = None,
    batch_norm: str = "local",
    lane_folding: str = "auto",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """One phase's step with the preset's batch on every device, and what `options` change of its
    run and (under "model") of its network."""
    from jaxsr.interop.aot.chips import load_topology
    from jaxsr.training.aot import AheadSteps
    from jaxsr.training.task import load_family

    topology = load_topology(topology_name)
    devices = len(topology.devices)
    module = load_family(family)
    chosen = module.PRESET_RUNS[preset]
    model = dataclasses.replace(chosen.model, **options.get("model", {}))
    chosen = dataclasses.replace(chosen, **{**options, "model": model})
    task = module.build(
        dataclasses.replace(
            chosen,
            mesh=mesh or str(devices),
            batch=chosen.batch * devices,
            dtype=dtype,
            batch_norm=batch_norm,
            lane_folding=lane_folding,
            # The data here is a stand-in: its size must not show in the figures.
            resident_gb=0.0,
            steps=1000,
            epochs=None,
            **({"warmup_epochs": 1} if family == "mshnet" else {}),
        )
    )
    steps = AheadSteps(task, topology)
    ahead = steps.compile(phase)
    network = sum(
        p.numel()
        for player in task.objective.phase(phase).players
        for p in task.objective.get_submodule(player.network).parameters()
        if p.requires_grad
    )
    facts = {
        "batch": task.config.batch,
        "gradient_bytes": 4 * network,
        "batch_norm": batch_norm,
        "lane_folding": lane_folding,
    }
    return ahead, facts


def llama(scheme: Any, kind: str, topology_name: str) -> Any:
    """Prefill of 2048 tokens, or the decode loop's step, with a cache of 8192."""
    from jaxsr.generation.aot import AheadEngine, shapes_of
    from jaxsr.generation.options import SamplingOptions
    from jaxsr.interop.aot.chips import load_topology
    from jaxsr.models.llama.config import Llama3Scaling, LlamaConfig

    scaling = Llama3Scaling(
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    network = shapes_of(
        LlamaConfig(**LLAMA_3_1_8B, rope_scaling=scaling), dtype="bfloat16", scheme=scheme
    )
    engine = AheadEngine(network, load_topology(topology_name))
    prefill, decode = engine.compile(SamplingOptions(), batch=1, prompt=2048, slots=8192)
    parameters = sum(t.numel() for t in (*network.parameters(), *network.buffers()))
    return (prefill if kind == "prefill" else decode), {"batch": 1, "weights": parameters}


def tiles(topology_name: str, dtype: str) -> Any:
    """Tiles of a published generator, eight a device."""
    import torch

    from jaxsr.interop.aot.chips import load_topology
    from jaxsr.models.fast_srgan.config import FastSRGANConfig
    from jaxsr.models.fast_srgan.generator import Generator
    from jaxsr.restoration.around_tiles import around_tiles
    from jaxsr.runtime.jax_runner import open_ahead
    from jaxsr.runtime.options import ComputeOptions

    torch.manual_seed(0)
    topology = load_topology(topology_name)
    batch = 8 * len(topology.devices)
    options = ComputeOptions(dtype="bfloat16" if dtype == "bfloat16" else "float32")
    around = around_tiles((-1.0, 1.0), ensemble=False)
    runner = open_ahead(Generator(FastSRGANConfig()), topology, options, around=around)
    return runner.lower((batch, 3, 256, 256), topology, name="restore 256x256"), {"batch": batch}


def pictures(topology_name: str) -> Any:
    """A detector's pictures, eight a device."""
    import torch

    from jaxsr.interop.aot.chips import load_topology
    from jaxsr.models.mshnet.config import MSHNetConfig
    from jaxsr.models.mshnet.network import MSHNet
    from jaxsr.runtime.jax_runner import open_ahead
    from jaxsr.runtime.options import ComputeOptions

    torch.manual_seed(0)
    topology = load_topology(topology_name)
    batch = 8 * len(topology.devices)
    runner = open_ahead(MSHNet(MSHNetConfig()), topology, ComputeOptions())
    return runner.lower((batch, 3, 256, 256), topology, name="detect 256x256"), {"batch": batch}


def kernels() -> dict[str, tuple[Callable[..., Any], tuple[tuple[tuple[int, ...], str], ...]]]:
    """The kernels of `jaxsr.ops` on pictures of usual sizes, each with its arguments' shapes."""
    from jaxsr import ops

    photos, masks = ((8, 540, 960, 3), "float32"), ((8, 540, 960, 1), "float32")
    levels = ((8, 540, 960, 3), "uint8")

    def crop_and_paste(frames: Any, masks: Any) -> Any:
        crop = ops.mask_crop(frames, masks, size=512)
        return ops.mask_paste(frames, crop.frames, masks, crop.box)

    found: dict[str, Any] = {
        "gaussian_blur": (partial(ops.gaussian_blur, sigma=2.0, kernel_size=13), (photos,)),
        "psnr": (partial(ops.psnr, data_range=1.0), (photos, photos)),
        "ssim": (partial(ops.ssim, data_range=1.0), (photos, photos)),
        "rgb_to_y": (ops.rgb_to_y, (photos,)),
        "rgb_to_ycbcr": (ops.rgb_to_ycbcr, (photos,)),
        "ycbcr_to_rgb": (ops.ycbcr_to_rgb, (photos,)),
        "normalise": (ops.normalise, (levels,)),
        "denormalise": (ops.denormalise, (photos,)),
        "feather": (ops.feather, (masks,)),
        "mask_box": (ops.mask_box, (masks,)),
        "mask_crop and mask_paste": (crop_and_paste, (photos, masks)),
        "preprocess": (partial(ops.preprocess, size=512), (levels, masks)),
        "resize_frames": (ops.resize_frames, (photos,)),
    }
    for method in ("nearest", "bilinear", "bicubic", "area"):
        found[f"resize {method}"] = (partial(ops.resize, size=(270, 480), method=method), (photos,))
    for convention in ("opencv", "pillow", "matlab"):
        resize = partial(ops.resize, size=(270, 480), method="bicubic", convention=convention)
        found[f"resize bicubic {convention}"] = (resize, (photos,))
    return found


def kernel(name: str, call: Any, shapes: Any, topology_name: str) -> Any:
    """One kernel on one chip."""
    import jax
    from jax.sharding import SingleDeviceSharding

    from jaxsr.interop.aot.chips import load_topology
    from jaxsr.interop.aot.compile import compile_ahead

    topology = load_topology(topology_name)
    one = SingleDeviceSharding(topology.devices[0])
    arguments = [jax.ShapeDtypeStruct(s, d, sharding=one) for s, d in shapes]
    return compile_ahead(jax.jit(call), arguments, topology, name=name), {}


def read() -> dict[str, Any]:
    """What is compiled already."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"programs": {}}


def write(name: str, row: dict[str, Any]) -> None:
    """Adds a program's figures to the file, which several processes may do."""
    from benchmarks._timing import surroundings
    from jaxsr.interop.atomic_write import atomic_write

    found = read()
    found["surroundings"] = surroundings()
    found["programs"][name] = row
    atomic_write(RESULTS, (json.dumps(found, indent=1) + "\n").encode())


def table() -> Iterator[str]:
    """Lines of the results, in Markdown."""
    yield (
        "| program | memory of HBM | GFLOP | GB moved | M cycles | all-reduces | of MB | other | "
        "roofline, ms | peak used | largest batch | compiled in s of a core |"
    )
    yield "|" + "---|" * 12
    for name, row in read()["programs"].items():
        if not row["compiles"]:
            yield f"| {name} | {row['error']} |" + " |" * 10
            continue
        reduces, others = _communication(row)
        estimate = row["estimate"]
        yield (
            f"| {name} | {row['memory_share']:.1%} | {row['flops_per_device'] / 1e9:.1f} | "
            f"{row['bytes_per_device'] / 1e9:.2f} | {row['estimated_cycles'] / 1e6:.2f} | "
            f"{reduces['count']} | "
            f"{reduces['bytes'] / 1e6:.2f} | {others} | {estimate['seconds'] * 1e3:.2f} | "
            f"{estimate['utilisation']:.0%} | {_largest(row)} | {_cpu(row)} |"
        )


def steps_table() -> Iterator[str]:
    """Lines of Markdown: training steps on 8 chips and more."""
    yield (
        "| step | chips | of HBM | GFLOP a chip | GB moved | M cycles | all-reduces | of MB "
        "(gradients) | other | roofline, ms | compiled in s of a core |"
    )
    yield "|" + "---|" * 11
    for name, row in read()["programs"].items():
        kind, _, step = name.partition(" ")
        if kind not in ("train", "scale", "fsdp"):
            continue
        step, _, chips = step.rpartition(" ")
        reduces, others = _communication(row)
        yield (
            f"| {step} | {chips} | {row['memory_share']:.1%} | "
            f"{row['flops_per_device'] / 1e9:.0f} | {row['bytes_per_device'] / 1e9:.1f} | "
            f"{row['estimated_cycles'] / 1e6:.1f} | {reduces['count']} | "
            f"{reduces['bytes'] / 1e6:.2f} ({row['gradient_bytes'] / 1e6:.2f}) | {others} | "
            f"{row['estimate']['seconds'] * 1e3:.1f} | {_cpu(row)} |"
        )


def folding_table() -> Iterator[str]:
    """Lines of Markdown: every step that is compiled both plain and folded."""
    yield (
        "| step | chip | M cycles | HBM, MiB | temporaries in it | traffic, GB | largest batch | "
        "compiled in s of a core |"
    )
    yield "|" + "---|" * 8
    done = read()["programs"]
    columns = (
        (lambda row: row["estimated_cycles"] / 1e6, ".1f"),
        (lambda row: row["memory_bytes"]["total"] / 2**20, ".0f"),
        (lambda row: row["memory_bytes"]["temporaries"] / 2**20, ".0f"),
        (lambda row: row["bytes_per_device"] / 1e9, ".1f"),
        (lambda row: row.get("compile_cpu_s"), ".0f"),  # rows before it was noted lack it
    )
    for name, topology, dtype in folded_steps():
        plain, folded = (done.get(f"folding {c} {name} {dtype} {topology}") for c in ("off", "on"))
        if plain is None or folded is None:
            continue
        cells = []
        for figure, digits in columns:
            before, after = figure(plain), figure(folded)
            known = None not in (before, after)
            cells.append(
                f"{before:{digits}} → {after:{digits}} ({after / before:.2f})" if known else "–"
            )
        cells.insert(-1, f"{_largest(plain)} → {_largest(folded)}")
        title = FOLDED_STEPS[name][0]
        yield f"| {title}, {dtype} | {topology.split(':')[0]} | " + " | ".join(cells) + " |"


def _communication(row: dict[str, Any]) -> tuple[dict[str, int], str]:
    """All-reduces, and how many there are of each other kind."""
    kinds = dict(row["collectives"])
    reduces = kinds.pop("all-reduce", {"count": 0, "bytes": 0})
    return reduces, ", ".join(f"{v['count']} {k}" for k, v in kinds.items()) or "–"


def _cpu(row: dict[str, Any]) -> str:
    return f"{row['compile_cpu_s']:.0f}" if "compile_cpu_s" in row else "–"


def _largest(row: dict[str, Any]) -> str:
    """The batch at which a training step's temporaries would fill what else leaves free."""
    if "gradient_bytes" not in row:
        return "–"
    memory = row["memory_bytes"]
    free = memory["available"] - (memory["total"] - memory["temporaries"])
    return f"~{row['batch'] * free // memory['temporaries']}"


TABLES = {"all": table, "steps": steps_table, "folding": folding_table}


def main() -> None:
    """Compiles what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose name holds this")
    parser.add_argument("--count", type=int, help="compile this many at most")
    parser.add_argument("--minutes", type=float, help="start none after so many minutes")
    parser.add_argument("--again", action="store_true", help="also what is compiled already")
    parser.add_argument(
        "--table", nargs="?", const="all", choices=TABLES, help="print the results as a table"
    )
    asked = parser.parse_args()
    if asked.table:
        print("\n".join(TABLES[asked.table]()))
        return
    from jaxsr.interop.aot.report import as_json

    done = {} if asked.again else read()["programs"]
    missing = [name for name in programs() if asked.only in name and name not in done]
    began = time.monotonic()
    for name in missing[: asked.count]:
        if asked.minutes is not None and time.monotonic() - began > 60 * asked.minutes:
            print(f"time is up; {name} and later ones are missing", file=sys.stderr)
            break
        print(f"{name} …", file=sys.stderr, flush=True)
        ahead, facts = programs()[name]()
        row = {**as_json(ahead), **facts}
        write(name, row)
        print(
            f"  {ahead.error or 'compiles'}, {ahead.compile_s:.0f} s", file=sys.stderr, flush=True
        )


if __name__ == "__main__":
    main()

"""Compiles a jitted function ahead of time, without the device, and reports XLA's figures.

    topology = load_topology("v5e:2x4")
    mesh = make_mesh(8, topology.devices)
    arguments = abstract(tree, shardings)             # shapes only; nothing is allocated
    ahead = compile_ahead(jax.jit(step), arguments, topology, name="step")
    print(ahead.memory.share, ahead.collectives, ahead.roofline.seconds)

The real compiler runs, out of libtpu or JAX's CUDA plugin, so whether a program compiles and fits,
and its communication, are facts. Times are a roofline, an estimate from peak rates, not measured.
For GPUs XLA chooses kernels by running them on the device: without it, products get default tiles,
and the workspace of cuDNN and cuBLAS is not counted.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import jax

from jaxsr.interop.annotations import JsonObject, PyTree
from jaxsr.interop.aot.gpu_program import GpuProgram, read_program
from jaxsr.interop.aot.hlo import (
    Collective,
    Padding,
    collectives,
    cycles,
    padding,
    products,
    skipped_flops,
)
from jaxsr.interop.aot.topology import Device, Topology
from jaxsr.interop.aot.traffic import main_memory_bytes
from jaxsr.interop.out_of_memory import LESS_MEMORY
from jaxsr.interop.plugin_start import quiet_libtpu

_COMPILER_ERROR: type[Exception] = cast(Any, jax.errors).JaxRuntimeError


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device, layout padding included."""

    arguments: int
    outputs: int
    aliased: int
    """Output bytes aliased to donated arguments."""
    temporaries: int
    program: int
    """The compiled code itself."""
    available: int
    """Limit of the compiler on this device."""
    peak: int | None = None
    """XLA's own figure of the memory in use at once, for comparison: some of its compilers leave
    the code out of it. None if this jaxlib does not report it."""

    @property
    def total(self) -> int:
        results = self.outputs - self.aliased
        return self.arguments + results + self.temporaries + self.program

    @property
    def share(self) -> float:
        return self.total / self.available


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Least seconds on one device at peak rates: an estimate, never a measurement."""

    compute_s: float
    memory_s: float
    links_s: float

    @property
    def seconds(self) -> float:
        """As if arithmetic, memory and links ran side by side."""
        return max(self.compute_s, self.memory_s, self.links_s)

    @property
    def bound(self) -> str:
        named = {"compute": self.compute_s, "memory": self.memory_s, "links": self.links_s}
        return max(named, key=lambda name: named[name])

    @property
    def utilisation(self) -> float:
        """Part of the device's peak arithmetic that this time would use."""
        return self.compute_s / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Ahead:
    """One program, compiled for one topology."""

    name: str
    topology: str
    devices: int
    device: Device
    training: bool = False
    """Whether it is a training step."""
    error: str | None = None
    """Why it does not compile, in one line."""
    memory: Memory | None = None
    flops: float = 0.0
    """Operations of one device, as the compiler counts them; a loop's body counts once."""
    bytes: float = 0.0
    """Between one device's main memory and the rest of it; on GPUs between its kernels."""
    collectives: Sequence[Collective] = ()
    products: Mapping[str, int] = field(default_factory=dict[str, int])
    """Convolutions and matrix products by input type, before compilation."""
    padding: Padding = field(default_factory=lambda: Padding(0, 0))
    cycles: int = 0
    """The TPU compiler's estimate of the main computation; for comparing programs only."""
    gpu: GpuProgram | None = None
    """Whose kernels compute it, on a GPU."""
    compile_s: float = 0.0
    compile_cpu_s: float = 0.0
    """Processor time; unlike `compile_s` it hardly depends on other work of the machine."""
    compiled: Any = None
    """JAX's compiled program, to be saved; it cannot run here."""
    text: str = field(default="", repr=False)
    """The optimised program; empty if this jaxlib cannot read the compiler's output."""

    @property
    def compiles(self) -> bool:
        return self.error is None

    @property
    def module(self) -> str:
        """XLA's name of the program, with which its entry in a compile cache begins."""
        named = re.match(r"HloModule ([\w.\-]+)", self.text)
        return named[1] if named else ""

    @property
    def by_kind(self) -> dict[str, tuple[int, int]]:
        """Number and bytes of each kind of communication."""
        totals: dict[str, tuple[int, int]] = {}
        for one in self.collectives:
            count, size = totals.get(one.kind, (0, 0))
            totals[one.kind] = (count + 1, size + one.bytes)
        return totals

    @property
    def roofline(self) -> Roofline:
        kinds = self.products
        total = sum(kinds.values()) or 1
        passes = (
            sum(count * self.device.passes.get(kind, 1.0) for kind, count in kinds.items()) / total
        )
        return Roofline(
            compute_s=self.flops * passes / self.device.flops_per_s,
            memory_s=self.bytes / self.device.memory_bytes_per_s,
            links_s=sum(_sent(one, self.devices) for one in self.collectives)
            / (self.device.link_bytes_per_s / 2),
        )


def abstract(tree: PyTree, shardings: PyTree) -> PyTree:
    """Shapes and dtypes of a tree, living where `shardings` says: arguments without values.

    Args:
      tree: arrays, or anything with a shape and a dtype.
      shardings: a tree of shardings, or one for every leaf.
    """
    if isinstance(shardings, jax.sharding.Sharding):
        return jax.tree.map(partial(_abstract, sharding=shardings), tree)
    return jax.tree.map(_abstract, tree, shardings)


def _abstract(array: Any, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def compile_ahead(
    function: Any,
    arguments: Sequence[PyTree],
    topology: Topology,
    *,
    name: str,
    training: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Ahead:
    """Compiles for the topology's devices.

    Args:
      function: the result of `jax.jit`.
      arguments: for it, as `abstract` makes them, on the topology's devices.
      topology: where to.
      name: its name in the report.
      training: whether it is a training step, for the advice.
      options: for the compiler, in addition to those the function was jitted with.

    Returns:
      The report; one whose `error` is set where the compiler refused.

    Raises:
      Whatever tracing the function raises: such an error is the function's, not the compiler's.
    """
    lowered = function.lower(*arguments)
    return compile_lowered(lowered, topology, name=name, training=training, options=options)


def compile_lowered(
    lowered: Any,
    topology: Topology,
    *,
    name: str,
    training: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Ahead:
    """`compile_ahead` for the result of `jax.jit(function).lower(*arguments)`."""
    report: JsonObject = {
        "name": name,
        "topology": topology.name,
        "devices": len(topology.devices),
        "device": topology.device,
        "training": training,
        "products": products(lowered.as_text()),
    }
    began = time.perf_counter(), time.process_time()

    def spent() -> JsonObject:
        ended = time.perf_counter(), time.process_time()
        return {"compile_s": ended[0] - began[0], "compile_cpu_s": ended[1] - began[1]}

    try:
        with quiet_libtpu():
            compiled = lowered.compile(compiler_options=dict(options) if options else None)
    except _COMPILER_ERROR as error:
        return Ahead(**report, error=readable(error), **spent())
    report |= spent()
    sizes, text = compiled.memory_analysis(), _text(compiled)
    memory = Memory(
        arguments=sizes.argument_size_in_bytes,
        outputs=sizes.output_size_in_bytes,
        aliased=sizes.alias_size_in_bytes,
        temporaries=sizes.temp_size_in_bytes,
        program=sizes.generated_code_size_in_bytes,
        available=topology.device.memory_bytes,
        peak=getattr(sizes, "peak_memory_in_bytes", None) or None,
    )
    report |= {"memory": memory, "collectives": collectives(text), "text": text}
    if topology.device.platform == "cuda":
        program = read_program(compiled, text)
        # Unlike libtpu, XLA's CUDA compiler does not refuse programs for their size.
        error = _too_large(memory) if memory.share > 1 else None
        return Ahead(
            **report,
            error=error,
            flops=program.flops,
            bytes=program.bytes,
            gpu=program,
            compiled=compiled,
        )
    costs = compiled.cost_analysis()
    return Ahead(
        **report,
        flops=costs.get("flops", 0.0) - skipped_flops(text),
        # XLA's own count, of fast memory too, where that is all there is.
        bytes=float(main_memory_bytes(text)) if text else costs.get("bytes accessed", 0.0),
        padding=padding(text),
        cycles=cycles(text),
        compiled=compiled,
    )


def _text(compiled: Any) -> str:
    """The optimised program. libtpu's for v6e may hold instructions that jaxlib cannot read."""
    try:
        return compiled.as_text()
    except _COMPILER_ERROR:
        return ""


def _too_large(memory: Memory) -> str:
    gib = 2**30
    return (
        f"out of memory: it needs {memory.total / gib:.2f} GiB of the {memory.available / gib:.2f} "
        f"that JAX allocates (XLA_PYTHON_CLIENT_MEM_FRACTION); {LESS_MEMORY}"
    )


def readable(error: BaseException) -> str:
    """A compiler's error as one sentence: the fault, the amount, and any workaround."""
    text = " ".join(str(error).split())
    workaround = LESS_MEMORY
    need = re.search(r"total memory required for ([\w ]+) \((.*?)\) exceeds available HBM", text)
    limit = re.search(r"available HBM \((.*?)\)", text)
    if need and limit:
        its, size = need.groups()
        return f"out of memory: its {its} need {size} of the device's {limit[1]}; {workaround}"
    need = re.search(r"Used ([\d.]+\w) of ([\d.]+\w) (\w+)", text)
    if "RESOURCE_EXHAUSTED" in text and need:
        used, limit, memory = need.groups()
        return f"out of memory: it needs {used} of the device's {limit} of {memory}; {workaround}"
    if "No such compile option" in text:
        return f"this libtpu does not know a compiler option ({text[:200]}); install another"
    # The rest of the compiler's text is its own source lines and a dump of the program.
    text = re.split(r"=== Source Location Trace|See https?://|HLO module:", text)[0]
    return f"the compiler refuses it: {text[:400].strip()}"


def _sent(one: Collective, devices: int) -> float:
    """Bytes that a device sends in a ring of the group (Thakur et al. 2005)."""
    group = one.devices or devices
    if one.kind == "collective-permute":
        return one.bytes
    once = one.bytes * (group - 1) / group
    return 2 * once if one.kind == "all-reduce" else once

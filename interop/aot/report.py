"""The ahead-of-time report for people and for programs: a table, advice, JSON."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.aot.compile import Ahead, Memory
from jaxsr.interop.aot.gpu_program import GpuProgram

_WIDE_PADDING = 1.5
_MANY_REDUCES = 4
_FULL = 0.9
_MUCH_TRANSPOSED = 0.25


def advice(ahead: Ahead) -> list[str]:
    """Ways to make the program smaller or faster, as far as its figures show them."""
    if not ahead.compiles or ahead.memory is None:
        return []
    lines: list[str] = []
    single = sum(n for kind, n in ahead.products.items() if kind.startswith("f32"))
    highest = ahead.products.get("f32 highest", 0)
    if single > sum(ahead.products.values()) / 2:
        lines.append(
            f"{single} of {sum(ahead.products.values())} products take float32 inputs: --dtype "
            "bfloat16 halves their bytes"
            + (f"; {highest} ask for {_highest(ahead)}" if highest else "")
        )
    if ahead.gpu is not None:
        lines += _gpu_advice(ahead, ahead.gpu)
    if not ahead.text:
        lines.append(
            "this jaxlib cannot read the program that libtpu made: communication, padding and "
            "cycles are not counted, and the bytes are XLA's own count, including fast memory"
        )
    if ahead.padding.factor > _WIDE_PADDING:
        lines.append(
            f"arrays take {ahead.padding.factor:.1f} × their size: tiles hold 128 lanes, and "
            "narrow channels or rows leave them empty; use wider layers or fold pixels into lanes"
        )
    reduces = ahead.by_kind.get("all-reduce", (0, 0))[0]
    # Parameters split over `fsdp` are gathered, and take part in sums of their own.
    is_split = "all-gather" in ahead.by_kind
    if ahead.training and reduces > _MANY_REDUCES and not is_split:
        lines.append(
            f"{reduces} all-reduces a step: BatchNorm over the whole batch communicates in every "
            "layer; --batch-norm local has one a network"
        )
    if ahead.memory.share > _FULL:
        room = "--remat or --accumulate 2" if ahead.training else "a smaller batch"
        lines.append(f"{ahead.memory.share:.0%} of the memory is taken: {room} gives room")
    if ahead.training and ahead.roofline.bound == "links":
        lines.append("limited by communication: use a larger batch per device")
    return lines


def _highest(ahead: Ahead) -> str:
    if ahead.gpu is not None:
        return "float32 arithmetic without TF32 (highest precision)"
    return "six passes (highest precision)"


def _gpu_advice(ahead: Ahead, program: GpuProgram) -> list[str]:
    lines: list[str] = []
    # An array is read and written.
    if 2 * program.transposed_bytes > _MUCH_TRANSPOSED * ahead.bytes:
        lines.append(
            f"transposes move {2 * program.transposed_bytes / ahead.bytes:.0%} of all bytes: "
            "--lane-folding auto keeps images channels last"
        )
    if program.narrow_convolutions:
        lines.append(
            f"{program.narrow_convolutions} convolutions have channels not divisible by 8; "
            "tensor cores then take padded copies or are not used"
        )
    return lines


def as_json(ahead: Ahead) -> JsonObject:
    """Everything in the report as plain data."""
    result: JsonObject = {
        **{name: getattr(ahead, name) for name in ("name", "topology", "devices", "compiles")},
        "compile_s": round(ahead.compile_s, 2),
        "compile_cpu_s": round(ahead.compile_cpu_s, 2),
    }
    if not ahead.compiles or ahead.memory is None:
        return {**result, "error": ahead.error}
    memory, roofline = ahead.memory, ahead.roofline
    return {
        **result,
        "memory_bytes": {**asdict(memory), "total": memory.total},
        "memory_share": round(memory.share, 5),
        "flops_per_device": ahead.flops,
        "bytes_per_device": ahead.bytes,
        "program_is_read": bool(ahead.text),
        "collectives": {
            kind: {
                "count": count,
                "bytes": size,
                "dtypes": sorted(
                    {d for c in ahead.collectives if c.kind == kind for d in c.dtypes}
                ),
            }
            for kind, (count, size) in ahead.by_kind.items()
        },
        "products": dict(ahead.products),
        **_device_figures(ahead),
        "estimate": {
            "method": "roofline at peak rates; not measured",
            "seconds": roofline.seconds,
            "bound": roofline.bound,
            **asdict(roofline),
            "utilisation": round(roofline.utilisation, 4),
        },
        "advice": advice(ahead),
    }


def _device_figures(ahead: Ahead) -> JsonObject:
    if ahead.gpu is not None:
        figures = asdict(ahead.gpu)
        return {name: figures[name] for name in figures if name not in ("flops", "bytes")}
    return {"padding_factor": round(ahead.padding.factor, 3), "estimated_cycles": ahead.cycles}


def show(reports: Sequence[Ahead]) -> None:
    """Prints a table with a column for each program, and advice."""
    from rich.table import Table

    from jaxsr.interop.plain_console import PlainConsole

    console = PlainConsole()
    first = reports[0]
    table = Table(
        title=f"{first.topology}: {first.devices} devices, {first.device.kind}; figures per device"
    )
    table.add_column("")
    for one in reports:
        table.add_column(one.name, justify="right")
    for label, values in _rows(reports):
        table.add_row(label, *values)
    console.print(table)
    for one in reports:
        if one.error is not None:
            console.print(f"{one.name}: {one.error}")
        for line in advice(one):
            console.print(f"{one.name}: {line}")


def _rows(reports: Sequence[Ahead]) -> list[tuple[str, list[str]]]:
    def column(make: Callable[[Ahead], str]) -> list[str]:
        return [make(one) if one.compiles else "" for one in reports]

    def of_memory(make: Callable[[Memory], str]) -> list[str]:
        return column(lambda one: "" if one.memory is None else make(one.memory))

    def of_gpu(make: Callable[[GpuProgram], str]) -> list[str]:
        return column(lambda one: "" if one.gpu is None else make(one.gpu))

    def communication(kind: str) -> list[str]:
        sent = [one.by_kind.get(kind) for one in reports]
        return ["–" if each is None else f"{each[0]} of {_size(each[1])}" for each in sent]

    kinds = sorted({kind for one in reports for kind in one.by_kind})
    owners = sorted({owner for one in reports if one.gpu for owner in one.gpu.kernels})

    def kernels(owner: str) -> tuple[str, list[str]]:
        return f"kernels of {owner}", of_gpu(lambda gpu: str(gpu.kernels.get(owner, 0)))

    # XLA does not say how large a GPU's program is.
    program_rows: list[tuple[str, list[str]]] = []
    if reports[0].device.platform == "cuda":
        device_rows = [
            *map(kernels, owners),
            ("transposed", of_gpu(lambda gpu: _size(gpu.transposed_bytes))),
        ]
    else:
        program_rows = [("  program", of_memory(lambda memory: _size(memory.program)))]
        device_rows = [
            ("padding", column(lambda a: f"× {a.padding.factor:.2f}" if a.text else "not read")),
            (
                "cycles, to compare (estimate)",
                column(lambda a: f"{a.cycles / 1e6:.2f} M" if a.text else "not read"),
            ),
        ]
    return [
        ("compiles", ["yes" if one.compiles else "no" for one in reports]),
        ("memory", of_memory(lambda memory: f"{_size(memory.total)} ({memory.share:.1%})")),
        ("  available", of_memory(lambda memory: _size(memory.available))),
        ("  arguments", of_memory(lambda memory: _size(memory.arguments))),
        ("  outputs beside them", of_memory(lambda memory: _size(memory.outputs - memory.aliased))),
        ("  temporaries", of_memory(lambda memory: _size(memory.temporaries))),
        *program_rows,
        ("GFLOP", column(lambda a: f"{a.flops / 1e9:.1f}")),
        ("read and written", column(lambda a: _size(a.bytes))),
        *((kind, communication(kind)) for kind in kinds),
        ("time at peak rates (estimate)", column(lambda a: f"{a.roofline.seconds * 1e3:.3f} ms")),
        ("  bound by (estimate)", column(lambda a: a.roofline.bound)),
        ("  utilisation (estimate)", column(lambda a: f"{a.roofline.utilisation:.0%}")),
        *device_rows,
        ("compiled in", column(lambda a: f"{a.compile_s:.0f} s")),
    ]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"

"""Reads figures from a compiled program's text: communication; on TPUs also padding and cycles.

The text is XLA's optimised HLO, one program for every device, so all figures are per device.
An instruction inside a loop counts once.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_COLLECTIVE = re.compile(
    rf"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ({'|'.join(_KINDS)})(-start)?\((.*)$", re.MULTILINE
)
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
CALLS = re.compile(r"\bcalls=%([\w.\-]+)")
_BITS = {"pred": 8, "token": 0, "c64": 64, "c128": 128}


@dataclass(frozen=True)
class Collective:
    """One communication between devices."""

    kind: str
    bytes: int
    """Size of the whole arrays that take part: summed ones, gathered results, scattered inputs."""
    dtypes: tuple[str, ...]
    """Element types, in XLA's words."""
    devices: int | None
    """In each group that communicates, where the text says so."""


@dataclass(frozen=True)
class Padding:
    """Arrays in a device's memory, without and with the padding of their last tiles."""

    logical_bytes: int
    padded_bytes: int

    @property
    def factor(self) -> float:
        return self.padded_bytes / self.logical_bytes if self.logical_bytes else 1.0


@dataclass(frozen=True)
class Array:
    """An array in the text of a program."""

    dtype: str
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    """Axes, the fastest first."""
    layout: str
    """Tiles and memory space."""

    @property
    def bytes(self) -> int:
        return math.prod(self.sizes) * bits_of(self.dtype) // 8

    @property
    def in_hbm(self) -> bool:
        return "S(" not in self.layout

    @property
    def padded_bytes(self) -> int:
        """With its fastest axes filled up to the layout's first tile."""
        tile = re.match(r"T\(([\d,]+)\)", self.layout)
        sizes = list(self.sizes)
        if tile and sizes:
            sides = [int(side) for side in tile[1].split(",")][::-1]
            for axis, side in zip(self.order, sides, strict=False):
                sizes[axis] = -(-sizes[axis] // side) * side
        return math.prod(sizes) * bits_of(self.dtype) // 8


def collectives(program: str) -> list[Collective]:
    """Every communication in the program, those that run asynchronously included once."""
    result: dict[str, Collective] = {}
    for name, results, kind, started, options in _COLLECTIVE.findall(program):
        # Fused or asynchronous instructions may stand in several computations, as a clone.
        # Channel numbers do not tell: JAX gives all those under shard_map the same.
        original = re.sub(r"\.clone[.\d]*$", "", name)
        if original in result:
            continue
        arrays = [a for a in parse_arrays(results) if a.bytes]
        if started and kind in ("all-gather", "collective-permute", "reduce-scatter"):
            arrays = arrays[len(arrays) // 2 :] if len(arrays) > 1 else arrays  # inputs come first
        devices = _group_size(options)
        size = sum(a.bytes for a in arrays)
        if kind == "reduce-scatter":
            size *= devices or 1
        dtypes = tuple(sorted({a.dtype for a in arrays}))
        result[original] = Collective(kind, size, dtypes, devices)
    return list(result.values())


def padding(program: str) -> Padding:
    """Memory of the results of the main computation."""
    arrays = [
        array
        for line in entry_of(program).splitlines()
        if (made := re.match(r"\s*(?:ROOT )?%[\w.\-]+ = (.*?) (\w[\w\-]*)\(", line))
        and made[2] not in ("tuple", "get-tuple-element", "bitcast", "parameter")
        for array in parse_arrays(made[1])
        if array.in_hbm
    ]
    return Padding(sum(a.bytes for a in arrays), sum(a.padded_bytes for a in arrays))


def cycles(program: str) -> int:
    """The compiler's estimate for the main computation, and for its conditional calls.

    Of two branches, the one for a true condition counts: in `jaxsr.ops` it handles finite values.
    Good for comparing programs, not for predicting time.
    """
    pattern = r'"estimated_cycles":"(\d+)"'
    return sum(int(n) for body in counted(program) for n in re.findall(pattern, body))


def skipped_flops(program: str) -> float:
    """XLA's count for the rows of other groups in grouped products, which a TPU skips.

    Counted is every row with every group's matrix; computed is every row with its own.
    """
    called = computations(program)
    surplus: dict[str, float] = {}  # a product stands in nested fusions
    for _, _, _, rest in parse_instructions(program):
        groups = re.search(r'"is_ragged_dot":true,"num_groups_in_ragged_dot":"(\d+)"', rest)
        fusion = CALLS.search(rest)
        if groups and fusion:
            for name, flops in _convolutions(called, fusion[1]):
                surplus[name] = flops * (1 - 1 / int(groups[1]))
    return sum(surplus.values())


def products(lowered: str) -> dict[str, int]:
    """Convolutions and matrix products before compilation, by the element type of their inputs.

    Args:
      lowered: StableHLO. `highest` or `high` is added to the type where that precision is asked.
    """
    counts: dict[str, int] = {}
    pattern = r"stablehlo\.(?:convolution|dot_general)(.*?): \(tensor<(?:\d+x)*(\w+)>"
    for options, dtype in re.findall(pattern, lowered):
        asked = re.search(r"precision(?:_config)? = \[(?:#stablehlo<precision )?(\w+)", options)
        level = asked[1].lower() if asked else "default"
        name = dtype if level == "default" else f"{dtype} {level}"
        counts[name] = counts.get(name, 0) + 1
    return counts


def parse_arrays(text: str) -> Iterator[Array]:
    """The arrays of a type, in order."""
    for dtype, sizes, order, layout in _ARRAY.findall(text):
        yield Array(dtype, _numbers(sizes), _numbers(order), layout)


def bits_of(dtype: str) -> int:
    """Bits of an element; XLA's names end in them, but for a few."""
    if dtype in _BITS:
        return _BITS[dtype]
    number = re.match(r"(?:bf|f|s|u)(\d+)", dtype)
    return int(number[1]) if number else 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _group_size(options: str) -> int | None:
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", options)
    if listed:
        return len(_numbers(listed[1]))
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]", options)
    if iota:
        return int(iota[1])
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", options)
    if mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes.get(axis, 1)) for axis in re.findall(r"'(\w+)'", mesh[2]))
    return None


def _convolutions(called: Mapping[str, str], computation: str) -> Iterator[tuple[str, float]]:
    """Names and operations of the convolutions of a computation, and of those that it calls."""
    shapes: dict[str, Array] = {}
    for name, result, operation, rest in parse_instructions(called[computation]):
        shapes[name] = next(parse_arrays(result), Array("token", (), (), ""))
        if operation == "convolution":
            features = re.search(r"dim_labels=(\w+)_", rest)
            left = shapes.get(parse_operands(rest)[0])
            if features and left:
                contracted = left.sizes[features[1].index("f")]
                yield name, 2.0 * math.prod(shapes[name].sizes) * contracted
        elif inner := CALLS.search(rest):
            yield from _convolutions(called, inner[1])


def parse_instructions(body: str) -> Iterator[tuple[str, ...]]:
    """(name, result, operation, text after its parenthesis) of each line."""
    return (match.groups() for line in body.splitlines() if (match := _INSTRUCTION.match(line)))


def parse_operands(rest: str) -> list[str]:
    """Names, from the text after an instruction's parenthesis."""
    return re.findall(r"%([\w.\-]+)", rest.split("), ", maxsplit=1)[0])


def counted(program: str) -> list[str]:
    """The main computation, and the branches taken when its conditions hold."""
    bodies = _bodies(program)
    entry = entry_of(program)
    taken = re.findall(r"true_computation=%([\w.\-]+)", entry)
    for branches in re.findall(r"branch_computations=\{([^}]*)\}", entry):
        taken.append(branches.split(",")[1].strip().lstrip("%"))
    return [entry, *(body for name in taken for body in bodies if body.startswith(f"%{name} "))]


def computations(program: str) -> dict[str, str]:
    """Text of each computation by its name; the main one's under `ENTRY`."""
    return {
        "ENTRY" if body.startswith("ENTRY") else body[1:].split(" ", 1)[0]: body
        for body in _bodies(program)
    }


def _bodies(program: str) -> list[str]:
    return re.split(r"\n(?=(?:ENTRY )?%?[\w.\-]+ (?:\([^\n]*\) -> [^\n]*)?\{\n)", program)


def entry_of(program: str) -> str:
    return next((body for body in _bodies(program) if body.startswith("ENTRY")), "")

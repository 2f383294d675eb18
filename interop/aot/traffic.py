"""Bytes between a TPU's main memory and the rest of the chip, read from a compiled program's text.

XLA's own "bytes accessed" also counts bytes moved inside the chip, and counts a cache that gets one
more entry in place as if it were written anew.
"""

import math
import re
from collections.abc import Iterator, Mapping

from jaxsr.interop.aot.hlo import (
    CALLS,
    Array,
    bits_of,
    computations,
    parse_arrays,
    parse_instructions,
    parse_operands,
)

_NO_TRAFFIC = frozenset((
    "after-all", "bitcast", "call", "conditional", "constant", "get-tuple-element", "iota",
    "opt-barrier", "parameter", "partition-id", "replica-id", "tuple", "while",
))  # fmt: skip
_RENAMED = ("bitcast", "copy-done", "get-tuple-element")
_MOVED = ("copy-start", "slice-start")
_LOOP = re.compile(r"\bbody=%([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:true_computation|to_apply)=%([\w.\-]+)")
_LISTED_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


def main_memory_bytes(program: str) -> int:
    """Bytes that a program reads from and writes to main memory.

    Arrays that the compiler keeps in fast memory (a memory space in their layout) count only where
    they are copied in or out. For an update in place only the update counts, for slices the result.
    A loop's body counts once; of two branches the one taken when the condition holds, which in
    `jaxsr.ops` is the one for finite values.
    """
    called = computations(program)
    return sum(_traffic(called[name], called) for name in _running(called, "ENTRY"))


def _running(called: Mapping[str, str], name: str) -> Iterator[str]:
    """A computation, and those that it runs as loops and branches."""
    if name not in called:
        return
    yield name
    for _, _, operation, rest in parse_instructions(called[name]):
        names: list[str] = []
        if operation == "while":
            names += _LOOP.findall(rest)
        elif operation in ("conditional", "call"):
            names += _BRANCHES.findall(rest)
            for branches in _LISTED_BRANCHES.findall(rest):
                names.append(branches.split(",")[1].strip().lstrip("%"))
        for inner in names:
            yield from _running(called, inner)


def _traffic(body: str, called: Mapping[str, str]) -> int:
    made: dict[str, list[Array]] = {}
    total = 0
    for name, result, operation, rest in parse_instructions(body):
        arrays = list(parse_arrays(result))
        made[name] = arrays
        if operation in _MOVED:
            # From one memory to another: the array written and the array read, whole or not.
            total += min(a.bytes for a in arrays[:2]) * sum(a.in_hbm for a in arrays[:2])
        if operation in _NO_TRAFFIC or operation.endswith(("-start", "-done")):
            continue
        operands = parse_operands(rest)
        fusion = CALLS.search(rest)
        if operation == "dynamic-update-slice":
            update = made.get(operands[1], [])[:1]
            total += sum(a.bytes * (1 + a.in_hbm) for a in update if arrays[0].in_hbm)
            continue
        if fusion:
            sizes = _written(called, fusion[1])
            total += sum(
                min(a.bytes, size) for a, size in zip(arrays, sizes, strict=False) if a.in_hbm
            )
        else:
            total += sum(a.bytes for a in arrays if a.in_hbm)
        for position, operand in enumerate(operands):
            for array in made.get(operand, []):
                if not array.in_hbm:
                    continue
                if fusion:
                    total += _read(called, fusion[1], position, array)
                elif operation == "dynamic-slice":
                    total += arrays[0].bytes
                else:
                    total += array.bytes
    return total


def _read(called: Mapping[str, str], fusion: str, position: int, array: Array) -> int:
    """Bytes of a fusion's operand that it reads; those of slices, if it reads nothing else."""
    instructions = list(parse_instructions(called[fusion]))
    names = {
        name
        for name, _, operation, rest in instructions
        if operation == "parameter" and rest.startswith(f"{position})")
    }
    total = 0
    for name, result, operation, rest in instructions:
        operands = parse_operands(rest)
        if names.isdisjoint(operands):
            continue
        if operation in _RENAMED:
            names.add(name)
        elif operation in ("slice", "dynamic-slice"):
            # Its result may have another element type.
            sizes = sum(math.prod(a.sizes) for a in parse_arrays(result))
            total += sizes * bits_of(array.dtype) // 8
        elif operation == "dynamic-update-slice" and operands[0] in names:
            continue  # in place
        elif inner := CALLS.search(rest):
            for place, operand in enumerate(operands):
                if operand in names:
                    total += _read(called, inner[1], place, array)
        elif operation != "tuple":
            return array.bytes
    root = re.search(r"\bROOT %([\w.\-]+)", called[fusion])
    if root is not None and root[1] in names:  # handed on to the fusion around it
        return array.bytes
    return min(total, array.bytes)


def _written(called: Mapping[str, str], fusion: str) -> list[int]:
    """Bytes of each result that a fusion writes; those of the update, where it is in place."""
    instructions = {name: line for name, *line in parse_instructions(called[fusion])}
    root = re.search(r"\bROOT %([\w.\-]+)", called[fusion])
    if root is None:
        return []
    _, operation, rest = instructions[root[1]]
    names = parse_operands(rest) if operation == "tuple" else [root[1]]
    return [_of_result(called, instructions, name) for name in names]


def _of_result(called: Mapping[str, str], instructions: Mapping[str, list[str]], name: str) -> int:
    result, operation, rest = instructions[name]
    operands = parse_operands(rest)
    if operation == "bitcast" and operands[0] in instructions:
        return _of_result(called, instructions, operands[0])
    if operation == "dynamic-update-slice":
        result = instructions[operands[1]][0]
    elif operation == "fusion" and (inner := CALLS.search(rest)):
        return sum(_written(called, inner[1]))
    return sum(array.bytes for array in parse_arrays(result))

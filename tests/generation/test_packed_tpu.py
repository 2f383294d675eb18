"""Packed weights in programs for TPUs, compiled ahead of time: what they read from memory."""

import math
import re

import numpy as np
import pytest
import torch

pytest.importorskip("libtpu")

from jaxsr.models.llama.block_formats import FORMATS
from jaxsr.models.llama.packed import BlockLinear, arranged

WIDTH = 24576  # more than the 128 MiB that a chip holds beside its main memory
BYTES = {"u8": 1, "s8": 1, "pred": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4}
SILENT = (
    "get-tuple-element", "tuple", "bitcast", "parameter", "constant", "copy-done", "slice-done",
)  # fmt: skip
"""Operations that move nothing."""


def sizes(shape):
    """Bytes of each array in the main memory; S(1) is the vector unit's own."""
    for dtype, dims, layout in re.findall(r"(\w+)\[([\d,]*)\](\{[^}]*\})?", shape):
        if "S(1)" not in layout:
            yield BYTES.get(dtype, 0) * math.prod(int(d) for d in dims.split(",") if d)


def memory_traffic(program):
    """Bytes that the body of a program's loop reads from main memory, or writes to it."""
    parts = re.split(r"\n(?=%|ENTRY)", program)
    (name,) = set(re.findall(r"body=(%[\w.\-]+)", program))
    (body,) = [part for part in parts if part.startswith(f"{name} ")]
    shapes, total = {}, 0
    for line in body.splitlines():
        match = re.match(r"\s*(?:ROOT )?(%\S+) = (\(.*?\)|\S+) ([a-z\-]+)\((.*?)\)", line)
        if match is None:
            continue
        result, shapes[result], operation, operands = match[1], match[2], match[3], match[4]
        if operation in SILENT:
            continue
        read = [shapes.get(name, "") for name in re.findall(r"%[\w.\-]+", operands)]
        written = [] if operation.endswith("-start") else [shapes[result]]
        total += sum(size for shape in (*read, *written) for size in sizes(shape))
    return total


@pytest.fixture(scope="module")
def topology():
    from jaxsr.interop.aot.topology import load_topology

    return load_topology("v5e:1x1")


# Q4_0, Q4_1 and Q8_0. Scales of Q4_K are products, which are stored; those of Q6_K are of 16
# weights each, and its levels of 6 bits take a byte.
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most"), [(2, 1.2), (3, 1.21), (8, 1.2), (12, 1.35), (14, 2)])
def test_a_decoding_loop_reads_the_blocks_and_no_more(kind, most, topology):
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from jaxsr.interop import to_jax
    from jaxsr.interop.aot.compile import abstract, compile_ahead

    block = FORMATS[kind]
    size = WIDTH // block.weights * block.size
    layer = arranged(BlockLinear(kind, torch.zeros(WIDTH, size, dtype=torch.uint8))).eval()
    model = to_jax(layer)

    turned = {name: array.T for name, array in model.buffers.items()}  # as the engine stores them

    def loop(buffers, x):
        def step(_, x):
            arrays = {name: array.T for name, array in buffers.items()}
            return model.apply({}, arrays, x)[0]

        return jax.lax.fori_loop(0, 9, step, x)

    everywhere = NamedSharding(Mesh(np.array(topology.devices), ("x",)), PartitionSpec())
    x = jax.ShapeDtypeStruct((1, WIDTH), "bfloat16")
    arguments = abstract((turned, x), everywhere)
    report = compile_ahead(jax.jit(loop), arguments, topology, name="decode")
    assert report.error is None
    ratio = memory_traffic(report.text) / (WIDTH * size)
    assert 0.9 < ratio <= most

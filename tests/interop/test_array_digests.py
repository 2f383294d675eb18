"""Digests equal zlib's CRC-32 of the array's bytes, however the array is split."""

import itertools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsr.interop.array_digests import tree_digests


def crc(array: np.ndarray) -> str:
    """zlib's own, without what its first register and its inversion add."""
    data = np.ascontiguousarray(array).tobytes()
    return f"{zlib.crc32(data) ^ zlib.crc32(bytes(len(data))):08x}"


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8])
@pytest.mark.parametrize("shape", [(8,), (8, 6), (6, 8), (4, 8, 2, 2), (3, 5, 8)])
def test_any_sharding_gives_the_digest_of_the_bytes(shape, dtype):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("a", "b", "c"))
    array = np.random.default_rng(0).normal(size=shape).astype(dtype)
    tried = 0
    for spec in itertools.product([None, "a", ("b", "c")], repeat=len(shape)):
        names = [name for name in spec if name is not None]
        if len(set(names)) < len(names):
            continue
        sizes = {None: 1, "a": 2, ("b", "c"): 4}
        if any(size % sizes[name] for size, name in zip(shape, spec, strict=True)):
            continue
        placed = jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
        assert tree_digests({"x": placed}) == {"x": crc(array)}, spec
        tried += 1
    assert tried >= 3


def test_scalars_empty_arrays_and_64_bits():
    tree = {"a": np.asarray(7), "b": [np.zeros((0, 3)), np.float64(0.1)], "c": jnp.float32(2)}
    digests = tree_digests(tree)
    assert digests == {
        "a": crc(np.asarray(7)),
        "b/0": "00000000",
        "b/1": crc(np.asarray(0.1)),
        "c": crc(np.asarray(2, np.float32)),
    }


def test_every_bit_counts():
    array = np.arange(70_000, dtype=np.float32)  # large enough for the threads
    before = tree_digests({"x": array})
    rng = np.random.default_rng(0)
    for _ in range(50):
        changed = array.copy()
        changed.view(np.uint32)[rng.integers(array.size)] ^= np.uint32(1 << rng.integers(32))
        assert tree_digests({"x": changed}) != before

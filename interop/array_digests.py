# pyright: reportUnknownMemberType=false
"""Digests of arrays that do not depend on how the arrays are split over devices and hosts.

The digest of an array is the CRC-32 of its bytes in C order, of zlib's polynomial, with an initial
register of 0 and without the final inversion. In this form it is linear: an array's digest is the
exclusive or of its shards' digests, each moved to the shard's position. So every host reads its own
shards alone. Shape and dtype are not part of the digest.
"""

import functools
import math
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import jax
import numpy as np

from jaxsr.interop.annotations import PyTree

_POLYNOMIAL = np.uint32(0xEDB88320)
_ONES = 0xFFFFFFFF
_LARGE = 2**17  # bytes; below, a thread costs more than it saves


def tree_digests(tree: PyTree) -> dict[str, str]:
    """Digest of every leaf, 8 hexadecimal digits, by its path.

    Args:
      tree: JAX or NumPy arrays. Where they are split over the hosts of a job, every process calls
        this at the same time.
    """
    leaves = named_leaves(tree)
    for leaf in leaves.values():
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
    with ThreadPoolExecutor(os.cpu_count(), "array-digests") as pool:  # zlib releases the GIL
        large = {n: pool.submit(_local_digest, x) for n, x in leaves.items() if x.nbytes > _LARGE}
        small = {n: _local_digest(x) for n, x in leaves.items() if n not in large}
        known = small | {name: digest.result() for name, digest in large.items()}
    digests = np.array([known[name] for name in leaves], np.uint32)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        digests = np.bitwise_xor.reduce(multihost_utils.process_allgather(digests), axis=0)
    return {name: f"{digest:08x}" for name, digest in zip(leaves, digests, strict=True)}


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree, by the keys of their paths joined by slashes."""
    paths = cast(list[tuple[Sequence[Any], Any]], jax.tree_util.tree_flatten_with_path(tree)[0])
    return {"/".join(_key_name(key) for key in path): leaf for path, leaf in paths}


def _key_name(key: object) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _local_digest(leaf: jax.Array | np.ndarray) -> int:
    """This host's part of the digest: every part of the array counts on one host only."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_replicated:
        if jax.process_index():
            return 0
        array = leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf
        return _crc(np.ascontiguousarray(array))
    digest = 0
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            digest ^= _shard_digest(np.ascontiguousarray(shard.data), shard.index, leaf.shape)
    return digest


def _shard_digest(data: np.ndarray, index: tuple[slice, ...], shape: tuple[int, ...]) -> int:
    """The digest of an array that is zero outside of this shard.

    Args:
      data: the shard, in C order.
      index: its place in the array.
      shape: of the array.
    """
    strides = [data.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    starts = [part.indices(size)[0] for part, size in zip(index, shape, strict=True)]
    ends = [start + size for start, size in zip(starts, data.shape, strict=True)]
    behind = sum((n - e) * stride for n, e, stride in zip(shape, ends, strides, strict=True))
    # From the last split axis on, the bytes are also contiguous in the array.
    last = max(axis for axis, size in enumerate(shape) if data.shape[axis] != size)
    outer = data.shape[:last]
    runs = data.reshape(math.prod(outer), -1)
    digests = np.array([_crc(run) for run in runs], np.uint32).reshape(outer)
    for axis in reversed(range(last)):
        digests = _joined(digests, _power(8 * strides[axis]))
    return int(_product(np.uint32(digests), np.uint32(_power(8 * behind))))


def _joined(digests: np.ndarray, factor: int) -> np.ndarray:
    """The sum over the last axis, each entry times the factor once per entry behind it."""
    while digests.shape[-1] > 1:
        if digests.shape[-1] % 2:
            digests = np.insert(digests, 0, 0, axis=-1)
        digests = _product(digests[..., ::2], np.uint32(factor)) ^ digests[..., 1::2]
        factor = int(_product(np.uint32(factor), np.uint32(factor)))
    return digests[..., 0]


def _crc(array: np.ndarray) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8).data, _ONES) ^ _ONES


@functools.cache
def _power(exponent: int) -> int:
    """x to the exponent, modulo the polynomial; the highest bit is the coefficient of 1."""
    result, square = np.uint32(1 << 31), np.uint32(1 << 30)
    while exponent:
        if exponent & 1:
            result = _product(result, square)
        square = _product(square, square)
        exponent >>= 1
    return int(result)


def _product(a: Any, b: Any) -> Any:
    """The product of polynomials, uint32 numbers or arrays, modulo the polynomial."""
    result = np.zeros_like(a)
    for bit in range(31, -1, -1):
        result ^= np.where(a >> np.uint32(bit) & np.uint32(1), b, np.uint32(0))
        b = (b >> np.uint32(1)) ^ np.where(b & np.uint32(1), _POLYNOMIAL, np.uint32(0))
    return result

"""`jax.random`'s numbers of an image's size, made in one pass in programs for CPUs.

There JAX writes its 32-bit words to memory after every four rounds of Threefry (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011), to compile in less time. Here all rounds of
a word are one expression: the same words in a fifteenth of the time.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._images import stored
from jaxsr.ops._typed_jax import arange, platform_dependent, zeros

_keys: Any = jax.random  # of whose functions of keys JAX gives no types
_KIND = "threefry2x32"
"""JAX's name of keys."""
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)
_LEAST = 1 << 16
"""Numbers from which on the program's time matters more than its compilation's."""


def check_key(key: object) -> None:
    """Raises TypeError where this is not one key of `jax.random`."""
    dtype, rank = getattr(key, "dtype", None), getattr(key, "ndim", None)
    is_new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if (is_new and rank == 0) or (dtype == np.uint32 and rank == 1):
        return
    text = repr(key) if dtype is None else f"{dtype}{list(getattr(key, 'shape', ()))}"
    raise TypeError(f"key must be one key of jax.random, such as jax.random.key(0), got {text}")


def normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`jax.random.normal(key, shape, jnp.float32)`."""

    def at_once(words: jax.Array) -> jax.Array:
        def open_interval(place: jax.Array) -> jax.Array:
            return jnp.maximum(_unit(_words(words, place)) * (1 - least) + least, least)

        least = np.nextafter(np.float32(-1), np.float32(0))
        return np.float32(np.sqrt(2)) * jax.lax.erf_inv(stored(open_interval, _places(shape)))

    def by_jax(words: jax.Array) -> jax.Array:
        return jax.random.normal(_keys.wrap_key_data(words, impl=_KIND), shape, jnp.float32)

    if not _is_plain(key, shape):
        return jax.random.normal(key, shape, jnp.float32)
    return platform_dependent(_keys.key_data(key), cpu=at_once, default=by_jax)


def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`jax.random.uniform(key, shape, jnp.float32)`."""

    def at_once(words: jax.Array) -> jax.Array:
        return stored(lambda place: _unit(_words(words, place)), _places(shape))

    def by_jax(words: jax.Array) -> jax.Array:
        return jax.random.uniform(_keys.wrap_key_data(words, impl=_KIND), shape, jnp.float32)

    if not _is_plain(key, shape):
        return jax.random.uniform(key, shape, jnp.float32)
    return platform_dependent(_keys.key_data(key), cpu=at_once, default=by_jax)


def _is_plain(key: jax.Array, shape: tuple[int, ...]) -> bool:
    """Whether JAX numbers the words of this shape from 0, in 32 bits, and they are many."""
    is_threefry = str(_keys.key_impl(key)) == _KIND
    is_numbered = bool(getattr(jax.config, "jax_threefry_partitionable"))  # noqa: B009  # no types
    return is_threefry and is_numbered and _LEAST <= math.prod(shape) < 1 << 32


def _places(shape: tuple[int, ...]) -> jax.Array:
    """Places in memory, numbered from 0."""
    total = zeros(shape, np.dtype(np.uint32))
    for axis, extent in enumerate(shape):
        step = math.prod(shape[axis + 1 :])
        along = arange(extent).astype(jnp.uint32) * np.uint32(step)
        total += along.reshape(extent, *[1] * (len(shape) - axis - 1))
    return total


def _unit(words: jax.Array) -> jax.Array:
    """0…1, from the upper 23 bits."""
    one = np.float32(1).view(np.uint32)
    return jax.lax.bitcast_convert_type((words >> 9) | one, jnp.float32) - 1


def _words(key: jax.Array, place: jax.Array) -> jax.Array:
    """`jax.random.bits`: of each place the two words of its block, by exclusive or."""
    keys = [key[0], key[1], key[0] ^ key[1] ^ _PARITY]
    first, second = keys[0], place + keys[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            first = first + second
            second = ((second << rotation) | (second >> (32 - rotation))) ^ first
        first = first + keys[(block + 1) % 3]
        second = second + keys[(block + 2) % 3] + np.uint32(block + 1)
    return first ^ second

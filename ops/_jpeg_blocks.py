"""JPEG's blocks of 8 × 8, in the integers of libjpeg's default ("islow") transforms.

The transforms are Loeffler, Ligtenberg and Moschytz's (ICASSP 1989) with 13 fractional bits; the
tables are those of ITU-T T.81, annex K. All sums fit into int32, as they do in libjpeg.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr.ops._typed_jax import asarray

_BITS = 13  # of constants
_MORE = 2  # bits that the first pass keeps
_ROTATION = (4433, 6270, 15137)  # 2¹³ times 0.5412, 0.7654, 1.8478
_ODD = (2446, 16819, 25172, 12299)  # 0.2986, 2.0531, 3.0727, 1.5013
_PAIRS = (7373, 20995, 16069, 3196)  # 0.9000, 2.5629, 1.9616, 0.3902
_WHOLE = 9633  # 1.1759

_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *(((99,) * 8,) * 4),
)
TABLES = {"luma": np.array(_LUMA, np.int32), "chroma": np.array(_CHROMA, np.int32)}


def quantised(plane: jax.Array, quality: jax.Array, table: str) -> jax.Array:
    """Quantised coefficients of a plane of levels: (..., H, W) whole blocks, in int32.

    Args:
      plane: levels from 0 to 255.
      quality: a traced integer from 1 to 100.
      table: of `TABLES`.
    """
    shape = plane.shape
    blocks = plane.reshape(*shape[:-2], shape[-2] // 8, 8, shape[-1] // 8, 8) - 128
    steps = _steps(quality, table)
    return _inverse(_quotient(_forward(blocks), 8 * steps) * steps).reshape(shape)


def _steps(quality: jax.Array, table: str) -> jax.Array:
    """Quantisation steps of blocks (8, 1, 8) for a quality, scaled as by libjpeg."""
    quality = jnp.clip(quality, 1, 100)
    percent = jnp.where(quality < 50, 5000 // quality, 200 - 2 * quality)
    return jnp.clip((asarray(TABLES[table]) * percent + 50) // 100, 1, 255)[:, None, :]


def _quotient(x: jax.Array, step: jax.Array) -> jax.Array:
    """Rounded, halves away from zero."""
    size = (jnp.abs(x) + step // 2) // step
    return jnp.where(x < 0, -size, size)


def _forward(blocks: jax.Array) -> jax.Array:
    """Eight times the cosine transform."""
    rows = _cosines(blocks, -1, up=_MORE, down=0)
    return _cosines(rows, -3, up=0, down=_MORE)


def _inverse(blocks: jax.Array) -> jax.Array:
    columns = _from_cosines(blocks, -3, _BITS - _MORE)
    return jnp.clip(_from_cosines(columns, -1, _BITS + _MORE + 3) + 128, 0, 255)


def _cosines(x: jax.Array, axis: int, *, up: int, down: int) -> jax.Array:
    d = [x[_at(axis, k)] for k in range(8)]
    sums, apart = [d[k] + d[7 - k] for k in range(4)], [d[7 - k] - d[k] for k in range(4)]
    outer, outer_apart = sums[0] + sums[3], sums[0] - sums[3]
    inner, inner_apart = sums[1] + sums[2], sums[1] - sums[2]
    both = (inner_apart + outer_apart) * _ROTATION[0]
    bits = _BITS - up + down
    a, b, c, e = (-apart[k] for k in (3, 2, 1, 0))
    first, second, third, fourth = _odd_part(a, b, c, e)
    out = [
        _halved((outer + inner) << up, down),
        _halved(fourth, bits),
        _halved(both + outer_apart * _ROTATION[1], bits),
        _halved(third, bits),
        _halved((outer - inner) << up, down),
        _halved(second, bits),
        _halved(both - inner_apart * _ROTATION[2], bits),
        _halved(first, bits),
    ]
    return jnp.stack(out, axis)


def _from_cosines(x: jax.Array, axis: int, bits: int) -> jax.Array:
    d = [x[_at(axis, k)] for k in range(8)]
    both = (d[2] + d[6]) * _ROTATION[0]
    low, high = both - d[6] * _ROTATION[2], both + d[2] * _ROTATION[1]
    outer, inner = (d[0] + d[4]) << _BITS, (d[0] - d[4]) << _BITS
    even = [outer + high, inner + low, inner - low, outer - high]
    odd = _odd_part(d[7], d[5], d[3], d[1])[::-1]
    near = [_halved(a + b, bits) for a, b in zip(even, odd, strict=True)]
    far = [_halved(a - b, bits) for a, b in zip(even, odd, strict=True)]
    return jnp.stack([*near, *far[::-1]], axis)


def _odd_part(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> tuple[jax.Array, ...]:
    """The rotations of both transforms' odd halves."""
    outer, inner, left, right = a + d, b + c, a + c, b + d
    whole = (left + right) * _WHOLE
    outer, inner = outer * -_PAIRS[0], inner * -_PAIRS[1]
    left, right = left * -_PAIRS[2] + whole, right * -_PAIRS[3] + whole
    return (
        a * _ODD[0] + outer + left,
        b * _ODD[1] + inner + right,
        c * _ODD[2] + inner + left,
        d * _ODD[3] + outer + right,
    )


def _halved(x: jax.Array, bits: int) -> jax.Array:
    """`x / 2^bits`, rounded half up."""
    return (x + (1 << bits >> 1)) >> bits


def _at(axis: int, place: int) -> tuple[object, ...]:
    return (..., place, *[slice(None)] * (-axis - 1))

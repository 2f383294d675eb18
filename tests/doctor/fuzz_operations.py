"""Operations of random programs, with the exact result and a bound of the rounding error.

Each takes values and whole numbers, and returns a value and how JAX computes it. The referee
computes in float64 and carries a bound along, of any order of additions and of rounding or not
after each operation: XLA may keep float32 where the program says bfloat16. Results of int32 are
exact.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

DTYPES = ("float32", "bfloat16", "int32")
SIZES = (1, 1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 31, 37, 64, 97, 128, 255, 1021)
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "int32": 0.0}
FUNCTION_ROUNDOFF = 16 * ROUNDOFF["float32"]
"""Rounding of XLA's own exp, tanh, …, which it computes in float32."""
TINY = 1e-30
"""Results below the normal numbers may be zero."""
MOST_ELEMENTS = 40_000
FLOOR = -100.0
"""Stands for minus infinity in maxima of windows."""


@dataclasses.dataclass
class Value:
    """A value of the program, as the referee knows it."""

    exact: np.ndarray
    """In float64 or int32."""
    error: np.ndarray | float
    """How far a right result may be from it."""
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.exact.shape


Result = tuple[Value, Callable[..., Any]] | None
"""None where the operands do not allow the operation."""


def _rounded(exact: np.ndarray, error: Any, dtype: str, *, function: bool = False) -> Value:
    if dtype == "int32":
        return Value(exact.astype(np.int32), 0.0, dtype)
    roundoff = ROUNDOFF[dtype] + (FUNCTION_ROUNDOFF if function else 0)
    return Value(exact, error + roundoff * (np.abs(exact) + error) + TINY, dtype)


def _unary(x: Value, number: int) -> Result:
    import jax.numpy as jnp

    if x.dtype == "int32":
        name, compute = [
            ("negative", lambda m, x: -x),
            ("abs", lambda m, x: abs(x)),
            ("times 3 plus 1", lambda m, x: x * 3 + 1),
            ("and", lambda m, x: x & 255),
            ("relu", lambda m, x: m.maximum(x, 0)),
            ("shift", lambda m, x: x >> 2),
        ][number % 6]
        return _rounded(compute(np, x.exact), 0.0, "int32"), lambda x: compute(jnp, x)
    # With the largest slope anywhere, which carries the operand's error along.
    name, slope, compute = [
        ("negative", 1.0, lambda m, x: -x),
        ("abs", 1.0, lambda m, x: abs(x)),
        ("relu", 1.0, lambda m, x: m.maximum(x, 0)),
        ("tanh", 1.0, lambda m, x: m.tanh(x)),
        ("exp", 1.0, lambda m, x: m.exp(-abs(x))),
        ("log1p", 1.0, lambda m, x: m.log1p(abs(x))),
        ("sqrt", 0.5, lambda m, x: m.sqrt(abs(x) + 1)),
        ("half", 0.5, lambda m, x: x * 0.5),
    ][number % 8]
    exact, error = compute(np, x.exact), slope * np.asarray(x.error)
    if name == "sqrt":  # the sum inside is rounded, too
        error = error + ROUNDOFF[x.dtype] * (np.abs(x.exact) + 1 + x.error)
    function = name in ("tanh", "exp", "log1p", "sqrt")
    return _rounded(exact, error, x.dtype, function=function), lambda x: compute(jnp, x)


def _binary(x: Value, y: Value, number: int) -> Result:
    import jax.numpy as jnp

    if x.dtype != y.dtype:
        return None
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return None
    if np.prod(shape) > MOST_ELEMENTS or len(shape) > 7:
        return None
    name = ("add", "subtract", "multiply", "maximum", "minimum")[number % 5]
    exact = getattr(np, name)(x.exact, y.exact)
    if name == "multiply" and x.dtype != "int32":
        error = np.abs(x.exact) * y.error + np.abs(y.exact) * x.error + x.error * y.error
    elif name in ("maximum", "minimum"):
        error = np.maximum(x.error, y.error)
    else:
        error = np.asarray(x.error) + y.error
    return _rounded(exact, error, x.dtype), getattr(jnp, name)


def _reduce(x: Value, number: int, axes_number: int, keep: int) -> Result:
    import jax.numpy as jnp

    rank = len(x.shape)
    axes = tuple(axis for axis in range(rank) if axes_number >> axis & 1)
    if not axes:
        return None
    keepdims = bool(keep % 2)
    terms = int(np.prod([x.shape[axis] for axis in axes]))
    name = ("sum", "sum", "max", "min", "mean")[number % (4 if x.dtype == "int32" else 5)]
    options: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    if x.dtype == "int32":
        more = {"dtype": np.int32} if name == "sum" else {}
        exact = getattr(np, name)(x.exact, **options, **more)
        return _rounded(exact, 0.0, "int32"), lambda x: getattr(jnp, name)(x, **options)
    exact = getattr(np, name)(x.exact, **options)
    error = np.broadcast_to(x.error, x.shape)
    if name in ("max", "min"):
        total = error.max(**options)
    else:
        largest = (np.abs(x.exact) + error).sum(**options)
        total = error.sum(**options) + terms * ROUNDOFF["float32"] * largest
        total = total / (terms if name == "mean" else 1)
    return _rounded(exact, total, x.dtype), lambda x: getattr(jnp, name)(x, **options)


def _multiply_and_sum(x: Value, number: int, axis_number: int) -> Result:
    """Along one axis, with the value itself or its mirror image: XLA makes it a matrix product."""
    if not x.shape:
        return None
    axis = axis_number % len(x.shape)
    mirrored = number % 2 == 1
    y = x
    if mirrored:
        y = Value(np.flip(x.exact, axis), np.flip(np.broadcast_to(x.error, x.shape), axis), x.dtype)
    product = _binary(x, y, 2)
    result = product and _reduce(product[0], 0, 1 << axis, number // 2)
    if product is None or result is None:
        return None
    multiply, total = product[1], result[1]
    return result[0], lambda v: total(multiply(v, _mirror(v, axis, mirrored)))


def _mirror(v: Any, axis: int, mirrored: bool) -> Any:
    import jax.numpy as jnp

    return jnp.flip(v, axis) if mirrored else v


def _moved(x: Value, compute: Callable[[Any, Any], Any], jax_compute: Callable[..., Any]) -> Result:
    """Result of an operation that only moves elements: errors move as values do."""
    error = compute(np.broadcast_to(x.error, x.shape), 0.0)
    value = Value(np.array(compute(x.exact, x.exact.dtype.type(2)), order="C"), error, x.dtype)
    return (value, jax_compute) if 0 < value.exact.size <= MOST_ELEMENTS else None


def _transpose(x: Value, number: int) -> Result:
    order = tuple(np.random.default_rng(number).permutation(len(x.shape)).tolist())
    return _moved(x, lambda v, _: v.transpose(order), lambda v: v.transpose(order))


def _flip(x: Value, number: int) -> Result:
    import jax.numpy as jnp

    axis = number % max(1, len(x.shape))
    return (
        _moved(x, lambda v, _: np.flip(v, axis), lambda v: jnp.flip(v, axis)) if x.shape else None
    )


def _slice(x: Value, number: int, start: int, length: int) -> Result:
    from jax import lax

    if not x.shape:
        return None
    axis, step = number % len(x.shape), 1 + number // 7 % 3
    size = x.shape[axis]
    first = start % size
    limit = first + 1 + length % (size - first)
    window = (slice(None),) * axis + (slice(first, limit, step),)
    return _moved(
        x, lambda v, _: v[window], lambda v: lax.slice_in_dim(v, first, limit, step, axis)
    )


def _pad(x: Value, number: int, low: int, high: int) -> Result:
    from jax import lax

    if not x.shape:
        return None
    axis = number % len(x.shape)
    low, high, interior = low % 7 - 3, high % 7 - 3, number // 7 % 3
    config = [(0, 0, 0)] * len(x.shape)
    config[axis] = (low, high, interior)

    def by_numpy(v: np.ndarray, fill: Any) -> np.ndarray:
        size = list(v.shape)
        size[axis] = (v.shape[axis] - 1) * (interior + 1) + 1
        spread = np.full(size, fill, v.dtype)
        spread[(slice(None),) * axis + (slice(None, None, interior + 1),)] = v
        sides = [(0, 0)] * v.ndim
        sides[axis] = (max(low, 0), max(high, 0))
        spread = np.pad(spread, sides, constant_values=fill)
        end = spread.shape[axis] + min(high, 0)
        return spread[(slice(None),) * axis + (slice(-min(low, 0), max(end, 0)),)]

    if by_numpy(x.exact, 0).size == 0:
        return None
    return _moved(x, by_numpy, lambda v: lax.pad(v, np.asarray(2, v.dtype), config))


def _reshape(x: Value, number: int) -> Result:
    rank = len(x.shape)
    axis = number % (rank + 1)
    kind = number // 11 % 3
    if kind == 0 and rank < 7:
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
    elif kind == 1 and axis + 1 < rank:
        shape = (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
    elif kind == 2 and axis < rank < 7:
        factors = [f for f in (2, 3, 5, 7, 11) if x.shape[axis] % f == 0]
        factor = factors[number // 33 % len(factors)] if factors else 1
        shape = (*x.shape[:axis], x.shape[axis] // factor, factor, *x.shape[axis + 1 :])
    else:
        return None
    return _moved(x, lambda v, _: v.reshape(shape), lambda v: v.reshape(shape))


def _broadcast(x: Value, number: int, size: int) -> Result:
    import jax.numpy as jnp

    axis, length = number % (len(x.shape) + 1), SIZES[size % 10]
    if len(x.shape) >= 7 or x.exact.size * length > MOST_ELEMENTS:
        return None
    shape = (*x.shape[:axis], length, *x.shape[axis:])
    return _moved(
        x,
        lambda v, _: np.broadcast_to(np.expand_dims(v, axis), shape),
        lambda v: jnp.broadcast_to(jnp.expand_dims(v, axis), shape),
    )


def _concatenate(x: Value, y: Value, number: int) -> Result:
    import jax.numpy as jnp

    if x.dtype != y.dtype or len(x.shape) != len(y.shape) or not x.shape:
        return None
    axis = number % len(x.shape)
    if any(a != b for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if i != axis):
        return None
    errors = [np.broadcast_to(v.error, v.shape) for v in (x, y)]
    value = Value(np.concatenate([x.exact, y.exact], axis), np.concatenate(errors, axis), x.dtype)
    if value.exact.size > MOST_ELEMENTS:
        return None
    return value, lambda x, y: jnp.concatenate([x, y], axis)


def _update(x: Value, number: int, shift: int) -> Result:
    """Rows moved along an axis by writing a slice over the value itself."""
    import jax.numpy as jnp

    axis = number % max(1, len(x.shape))
    if not x.shape or x.shape[axis] < 2:
        return None
    by = 1 + shift % (x.shape[axis] - 1)
    ahead = (slice(None),) * axis + (slice(by, None),)
    behind = (slice(None),) * axis + (slice(None, -by),)
    source, target = (ahead, behind) if number // 7 % 2 else (behind, ahead)

    def by_numpy(v: np.ndarray, _: Any) -> np.ndarray:
        written = v.copy()
        written[target] = v[source]
        return written

    # As jaxsr writes: `v.at[target].set(v[source])` is a known fault (`doctor/sentinels/cpu.py`).
    edge = (slice(None),) * axis + (slice(None, by) if target is ahead else slice(-by, None),)

    def joined(v: Any) -> Any:
        parts = [v[edge], v[source]] if target is ahead else [v[source], v[edge]]
        return jnp.concatenate(parts, axis)

    return _moved(x, by_numpy, joined)


def _product(x: Value, y: Value, number: int) -> Result:
    """A contraction over an axis of equal size; one more of equal size is a batch axis."""
    import jax.numpy as jnp

    if x.dtype != y.dtype:
        return None
    pairs = [(i, j) for i, a in enumerate(x.shape) for j, b in enumerate(y.shape) if a == b]
    if not pairs:
        return None
    i, j = pairs[number % len(pairs)]
    left, right = list("abcdefg"[: len(x.shape)]), list("hijklmn"[: len(y.shape)])
    right[j] = left[i]
    batch = [(a, b) for a, b in pairs if a != i and b != j]
    if batch and number // 7 % 2:
        a, b = batch[number // 14 % len(batch)]
        right[b] = left[a]
    out = [letter for letter in dict.fromkeys(left + right) if letter != left[i]]
    size = dict(zip(left, x.shape, strict=True)) | dict(zip(right, y.shape, strict=True))
    if len(out) > 7 or np.prod([size[letter] for letter in size]) > 8 * MOST_ELEMENTS:
        return None
    if np.prod([size[letter] for letter in out]) > MOST_ELEMENTS:
        return None
    rule = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    exact = np.einsum(rule, x.exact, y.exact)
    compute = lambda x, y: jnp.einsum(rule, x, y)  # noqa: E731
    if x.dtype == "int32":
        return Value(exact.astype(np.int32), 0.0, "int32"), compute
    first, second = (np.broadcast_to(v.error, v.shape) for v in (x, y))
    largest, other = np.abs(x.exact) + first, np.abs(y.exact) + second
    error = np.einsum(rule, np.abs(x.exact), second) + np.einsum(rule, first, other)
    error += size[left[i]] * ROUNDOFF["float32"] * np.einsum(rule, largest, other)
    return _rounded(exact, error, x.dtype), compute


def _window(x: Value, number: int, options: int) -> Result:
    from jax import lax

    if not x.shape or x.exact.size > MOST_ELEMENTS:
        return None
    axis, rank = number % len(x.shape), len(x.shape)
    width, stride = 1 + options % 3, 1 + options // 3 % 2
    low, high, dilation = options // 6 % 2, options // 12 % 3, 1 + options // 36 % 2
    other = (axis + 1) % rank if rank > 1 else None
    dims, strides, dilations = [1] * rank, [1] * rank, [1] * rank
    dims[axis], strides[axis] = width, stride
    dilations[axis if other is None or options // 72 % 2 else other] = dilation
    padding = [(0, 0)] * rank
    padding[axis] = (low, high)
    add = number // 7 % 2 == 0
    if (x.shape[axis] - 1) * dilations[axis] + 1 + low + high < width:
        return None

    def windows(v: np.ndarray, fill: Any) -> np.ndarray:
        spread = np.full(
            [(n - 1) * d + 1 for n, d in zip(v.shape, dilations, strict=True)], fill, v.dtype
        )
        spread[tuple(slice(None, None, d) for d in dilations)] = v
        spread = np.pad(spread, padding, constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(spread, width, axis)
        return view[(slice(None),) * axis + (slice(None, None, stride),)]

    error = np.broadcast_to(x.error, x.shape)
    if add:
        start: float = 0
        exact = windows(x.exact, 0).sum(-1, dtype=x.exact.dtype)
        total = windows(np.array(error), 0).sum(-1)
        # The windows are reduced in the dtype itself.
        total += width * ROUNDOFF[x.dtype] * windows(np.abs(x.exact) + error, 0).sum(-1)
    else:
        start = FLOOR if x.dtype != "int32" else np.iinfo(np.int32).min
        exact = np.maximum(windows(x.exact, start).max(-1), start)
        total = windows(np.array(error), 0).max(-1)
    if exact.size > MOST_ELEMENTS:
        return None

    def compute(v: Any) -> Any:
        return lax.reduce_window(
            v,
            np.asarray(start, v.dtype),
            lax.add if add else lax.max,
            dims,
            strides,
            padding,
            dilations,
        )

    return _rounded(exact, total, x.dtype), compute


def _cumulate(x: Value, number: int) -> Result:
    import jax.numpy as jnp

    if not x.shape:
        return None
    axis = number % len(x.shape)
    if x.dtype == "int32":
        exact = np.cumsum(x.exact, axis, dtype=np.int32)
        return Value(exact, 0.0, "int32"), lambda v: jnp.cumsum(v, axis)
    error = np.broadcast_to(x.error, x.shape)
    total = np.cumsum(error, axis)
    total += x.shape[axis] * ROUNDOFF[x.dtype] * np.cumsum(np.abs(x.exact) + error, axis)
    return _rounded(np.cumsum(x.exact, axis), total, x.dtype), lambda v: jnp.cumsum(v, axis)


def _convert(x: Value, number: int) -> Result:
    dtype = DTYPES[number % 2]
    if dtype == x.dtype:
        return None
    return _rounded(x.exact.astype(np.float64), x.error, dtype), lambda v: v.astype(dtype)


def _select(x: Value, number: int) -> Result:
    """Half of the elements doubled, chosen by their position."""
    import jax.numpy as jnp
    from jax import lax

    if not x.shape:
        return None
    axis, parity = number % len(x.shape), number // 7 % 2
    mask = (np.arange(x.shape[axis]) % 2 == parity).reshape(
        [-1 if i == axis else 1 for i in range(len(x.shape))]
    )

    def compute(v: Any) -> Any:
        return jnp.where(lax.broadcasted_iota(np.int32, v.shape, axis) % 2 == parity, v + v, v)

    return _rounded(np.where(mask, x.exact + x.exact, x.exact), 2 * np.asarray(x.error), x.dtype), (
        compute
    )


def apply(
    kind: int, x: Value, y: Value, i: int, j: int, p: int, q: int, r: int
) -> tuple[tuple[int, ...], Result]:
    """The operands' numbers among `i` and `j`, and the result."""
    of_one: list[Callable[[], Result]] = [
        lambda: _unary(x, p),
        lambda: _unary(x, p),
        lambda: _reduce(x, p, q, r),
        lambda: _reduce(x, p, 1 << q % 7, r),
        lambda: _multiply_and_sum(x, p, q),
        lambda: _transpose(x, p),
        lambda: _flip(x, p),
        lambda: _slice(x, p, q, r),
        lambda: _pad(x, p, q, r),
        lambda: _reshape(x, p),
        lambda: _broadcast(x, p, q),
        lambda: _update(x, p, q),
        lambda: _window(x, p, q),
        lambda: _cumulate(x, p),
        lambda: _convert(x, p),
        lambda: _select(x, p),
    ]
    of_two: list[Callable[[], Result]] = [
        lambda: _binary(x, y, p),
        lambda: _binary(x, y, p),
        lambda: _binary(x, y, p),
        lambda: _concatenate(x, y, p),
        lambda: _product(x, y, p),
        lambda: _product(x, y, p),
    ]
    number = kind % (len(of_one) + len(of_two))
    if number < len(of_one):
        return (i,), of_one[number]()
    return (i, j), of_two[number - len(of_one)]()

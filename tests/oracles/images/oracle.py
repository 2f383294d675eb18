"""The oracle of each image function, written by others, and random cases for both.

`every.py` has them all. The tests run them (`tests/ops/test_oracles.py`), and
`benchmarks.ops_functions` counts. A case is one picture: of one
pixel, of one line, of odd sides; black, white, of two levels, of one level, of noise. Oracles
compute in float64, and give one picture as (h, w, c).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

FLOATS, LEVELS = ("float32", "bfloat16"), ("uint8", "uint16")
ALL = (*FLOATS, *LEVELS)
SHAPES = ((1, 1), (1, 7), (9, 2), (34, 19))
EACH = 15
"""Pictures of each shape: 60 cases."""

Scale = Literal["white", "unit", "levels"]
Arguments = tuple[Any, ...]


def no_arguments(rng: np.random.Generator, images: np.ndarray) -> Arguments:
    """For functions of pictures alone."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """A function, and who says what it gives."""

    function: str
    """Its name in `jaxsr.ops`."""
    by: str
    """Who wrote the oracle."""
    call: Callable[..., Any]
    """Function of images (n, h, w, c), and of arguments with a row for each image."""
    reference: Callable[..., Any]
    """Function of one image (h, w, c) in float64 and of its arguments."""
    rule: str = ""
    """Its convention or options, where it has several."""
    draw: Callable[[np.random.Generator, np.ndarray], Arguments] = no_arguments
    """The arguments for pictures (n, h, w, c)."""
    dtypes: Sequence[str] = ALL
    scale: Scale = "white"
    """Values for the oracle: images up to their dtype's white; up to 1; or their levels, where
    every result must be equal."""
    atol: float = 2e-6
    """For float32, in parts of white. Other dtypes are rounded once more."""
    ties: float = 0
    """Share of levels that may be off by one, where the oracle says what may be so and why."""
    shapes: Sequence[tuple[int, int]] = SHAPES
    channels: int = 3
    span: tuple[float, float] = (0, 1)
    """Range of floats."""
    results: str | None = None
    """dtype of the results; `"real"`: float32 of integers. Default: that of the pictures."""
    white: float | None = None
    """White of the results. Default: that of the images, 1 of floats."""
    derivative: bool = True
    """Whether float64 differences hold the gradient of the pictures."""
    weighs: bool = False
    """Whether each value is a weighted sum of pixels: a NaN reaches those alone that weigh it."""

    @property
    def name(self) -> str:
        """The function and its rule."""
        return f"{self.function} {self.rule}".strip()


def white_of(dtype: str) -> int:
    """The greatest level; 1 of floats."""
    return np.iinfo(dtype).max if dtype in LEVELS else 1


def pictures(
    rng: np.random.Generator, shape: tuple[int, int], dtype: str, oracle: Oracle
) -> jax.Array:
    """`EACH` pictures of a shape."""
    x = rng.random((EACH, *shape, oracle.channels))
    x[0], x[1], x[2] = 0, 1, x[2] > 0.5
    x[3] = x[3, 0, 0]
    x[4] = x[4].mean(-1, keepdims=True)
    x[5, :, : shape[1] // 2] = 0
    if dtype in LEVELS:
        return jnp.asarray(np.rint(x * white_of(dtype)), dtype)
    low, high = oracle.span
    return jnp.asarray(low + x * (high - low), dtype)


@dataclass(frozen=True)
class Judgement:
    """Judgement on all cases of one dtype."""

    results: str
    """Their dtype."""
    cases: int
    values: int
    unequal: int
    """Values that are not the oracle's, rounded to the dtype."""
    wrong: int
    """Values that are further from it than the oracle allows."""
    largest: float
    """Difference, in parts of white."""


def in_float64(x: Any) -> np.ndarray:
    """Converts an array of any dtype, also bfloat16."""
    array = jnp.asarray(x)
    return np.asarray(array.astype(jnp.float32) if array.dtype == jnp.bfloat16 else array, float)


def judge(oracle: Oracle, dtype: str, *, seed: int = 0) -> Judgement:
    """Runs all cases of one dtype."""
    parts = [
        _judge_shape(oracle, dtype, shape, np.random.default_rng([seed, k]))
        for k, shape in enumerate(oracle.shapes)
    ]
    return Judgement(
        results=parts[0].results,
        cases=sum(part.cases for part in parts),
        values=sum(part.values for part in parts),
        unequal=sum(part.unequal for part in parts),
        wrong=sum(part.wrong for part in parts),
        largest=max(part.largest for part in parts),
    )


def _judge_shape(
    oracle: Oracle, dtype: str, shape: tuple[int, int], rng: np.random.Generator
) -> Judgement:
    images = pictures(rng, shape, dtype, oracle)
    exact = np.asarray(images) if oracle.scale == "levels" else in_float64(images)
    drawn_for = np.asarray(images) if dtype in LEVELS else exact.astype(np.float32)
    arguments = oracle.draw(rng, drawn_for)
    got = jax.jit(oracle.call)(images, *arguments)
    results = oracle.results or dtype
    if results == "real":
        results = "float32" if dtype in LEVELS else dtype
    assert got.dtype == results, f"{oracle.name} of {dtype} gives {got.dtype}"
    unit = white_of(dtype) if oracle.scale == "unit" else 1
    scaled = exact / unit if unit > 1 else exact
    rows = zip(scaled, *map(np.asarray, arguments), strict=True)
    want = np.stack([np.asarray(oracle.reference(x, *each)) for x, *each in rows])
    want = want.astype(float).reshape(got.shape)
    if results in LEVELS:
        want = (want * unit).clip(0, white_of(results))
    white = oracle.white or (
        1 if oracle.scale == "unit" and results not in LEVELS else white_of(dtype)
    )
    is_exact = oracle.scale == "levels"
    return compare(in_float64(got), want, results, oracle.atol * white, white, exact=is_exact)


def compare(
    got: np.ndarray, want: np.ndarray, dtype: str, atol: float, white: float, *, exact: bool = False
) -> Judgement:
    """How results of one dtype differ from float64 values.

    Args:
      got: results, in float64.
      want: of the oracle.
      dtype: of the results.
      atol: what float32 may differ by.
      white: what the largest difference is a part of.
      exact: whether nothing may differ.
    """
    if dtype in LEVELS:
        rounded, allowed = np.rint(want), (0 if exact else 0.5) + (0 if exact else atol)
    else:
        rounded = in_float64(jnp.asarray(want, dtype))
        allowed = 0 if exact else atol + (2.0**-8 * np.abs(want) if dtype == "bfloat16" else 0)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0, np.abs(got - want))
        unequal = (got != rounded) & ~same
        wrong = ~(difference <= allowed)
    return Judgement(
        dtype,
        len(got),
        got.size,
        int(unequal.sum()),
        int(wrong.sum()),
        float(difference.max(initial=0) / white),
    )


def gradient_error(oracle: Oracle, *, seed: int = 0) -> float:
    """How far derivatives of float64 pictures are from central differences, as a share.

    Along one direction at random, forwards and backwards.
    """
    rng = np.random.default_rng(seed)
    height, width = oracle.shapes[-1]
    low, high = oracle.span
    images = rng.uniform(low + 0.1 * (high - low), high, (3, height, width, oracle.channels))
    arguments = oracle.draw(rng, images.astype(np.float32))
    with jax.enable_x64(True):
        x, direction = jnp.asarray(images), jnp.asarray(rng.normal(size=images.shape))
        arrays = [jnp.asarray(a, jnp.float64 if a.dtype == np.float32 else None) for a in arguments]

        def call(x: jax.Array) -> jax.Array:
            return oracle.call(x, *arrays)

        value, slope = jax.jit(lambda x, t: jax.jvp(call, (x,), (t,)))(x, direction)
        upstream = jnp.asarray(rng.normal(size=value.shape))
        step = 1e-6 * (high - low)
        apart = jax.jit(lambda x: call(x + step * direction) - call(x - step * direction))(x)
        back = jax.jit(jax.grad(lambda x: (call(x) * upstream).sum()))(x)
        forwards = jnp.abs(slope - apart / (2 * step)).max() / jnp.maximum(
            jnp.abs(slope).max(), 1e-9
        )
        along = jnp.vdot(slope, upstream)
        size = jnp.sqrt(jnp.vdot(slope, slope) * jnp.vdot(upstream, upstream))
        return float(jnp.maximum(forwards, jnp.abs(jnp.vdot(back, direction) - along) / size))

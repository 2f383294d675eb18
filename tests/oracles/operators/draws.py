"""Whether random operators draw from torch's distribution, and whether their key decides.

Each run gives one element, a place further each time, so that elements are independent. The two
samples are compared by Kolmogorov's and Smirnov's statistic.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch

from jaxsr.comparison.jax_runs import JaxRuns
from jaxsr.comparison.torch_runs import host_array
from tests.oracles.operators.samples import Sample

RUNS = 4000
CHANCE = 1e-6
"""Chance of calling two equal distributions different; the keys and seeds are fixed."""


@contextmanager
def unseeded() -> Generator[None]:
    """Random operators without the seed that the database sets before each draw.

    A module that seeds torch in forward is refused: its key decides.
    """
    from torch.testing._internal import common_methods_invocations as database

    with mock.patch.object(database, "wrapper_set_seed", lambda op, *a, **k: op(*a, **k)):
        yield


def differing_draws(sample: Sample) -> str:
    """How the draws of an unseeded sample differ from torch's; "" where they do not."""
    torch.manual_seed(0)
    tensors = [*sample.arguments.tensors.values()]
    runs = JaxRuns(sample.module, sample.arguments)
    inputs = runs.inputs()

    with torch.no_grad():
        names = sorted(n for n in sample.module(*tensors) if n.startswith("out"))

    def floats(outputs: dict) -> list[jax.Array]:
        return [jnp.ravel(outputs[n]).astype(jnp.float32) for n in names]

    @jax.jit
    def draw(key: jax.Array) -> list[jax.Array]:
        return floats(runs.forward(train=False)(runs.state, inputs, key)[0])

    key = jax.random.key(0)
    first, again, other = draw(key), draw(key), draw(jax.random.key(1))
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(first, again, strict=True)):
        return "two runs with one key differ"
    with torch.no_grad():
        outputs = [sample.module(*tensors) for _ in range(2)]
    varies = [not torch.equal(outputs[0][n], outputs[1][n]) for n in names]
    for a, b, draws in zip(first, other, varies, strict=True):
        if draws and a.size > 8 and np.array_equal(a, b):
            return "two keys give the same numbers"
    places = [np.arange(RUNS) % max(a.size, 1) for a in first]

    @jax.jit
    def draws_of(keys: jax.Array, places: list[jax.Array]) -> list[jax.Array]:
        def one(operands: tuple[jax.Array, list[jax.Array]]) -> list[jax.Array]:
            return [a[p] for a, p in zip(draw(operands[0]), operands[1], strict=True) if a.size]

        return jax.lax.map(one, (keys, places))

    of_jax = draws_of(jax.random.split(jax.random.key(2), RUNS), places)
    of_torch: list[list[float]] = [[] for _ in of_jax]
    with torch.no_grad():
        for run in range(RUNS):
            outputs_of_run = sample.module(*tensors)
            arrays = [host_array(outputs_of_run[n]).ravel() for n in names]
            filled = [a for a in arrays if a.size]
            for values, array in zip(of_torch, filled, strict=True):
                values.append(float(array[run % array.size]))
    for index, (a, b) in enumerate(zip(of_jax, of_torch, strict=True)):
        distance = _kolmogorov_smirnov(np.asarray(a, np.float64), np.asarray(b))
        bound = math.sqrt(-math.log(CHANCE / 2) / RUNS)
        if not distance <= bound:
            return f"draws of out{index} differ in distribution by {distance:.2f}"
    return ""


def _kolmogorov_smirnov(first: np.ndarray, second: np.ndarray) -> float:
    """The largest distance of two samples' distribution functions, but for a shift by rounding."""
    if np.isnan(first).any() or np.isnan(second).any():
        return abs(float(np.isnan(first).mean() - np.isnan(second).mean()))
    values = np.concatenate([first, second])
    shift = 1e-2 * np.abs(values) + 1e-6

    def ahead(one: np.ndarray, other: np.ndarray) -> float:
        before = np.searchsorted(np.sort(one), values, side="right") / len(one)
        after = np.searchsorted(np.sort(other), values + shift, side="right") / len(other)
        return float((before - after).max(initial=0.0))

    return max(ahead(first, second), ahead(second, first))

"""Functions that compute by their own rules of promotion, whatever those of their caller's project.

JAX projects turn `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"` on to
find their own mistakes. Kernels promote on purpose.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def own_promotion(function: Callable[P, R]) -> Callable[P, R]:
    """`function` under JAX's standard promotion of dtypes and ranks."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return run

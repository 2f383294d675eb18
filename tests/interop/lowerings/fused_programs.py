"""Torch modules as JAX functions, for tests of what becomes of their programs."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from torch import nn

from jaxsr.interop import to_jax


def images(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Normal numbers, alike each time."""
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def function(module: nn.Module) -> Callable[..., Any]:
    """The module in evaluation mode, as a function of its input."""
    model = to_jax(module.eval())
    state = model.params, model.buffers
    return lambda x: model.apply(*state, x)[0]


def program(run: Callable[..., Any], *arrays: Any) -> str:
    """The program that XLA is given, as text."""
    return jax.jit(run).lower(*arrays).as_text()

"""Gives eager torch code the random numbers that `JaxModule.apply` draws from a key.

Dropout, drop path and noise then have equal values in torch and in JAX, so that a module in
training mode can be compared number by number.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import _pytree as pytree

from jaxsr.interop._core import registry
from jaxsr.interop._core.dispatch import Dispatcher
from jaxsr.interop.host_arrays import to_numpy, to_torch
from jaxsr.interop.lowerings.random import DRAWS
from jaxsr.interop.mode_methods import DispatchMode, Options, run_below

_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}


class TorchDraws(DispatchMode):
    """A context in which torch draws the same numbers as `apply(rng=key)` at the same place.

    Args:
      key: as for `apply`. Both must draw in the same order.
    """

    def __init__(self, key: jax.Array) -> None:
        super().__init__()
        registry.load()
        self._trace = Dispatcher(key)
        self._seed = torch.initial_seed()
        self.is_seeded = False
        """Whether code has seeded torch's generator before a draw: `apply` refuses that."""

    @property
    def count(self) -> int:
        """Draws so far."""
        return self._trace.draws

    def call(self, func: torch._ops.OpOverload, args: tuple, kwargs: Options) -> Any:
        if func not in DRAWS:
            return run_below(func, args, kwargs)
        self.is_seeded |= torch.initial_seed() != self._seed
        # JAX draws in float32 even for float64: the referee needs the same numbers.
        narrow = pytree.tree_map(self._narrow, (args, kwargs))
        drawn = DRAWS[func](self._trace, func, *narrow)
        results = func(*args, **kwargs)  # shapes, dtypes and aliasing as torch has them
        for result, value in zip(
            pytree.tree_leaves(results), pytree.tree_leaves(drawn), strict=True
        ):
            result.copy_(to_torch(jax.device_get(value.array())))
        return results

    def _narrow(self, value: object) -> object:
        if isinstance(value, torch.dtype):
            return _NARROW.get(value, value)
        if isinstance(value, torch.Tensor):
            dtype = _NARROW.get(value.dtype, value.dtype)
            return self._trace.wrap(jnp.asarray(to_numpy(value.to(dtype))), dtype)
        return value

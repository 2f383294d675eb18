"""Random numbers that a module's code draws from Python or NumPy while it is traced."""

import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
from torch import nn

from jaxsr.interop.errors import UnsupportedTorchError


@contextmanager
def refusing_host_draws(module: nn.Module) -> Generator[None]:
    """Refuses draws from `random` and `numpy.random` in training: a compiled function has one.

    In evaluation they pass: layers that are dropped in training draw then, too, and ignore it.

    Raises:
      UnsupportedTorchError: a global generator has moved at the end of the block.
    """
    python, numpy = random.getstate(), _numpy_state()
    yield
    moved = [
        name
        for name, has_moved in (
            ("random", random.getstate() != python),
            ("numpy.random", _numpy_state() != numpy),
        )
        if has_moved
    ]
    if moved and module.training:
        raise UnsupportedTorchError(
            f"forward or the loss draws from {moved[0]}, and a compiled function would keep that "
            "one draw for ever; draw from torch (torch.rand), or in the dataset; a thread that "
            "draws meanwhile needs a generator of its own"
        )


def _numpy_state() -> tuple:
    name, keys, *rest = np.random.get_state(legacy=True)
    return (name, np.asarray(keys).tobytes(), *rest)

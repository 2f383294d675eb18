"""Random numbers that a module's code draws from Python or NumPy while it is traced."""

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
from torch import nn

from jaxsr.interop.errors import UnsupportedTorchError


@contextmanager
def refusing_host_draws(module: nn.Module) -> Generator[None]:
    """Refuses draws from `random` and `numpy.random` in training: a compiled function has one.

    In evaluation they pass: layers that are dropped in training draw then, too, and ignore it. So
    they do beside other threads, such as those that load data: the generators are theirs, too.

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
    others = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.daemon
    ]
    if moved and module.training and not others:
        raise UnsupportedTorchError(
            f"forward or the loss draws from {moved[0]}, and a compiled function would keep that "
            "one draw for ever; draw from torch (torch.rand), or in the dataset"
        )


def _numpy_state() -> tuple:
    name, keys, *rest = np.random.get_state(legacy=True)
    return (name, np.asarray(keys).tobytes(), *rest)

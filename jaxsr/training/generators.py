"""The global random generators of Python, NumPy and torch: seeded, compared and kept."""

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jaxsr.data.prefetch import ReadAgainError


def seed_generators(seed: int, epoch: int, index: int) -> None:
    """Seeds the global generators of `random`, NumPy and torch."""
    # NumPy promises SeedSequence to stay as it is.
    words = np.random.SeedSequence([seed, epoch, index]).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    torch.default_generator.manual_seed(int(words[2]) << 32 | int(words[3]))


def generator_states() -> tuple:
    """Returns the states of the global generators, for comparison."""
    return *_host_states(), torch.get_rng_state().numpy().tobytes()


def _host_states() -> tuple:
    name, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest


@contextmanager
def preserved_generators() -> Generator[None]:
    """Restores the global generators afterwards."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


class _TorchDraws(TorchDispatchMode):
    """Notices operators that draw from torch's global generator, in its own thread alone."""

    def __init__(self) -> None:
        super().__init__()
        self.drew = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        draws = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        self.drew |= draws and kwargs.get("generator") is None
        return func(*args, **kwargs)


def read_without_draws(read: Callable[[], Any], name: str) -> Any:
    """Reads data in a thread, which must not draw from the generators that it shares with the step.

    Args:
      read: reads an item or a batch; it is repeated where Python's or NumPy's generator moved,
        because another thread may have drawn meanwhile.
      name: of the data, for the error.

    Returns:
      The value that was read.

    Raises:
      ReadAgainError: the data draw, or a step or a validation that runs meanwhile.
    """
    for _ in range(3):
        before = _host_states()
        with _TorchDraws() as draws:
            value = read()
        if not draws.drew and _host_states() == before:
            return value
        if draws.drew:
            break
    raise ReadAgainError(
        f"{name} draws from random, numpy.random or torch, which a thread must not; use --cache "
        "off and leave --prefetch out, or draw in prepare, or from a generator made there"
    )

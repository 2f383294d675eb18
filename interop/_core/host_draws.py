"""Random generators that a module's code uses while it is traced: Python's, NumPy's, torch's."""

import itertools
import os
import random
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from jaxsr.interop._core.entry_points import replaced
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_scope import running_trace
from jaxsr.interop.errors import UnsupportedTorchError

DRAWN = (
    "forward or the loss draws from {}, and a compiled function would keep that one draw for ever; "
    "draw from torch (torch.rand), or in the dataset; a thread that draws meanwhile needs a "
    "generator of its own"
)


@contextmanager
def refusing_host_draws(module: nn.Module) -> Generator[list[str]]:
    """Refuses draws from `random` and `numpy.random` in training: a compiled function has one.

    In evaluation they pass where they decide nothing: layers that are dropped in training draw
    then, too, and ignore it. So do draws from the operating system (`numpy.random.default_rng()`,
    `secrets`, `uuid`) in any mode: libraries name things by them.

    Yields:
      A list of the sources that were drawn from, at the end of the block.

    Raises:
      UnsupportedTorchError: a global generator has moved at the end of the block.
    """
    python, numpy = random.getstate(), _numpy_state()
    drawn, read = list[str](), _readers[-1]

    def noted(size: int) -> bytes:
        if not _is_importing():
            drawn[:] = ["os.urandom (NumPy's default_rng(), secrets, uuid)"]
        return read(size)

    with _entropy(noted):
        yield drawn
    moved = [
        name
        for name, has_moved in (
            ("random", random.getstate() != python),
            ("numpy.random", _numpy_state() != numpy),
        )
        if has_moved
    ]
    if moved and module.training:
        raise UnsupportedTorchError(DRAWN.format(moved[0]))
    drawn += moved


_readers: list[Callable[[int], bytes]] = [os.urandom]
"""The last one reads the operating system's random bytes for the code that is traced."""


def _urandom(size: int) -> bytes:
    """`os.urandom` during a trace. A module that is imported there may keep it for ever."""
    trace = running_trace()
    is_traced = trace is not None and trace.is_tracing_thread()  # another one may be making a key
    return _readers[-1 if is_traced else 0](size)


@contextmanager
def _entropy(read: Callable[[int], bytes]) -> Generator[None]:
    """In this block the code that is traced reads the operating system's random bytes so."""
    _readers.append(read)
    try:
        with replaced({"entropy": _urandom, "entropy of SystemRandom": _urandom}):
            yield
    finally:
        _readers.pop()


_LEAST, _GREATEST = 0x80110220, 0x12DD9BB3
"""Words of a Mersenne twister's state from which a uniform draw is almost 0, and almost 1."""


def calls_by_draws() -> Iterator[int]:
    """Counts three calls: Python's and NumPy's generators draw least, greatest and other numbers.

    The result of such a draw shows in any of them, however rare it is. The operating system's
    random bytes begin with 0, 255 and others.
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        for number, word in enumerate((_LEAST, _GREATEST)):
            random.setstate((3, (*(624 * [word]), 0), None))
            np.random.set_state(("MT19937", np.full(624, word, np.uint32), 0, 0, 0.0))
            with _entropy(_bytes_from(255 * number)):
                yield number
        random.setstate(python)
        np.random.set_state(numpy)
        yield 2
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _bytes_from(value: int) -> Callable[[int], bytes]:
    """Reads this byte first, then others: code draws again where a number is too great."""
    others = random.Random(value)
    first = itertools.chain([True], itertools.repeat(False))
    return lambda size: bytes([value]) * size if next(first) else others.randbytes(size)


def _is_importing() -> bool:
    """Whether a module is being imported, which happens once in torch, too."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _numpy_state() -> tuple:
    name, keys, *rest = np.random.get_state(legacy=True)
    return (name, np.asarray(keys).tobytes(), *rest)


_SEEDED = (
    "forward or the loss seeds torch's generator ({what}), but apply's rng decides what JAX draws; "
    "draw in __init__ and register a buffer, or leave the seed out"
)


class _Generator:
    """Torch's default generator as its functions see it in a trace, where it never moves.

    `torch.random.fork_rng` reads its state and sets it again: that passes if no number was drawn.
    """

    def __init__(self, trace: Trace, generator: torch.Generator) -> None:
        self._trace, self._generator = trace, generator
        self._draws = trace.draws

    def get_state(self) -> torch.Tensor:
        self._draws = self._trace.draws
        return self._generator.get_state()

    def set_state(self, state: torch.Tensor) -> None:
        if self._trace.is_tracing_thread() and self._draws != self._trace.draws:
            raise UnsupportedTorchError(_SEEDED.format(what="set_rng_state, fork_rng"))
        self._generator.set_state(state)

    def manual_seed(self, seed: int) -> torch.Generator:
        return self._seeded("torch.manual_seed") or self._generator.manual_seed(seed)

    def seed(self) -> int:
        return self._seeded("torch.seed") or self._generator.seed()

    def _seeded(self, what: str) -> None:
        if self._trace.is_tracing_thread():
            raise UnsupportedTorchError(_SEEDED.format(what=what))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


@contextmanager
def refusing_seeds(trace: Trace) -> Generator[None]:
    """Refuses to seed torch's generator in this block, by whatever name the function is called.

    The generator itself is not compared: threads that load data seed it meanwhile.
    """
    generator = _Generator(trace, torch.default_generator)
    with replaced({"torch's generator": generator, "torch's generator by name": generator}):
        yield

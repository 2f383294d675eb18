"""Guards around a task's methods: they refuse state and random draws, and complete errors."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from jaxsr.data.prefetch import filling_paused
from jaxsr.errors import InputError, UserError
from jaxsr.interop.hooks import holds_inputs
from jaxsr.interop.python_state import Snapshot, kept_change
from jaxsr.training.generators import generator_states

Batch = Mapping[str, Tensor]


def refusal(message: str) -> InputError:
    """Returns an error that names its own place, which tracing does not add."""
    error = InputError(message)
    error.located = True  # pyright: ignore[reportAttributeAccessIssue]
    return error


@contextmanager
def refusing_state(task: object, method: str) -> Generator[None]:
    """Refuses a method that counts, or keeps a value, in an object that it reaches in Python.

    Numbers that change, lists that grow, and tensors computed from the batch are state. A value
    that is made once and kept, such as a kernel, is not.

    Raises:
      InputError: the method keeps state; the message names what it changes.
    """
    with filling_paused():
        state = Snapshot(task)
        yield
        change = kept_change(state)
    changed = None if change is None else change.path
    if changed is None:
        kept = (key for key, value in vars(task).items() if holds_inputs(value))
        changed = next((f"self.{key}" for key in kept), None)
    if changed is not None:
        raise refusal(
            f"{type(task).__name__}.{method} changes {changed}, which a compiled step does once "
            "and a resumed run begins anew; keep it in a buffer of the network instead"
        )


@contextmanager
def refusing_draws(task: object, method: str) -> Generator[None]:
    """Refuses JAX code that draws from the generators of Python, NumPy or torch.

    Raises:
      InputError: the code drew from one.
    """

    before = generator_states()
    yield
    if generator_states() != before:
        raise refusal(
            f"{type(task).__name__}.{method} draws from random, numpy.random or torch, and a "
            "compiled step would keep that one number; draw from its key, with jax.random"
        )


@contextmanager
def naming_batch(batch: Batch) -> Generator[None]:
    """Adds the names and shapes of a batch's fields to errors of the task's code.

    Torch's own messages about shapes do not name the fields.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if len(error.args) == 1:  # exceptions of torch and Python; others format their text
            # themselves
            fields = ", ".join(
                f"{name} {str(rows.dtype).removeprefix('torch.')}{list(rows.shape)}"
                for name, rows in batch.items()
            )
            text = repr(error.args[0]) if isinstance(error, KeyError) else error.args[0]
            error.args = (f"{text} (the batch has {fields})",)
        raise


def check_arrays(batch: Mapping[str, Any]) -> None:
    """Refuses a batch of the loss that has other values than arrays.

    Raises:
      InputError: one is a Python number, or a tree of `constants`.
    """
    for name, value in batch.items():
        if not hasattr(value, "shape"):
            raise InputError(
                f"the loss's batch has {name} as a {type(value).__name__}; return arrays from "
                "prepare (jnp.asarray), and take what a tree of constants has apart there"
            )


def with_long_integers(batch: Batch) -> dict[str, Tensor]:
    """Returns the batch with torch's default integers, which its losses and indexing require."""
    return {n: t.long() if t.dtype == torch.int32 else t for n, t in batch.items()}

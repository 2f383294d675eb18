"""Keeps forked processes, such as the workers of torch's `DataLoader`, from using JAX.

A forked child has JAX's locks but not its threads: its first call of JAX would wait for ever.
Workers that compute with torch and NumPy alone are not affected.
"""

import functools
import os
import warnings

from jaxsr.interop.errors import InputError

_WORKAROUND = (
    'give the DataLoader multiprocessing_context="spawn", or compute with torch and NumPy alone in '
    "its workers"
)
_forked_after_start = False


class ForkWarning(RuntimeWarning):
    """A process that has started JAX was forked."""


@functools.cache
def guard_forks() -> None:
    """Registers a warning of one line at forks, instead of JAX's, which names no workaround."""
    if not hasattr(os, "register_at_fork"):
        return
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    os.register_at_fork(before=_warn, after_in_child=_mark)


def check_not_forked() -> None:
    """Refuses to wait for ever.

    Raises:
      InputError: this process was forked from one that had started JAX.
    """
    if _forked_after_start:
        raise InputError(
            f"this process was forked after JAX had started, where JAX would hang; {_WORKAROUND}"
        )


def _jax_has_started() -> bool:
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def _warn() -> None:
    if _jax_has_started():
        warnings.warn(
            f"forked after JAX had started: a child that calls JAX hangs; {_WORKAROUND}",
            ForkWarning,
            stacklevel=3,
        )


def _mark() -> None:
    global _forked_after_start  # noqa: PLW0603  (of this process alone)
    _forked_after_start = _jax_has_started()

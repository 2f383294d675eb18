"""Errors of a job that lost one of its processes, as one sentence.

The others learn of it from the library that carries their arrays (Gloo, NCCL) or from JAX's
coordination service. Nothing here imports JAX: an error of it shows that it is loaded.
"""

import re

from jaxsr.interop.errors import UserError, first_line

_SIGNS = (
    "Gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe",
    "coordination service", "CoordinationService", "heartbeat", "Barrier", "connected task",
)  # fmt: skip


class LostProcessError(UserError, RuntimeError):
    """Another process of the job ended, or can no longer be reached."""


def lost_process_error(error: BaseException) -> LostProcessError | None:
    """The error in one line; None where it is of another kind.

    Args:
      error: any; its causes are looked at as well.
    """
    cause: BaseException | None = error
    while cause is not None:
        of_jax = type(cause).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
        # Collectives of arrays that are not of a program fail with XLA's words in a ValueError.
        of_jax |= isinstance(cause, ValueError) and bool(re.match(r"[A-Z_]+: ", str(cause)))
        if of_jax and any(sign in str(cause) for sign in _SIGNS):
            return LostProcessError(
                "another process of this job ended or cannot be reached "
                f"({first_line(cause)}); its own output says why. Start all processes again, with "
                "--resume where the run has a checkpoint"
            )
        cause = cause.__cause__ or cause.__context__
    return None

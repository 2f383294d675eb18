"""Joining the processes of one job: JAX's own multi-controller runtime, by the environment.

The same command runs on every host. Cloud TPU pods, SLURM and Open MPI are recognised by JAX
itself; `JAXSR_COORDINATOR`, `JAXSR_PROCESSES` and `JAXSR_PROCESS` (or torchrun's `MASTER_ADDR`,
`MASTER_PORT`, `WORLD_SIZE` and `RANK`) name the job where nothing else does.
"""

import os

import jax

_OWN = ("JAXSR_COORDINATOR", "JAXSR_PROCESSES", "JAXSR_PROCESS")
_TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def start_if_asked() -> int:
    """Joins the job that the environment describes; returns its number of processes.

    Raises:
      ValueError: the environment describes a job only in part.
    """
    found = _from_environment()
    if found is None:
        return 1
    coordinator, processes, process = found
    # Without it CPU devices of several processes cannot talk to one another.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, processes, process)
    return processes


def _from_environment() -> tuple[str, int, int] | None:
    own = [os.environ.get(name) for name in _OWN]
    if any(own):
        if not all(own):
            missing = ", ".join(n for n, v in zip(_OWN, own, strict=True) if not v)
            raise ValueError(f"the environment names a job of several processes but not {missing}")
        return str(own[0]), _number(_OWN[1]), _number(_OWN[2])
    torchrun = [os.environ.get(name) for name in _TORCHRUN]
    if all(torchrun) and _number("WORLD_SIZE") > 1:
        address = f"{torchrun[0]}:{torchrun[1]}"
        return address, _number("WORLD_SIZE"), _number("RANK")
    return None


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdigit():
        raise ValueError(f"{name} must be a number, got {text!r}")
    return int(text)

# pyright: reportUnknownMemberType=false
"""Joins the processes of one job, as the environment describes it, in JAX's runtime.

The same command runs on every host, and the environment decides, in this order:

1. `JAXSR_COORDINATOR` (host:port), `JAXSR_PROCESSES` and `JAXSR_PROCESS`;
2. torchrun's `MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE` and `RANK`;
3. a job of several tasks under SLURM (`srun`) or Open MPI (`mpirun`);
4. a TPU pod slice: GKE and JobSet by `TPU_WORKER_HOSTNAMES` and `MEGASCALE_NUM_SLICES`, Cloud TPU
   VMs by asking JAX, which asks the machine's metadata server;
5. `JAXSR_CLUSTER=auto`, for other clusters that JAX recognises (Kubernetes jobs without TPUs).

`JAXSR_CLUSTER=none` turns 2 to 5 off, for a single process inside such a job.
"""

import logging
import os
import socket
import sys
import threading

import jax

from jaxsr.interop.errors import InputError
from jaxsr.interop.fields import whole_number
from jaxsr.interop.plugin_start import has_tpu
from jaxsr.interop.sealed_json import short_digest

log = logging.getLogger(__name__)

_JAXSR = ("JAXSR_COORDINATOR", "JAXSR_PROCESSES", "JAXSR_PROCESS")
_TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_SILENT_S = 5.0
"""Seconds of waiting for a coordinator after which a line says so."""
_claims: dict[str, socket.socket] = {}
"""Sockets whose names say which processes of jobs this one is, until it ends."""


def start_if_asked(platform: str = "auto") -> int:
    """Joins the job that the environment describes.

    Args:
      platform: that the run asks for; a TPU's pod slice is joined where it may be a TPU.

    Returns:
      The number of processes as far as the environment says it, else 1: after the platform is
      fixed, `jax.process_count()` knows.

    Raises:
      ValueError: the environment describes a job only in part, or wrongly.
    """
    cluster = os.environ.get("JAXSR_CLUSTER", "")
    if cluster not in ("", "auto", "none"):
        raise InputError(f"JAXSR_CLUSTER must be auto or none, got {cluster!r}")
    job = _named() or (None if cluster == "none" else _torchrun())
    if job is not None:
        coordinator, processes, process = job
        if not 0 <= process < processes:
            raise InputError(
                f"process {process} of {processes} does not exist; they are numbered from 0"
            )
        _check_address(coordinator)
        _claim_number(coordinator, process)
        _allow_cpu_collectives()
        line = f"waiting for {coordinator}, the coordinator of a job of {processes} processes"
        waiting = threading.Timer(_SILENT_S, log.warning, (line,))
        waiting.daemon = True
        waiting.start()
        try:
            jax.distributed.initialize(coordinator, processes, process)
        finally:
            waiting.cancel()
        return processes
    if cluster == "none":
        return 1
    processes = _tasks()
    if processes > 1 or cluster == "auto" or _on_named_slice(platform):
        _allow_cpu_collectives()
        jax.distributed.initialize()
    elif _on_tpu_vm(platform):
        _join_slice_if_any()
    return processes


def _check_address(coordinator: str) -> None:
    """Refuses addresses that JAX would try to reach for minutes, or would end the process for.

    Raises:
      InputError: it is not HOST:PORT, or the host is unknown.
    """
    host, colon, port = coordinator.rpartition(":")
    if not (host and colon and 0 < (whole_number(port) or 0) < 65536):
        raise InputError(
            f"the coordinator must be HOST:PORT with a port from 1 to 65535, got {coordinator!r}"
        )
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"the coordinator's host {host!r} is unknown ({error}); name one that this machine can "
            "reach"
        ) from error


def _claim_number(coordinator: str, process: int) -> None:
    """Refuses a second process of one number on this machine: JAX would abort the first.

    Raises:
      InputError: there is one.
    """
    # Linux's name without a file; it has at most 107 bytes, and a host's name may have more.
    name = f"\0jaxsr {short_digest(f'process {process} of {coordinator}'.encode())}"
    if name in _claims or not sys.platform.startswith("linux"):
        return
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(name)
    except OSError as error:
        claim.close()
        raise InputError(
            f"another process here is process {process} of the job at {coordinator}; give every "
            "process a number of its own (JAXSR_PROCESS)"
        ) from error
    _claims[name] = claim


def _join_slice_if_any() -> None:
    """On a Cloud TPU VM the metadata server lists the hosts of its slice, one or more."""
    try:
        jax.distributed.initialize()
    except (OSError, ValueError) as error:
        # No such server, as in a container with a chip of its own: the TPU is used alone.
        log.warning(
            "no description of a TPU pod slice was found (%s); using this host alone", error
        )


def _allow_cpu_collectives() -> None:
    # Without it CPU devices of several processes cannot talk to one another.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")


def _named() -> tuple[str, int, int] | None:
    values = [os.environ.get(name) for name in _JAXSR]
    if not any(values):
        return None
    if not all(values):
        missing = ", ".join(n for n, v in zip(_JAXSR, values, strict=True) if not v)
        raise InputError(f"the environment names a job of several processes but not {missing}")
    return str(values[0]), _number(_JAXSR[1]), _number(_JAXSR[2])


def _torchrun() -> tuple[str, int, int] | None:
    if not all(os.environ.get(name) for name in _TORCHRUN) or _number("WORLD_SIZE") == 1:
        return None
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return address, _number("WORLD_SIZE"), _number("RANK")


def _tasks() -> int:
    """Tasks of the SLURM step or of mpirun that this process is one of; 1 outside of both."""
    # `salloc` alone sets some of these: a shell in it is not one of several tasks.
    if all(os.environ.get(name) for name in _SLURM):
        return _number("SLURM_NTASKS")
    if os.environ.get("OMPI_COMM_WORLD_SIZE"):
        return _number("OMPI_COMM_WORLD_SIZE")
    return 1


def _on_named_slice(platform: str) -> bool:
    """Whether this is a host of a TPU pod slice that the environment describes, as GKE does."""
    hosts = "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")
    slices = os.environ.get("MEGASCALE_NUM_SLICES", "1") not in ("", "1")
    return _may_be_tpu(platform) and (hosts or slices)


def _on_tpu_vm(platform: str) -> bool:
    """Whether only the metadata server can tell if this TPU is a part of a slice."""
    described = "TPU_WORKER_HOSTNAMES" in os.environ or "TPU_SKIP_MDS_QUERY" in os.environ
    return _may_be_tpu(platform) and not described


def _may_be_tpu(platform: str) -> bool:
    return platform in ("auto", "tpu") and has_tpu()


def _number(name: str) -> int:
    text = os.environ[name]
    number = whole_number(text)
    if number is None or number > 999_999_999:
        raise InputError(f"{name} must be a number, got {text!r}")
    return number

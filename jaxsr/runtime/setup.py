"""The global settings of JAX and torch that commands change, in one place."""

import logging
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsr.errors import DeviceError, InputError, check_utf8_path, counted
from jaxsr.folders import cache_folder
from jaxsr.runtime.allocator import release_memory_of_compilers
from jaxsr.runtime.options import ComputeOptions
from jaxsr.runtime.xla_flags import backend_is_running

if TYPE_CHECKING:
    from jaxsr.interop.agreement import Facts

log = logging.getLogger(__name__)

_LEAST_COMPILE_S = 0.2
"""Programs that compile faster are not cached: reading them back would save no time."""


def setup_compute(
    options: ComputeOptions,
    *,
    jax_on_host: bool = False,
    job: "Callable[[], Facts] | None" = None,
    deterministic: bool = False,
) -> str:
    """Sets where and how a command computes; called once, before any array exists.

    Args:
      options: the command's.
      jax_on_host: with the torch engine, JAX also computes, on the CPU. Otherwise that engine
        leaves JAX alone.
      job: joins the processes of a job that the environment describes; returns the facts that must
        be equal in all of them. Default: compute alone.
      deterministic: give results that do not depend on scheduling, even on CUDA.

    Returns:
      Platform of the engine: `tpu`, `cuda` or `cpu`.

    Raises:
      DeviceError: the machine lacks the platform, or has fewer devices than the mesh.
      InputError: the environment describes a job only in part, or its processes differ.
    """
    if deterministic:
        choose_deterministic_kernels(options)
    by_torch = options.engine == "torch"
    platform = torch_device(options.platform) if by_torch else options.platform
    if by_torch and deterministic:
        import torch

        torch.use_deterministic_algorithms(True)
    if by_torch and not jax_on_host:
        return platform
    import jax

    from jaxsr.interop.agreement import check_alike
    from jaxsr.interop.distributed import start_if_asked
    from jaxsr.interop.mesh import make_mesh, select_platform

    configure_jax(compiled_folder(options))
    if options.matmul_precision != "default":
        jax.config.update("jax_default_matmul_precision", options.matmul_precision)
    jax_platform = "cpu" if by_torch else platform
    hosts = 1
    if job is not None:
        hosts = start_if_asked(jax_platform)
        if jax.distributed.is_initialized():
            check_alike(job())
    jax_platform = select_platform(jax_platform, simulated_devices=options.devices // hosts)
    if by_torch:
        return platform
    mesh = make_mesh(options.mesh_shape)  # reports too few devices before any data is read
    if absent := {*range(hosts)} - {device.process_index for device in mesh.devices.flat}:
        raise DeviceError(
            f"a mesh of {counted(options.devices, 'device')} has none of process {min(absent)} of "
            f"this job, whose {hosts} processes have {jax.device_count()}; "
            f"use --mesh {jax.device_count()}, or fewer processes"
        )
    return jax_platform


@contextmanager
def preserved_settings() -> Generator[None]:
    """Restores the settings that `setup_compute` changes by a command's options, where they can.

    Deterministic kernels of XLA stay: it reads its flags once in a process.
    """
    import jax
    import torch

    precision = jax.config.jax_default_matmul_precision
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        jax.config.update("jax_default_matmul_precision", precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


@contextmanager
def own_modes() -> Generator[None]:
    """Leaves the modes of torch that the caller is in: `no_grad`, `inference_mode`, `autocast`.

    Raises:
      InputError: torch makes its tensors without values.
    """
    import torch

    if torch.get_default_device().type == "meta":
        raise InputError(
            "torch's default device is 'meta', whose tensors have no values; call this outside of "
            "torch.device('meta'), or set_default_device('cpu') before"
        )
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def choose_deterministic_kernels(options: ComputeOptions) -> None:
    """Makes libraries and XLA use deterministic kernels on CUDA; called before they start.

    Raises:
      InputError: XLA has read its flags already, without this one.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    flags = os.environ.get("XLA_FLAGS", "").split()
    if options.platform not in ("auto", "cuda") or _DETERMINISTIC in flags:
        return
    if backend_is_running() and _has_gpu():
        raise InputError(
            f"--deterministic needs XLA_FLAGS={_DETERMINISTIC} before JAX starts, and it computes "
            "in this process already; set that before the first call, or use another process"
        )
    os.environ["XLA_FLAGS"] = " ".join([*flags, _DETERMINISTIC])


_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def _has_gpu() -> bool:
    import jax

    return jax.default_backend() == "gpu"


def share_gpu_memory() -> None:
    """Lets JAX take GPU memory as needed, for programs in which torch also computes on CUDA.

    By default JAX takes three quarters at its start, which leaves torch little. Call it before any
    JAX array exists; settings of the user stay.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def configure_jax(compile_cache: Path | None, *, least_compile_s: float = _LEAST_COMPILE_S) -> None:
    """Sets log level, compile cache, and the compiler's memory.

    Args:
      compile_cache: folder of compiled programs; None: no cache.
      least_compile_s: programs that compile faster are not cached.

    Raises:
      InputError: the folder's path is not UTF-8, or JAXSR_CPU_KERNELS has an unknown value.
    """
    import jax

    from jaxsr.xla_calls import calls

    try:
        calls.enabled()
    except ValueError as error:
        raise InputError(str(error)) from error
    release_memory_of_compilers()
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
    logging.getLogger("absl").addFilter(_is_no_failed_save)
    if compile_cache is None:
        return
    from jaxsr.runtime.compile_cache import use_sealed_cache

    check_utf8_path(compile_cache)
    try:
        compile_cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning("compiled programs are not kept: %s: %s", compile_cache, error.strerror)
        return
    use_sealed_cache()
    jax.config.update("jax_compilation_cache_dir", str(compile_cache))
    # An address in this process: it would keep a second process from finding a program for a mesh.
    # Our programs have all that their partitioning depends on among their operands.
    jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least_compile_s)


def _is_no_failed_save(record: logging.LogRecord) -> bool:
    """Drops Orbax's tracebacks of a failed save, which `Checkpoints` reports in one line."""
    return record.exc_info is None or "orbax" not in Path(record.pathname).parts


def torch_device(platform: str) -> str:
    """Returns the device of the torch engine: `cuda`, or `cpu`.

    Raises:
      DeviceError: the platform is `cuda` and torch finds no CUDA device.
    """
    import torch

    cuda = torch.cuda.is_available()
    if platform == "cuda" and not cuda:
        raise DeviceError(
            "platform 'cuda' is not usable here: torch finds no CUDA device; use --platform cpu "
            "or auto"
        )
    return "cuda" if cuda and platform in ("auto", "cuda") else "cpu"


def compiled_folder(options: ComputeOptions) -> Path:
    """Returns the folder in which a command keeps compiled programs."""
    return options.compile_cache or cache_folder() / "compiled"

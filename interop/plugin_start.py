"""JAX's plugins for TPUs and GPUs on machines without these devices: quiet, and found by files."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Generator
from pathlib import Path

from jaxsr.interop.errors import DeviceError

_TPU_DEVICES = ("/dev/accel0", "/dev/vfio/0")


def has_tpu() -> bool:
    """Whether the operating system shows a TPU, whatever JAX makes of it."""
    return any(map(os.path.exists, _TPU_DEVICES))


def check_profiler(platform: str) -> None:
    """Refuses a profile where libtpu would end the process: it is loaded, and there is no TPU.

    Raises:
      DeviceError: it would; a platform that is named keeps JAX from loading libtpu.
    """
    maps = Path("/proc/self/maps")
    if platform != "tpu" and maps.exists() and "/libtpu.so" in maps.read_text():
        raise DeviceError(
            "profile: libtpu, which is installed here, ends the process where there is no TPU; "
            f"add --platform {platform}"
        )


def skip_library_check() -> None:
    """Lets JAX's CUDA plugin load without NVIDIA's libraries, on a machine without their driver.

    It refuses to otherwise, with a traceback on every start of JAX. Compiling needs no device.
    """
    if importlib.util.find_spec("jax_cuda13_plugin") and not os.path.exists("/dev/nvidiactl"):
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")


@contextlib.contextmanager
def quiet_libtpu() -> Generator[None]:
    """Keeps libtpu from asking for a Cloud machine's description, and from reporting its absence.

    Several processes may compile at once. The environment is libtpu's only interface; it reads it
    when it is first loaded.
    """
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_LIBRARY_PATH", _library() or "")
    sys.stderr.flush()
    stderr_copy, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)
        os.close(null)


def _library() -> str | None:
    spec = importlib.util.find_spec("libtpu")
    if spec is None or not spec.submodule_search_locations:
        return None
    return os.path.join(spec.submodule_search_locations[0], "libtpu.so")

"""The parts of `benchmarks.gpu`, and the first calls of every part in its process."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.harness.report import Row


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where a part runs, and how much of it."""

    device: Literal["cuda", "cpu"]
    quick: bool
    """Small sizes and few of them, as for trying the program on a CPU."""
    folder: Path
    """For its files."""
    done: frozenset[str] = frozenset()
    """Names of the rows that an earlier run has."""

    @property
    def target(self) -> str:
        """The GPU to compile for ahead of time: this machine's, or an H200 where there is none."""
        return f"{known_gpu() or 'h200'}:1"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows that are computed in a process of their own."""

    name: str
    rows: Callable[[Setting], Iterable[Row]]
    """Each row has a `name`, and an `ok` where something is judged."""
    timeout_s: float
    timed: bool = False
    """Whether it measures speed, and so runs alone."""
    needs_gpu: bool = False


def start_jax(setting: Setting) -> None:
    """Fixes JAX's platform; called first in a part's process, before any array exists."""
    from jaxsr.interop.mesh import select_platform
    from jaxsr.runtime.setup import configure_jax, share_gpu_memory

    share_gpu_memory()
    configure_jax(None)
    select_platform(setting.device)


WITHOUT_DEVICE = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}
"""Environment that hides the GPU: programs are compiled as on a machine without one."""


def known_gpu() -> str | None:
    """The name in `GPUS` of this machine's GPU, by NVIDIA's driver; None without one."""
    import subprocess

    from jaxsr.interop.aot.gpus import GPUS

    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    kind = listed.strip().split("\n")[0]
    return next((name for name, gpu in GPUS.items() if gpu.kind == kind), None)

"""What every command that runs a detector is told, and the detector it asks for."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxsr.detection.detector import Detector, Form, load_detector
from jaxsr.errors import InputError


@dataclass(frozen=True, kw_only=True)
class DetectorOptions:
    """Which network, where, and how pictures are sized."""

    weights: Path
    """Weights that a training run exported, or a published MSHNet checkpoint."""
    out: Path
    """Folder for the results."""
    threshold: float = 0.5
    """Probability above which a pixel belongs to a target."""
    size: Form | None = None
    """Look at pictures resized to base × base, or at their native size. Default: as trained."""
    base: int | None = None
    """Side in pixels for size=base. Default: as trained."""
    batch: int = 8
    """Pictures at once."""
    engine: Literal["jax", "torch"] = "jax"
    """jax compiles a few programs for all sizes; torch runs eagerly on the CPU."""
    platform: Literal["auto", "tpu", "cuda", "cpu"] = "auto"
    """Where to compute; auto takes TPU, then CUDA, then CPU."""
    mesh: int = 1
    """Devices that a batch is split over."""
    lane_folding: Literal["auto", "on", "off"] = "auto"
    """Fold columns of narrow images into a TPU's lanes: same values, less time and memory. auto: on
    TPUs; CPUs hold images with their channels last."""
    compile_cache: Path | None = None
    """Where compiled programs are kept. Default: the user's cache folder."""

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise InputError(f"threshold must be at least 0 and below 1, got {self.threshold}")
        if self.batch < 1 or self.mesh < 1 or self.batch % self.mesh:
            raise InputError(f"batch={self.batch} must be a positive multiple of mesh={self.mesh}")

    def select_platform(self) -> None:
        """Fixes where JAX computes and keeps its programs; before any array exists.

        Raises:
          jaxsr.interop.mesh.DeviceError: the machine has no such device.
        """
        if self.engine == "jax":
            import jax

            from jaxsr.interop.mesh import select_platform
            from jaxsr.runtime.cli import cache_folder

            cache = self.compile_cache or cache_folder() / "compiled"
            jax.config.update("jax_compilation_cache_dir", str(cache))
            logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
            select_platform(self.platform, simulated_devices=self.mesh)

    def detector(self) -> Detector:
        """Loads the network.

        Raises:
          FileNotFoundError, ValueError: the weights are missing or of another network.
        """
        return load_detector(
            self.weights,
            engine=self.engine,
            mesh=self.mesh,
            batch=self.batch,
            lane_folding=self.lane_folding,
            evaluate=self.size,
            base=self.base,
        )

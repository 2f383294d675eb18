"""`python -m jaxsr.detect … --aot v5e:2x4`: a detector's batch compiled ahead of time."""

from typing import Any

from jaxsr.data.input_form import InputForm
from jaxsr.detection.config import DetectConfig
from jaxsr.interop.aot.chips import Topology
from jaxsr.interop.aot.compile import Ahead
from jaxsr.interop.folding.policy import Choice
from jaxsr.runtime.aot import compile_batches, prepare
from jaxsr.runtime.jax_runner import open_ahead


def compile_batch(
    network: Any,
    topology: Topology,
    *,
    side: int,
    batch: int,
    dtype: str = "float32",
    lane_folding: Choice = "auto",
) -> Ahead:
    """Compiles a batch of square pictures, split over all of the topology's devices.

    Args:
      network: the torch module.
      topology: where to.
      side: of a picture in pixels.
      batch: pictures over all devices.
      dtype: of the computation.
      lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.
    """
    runner = open_ahead(network, topology, dtype=dtype, lane_folding=lane_folding)
    return runner.lower((batch, 3, side, side), topology, name=f"detect {side}x{side}")


def run(config: DetectConfig) -> int:
    """What the command does with `--aot`; returns its exit status."""
    from jaxsr.models.load import load_model

    topology = prepare(config)
    loaded = load_model(config.weights, kind="detector")
    side = config.base or InputForm.from_description(loaded.metadata or {}).base
    devices = len(topology.devices)

    def compile_at(rows: int) -> Ahead:
        return compile_batch(
            loaded.network,
            topology,
            side=side,
            batch=rows,
            dtype=config.dtype,
            lane_folding=config.lane_folding,
        )

    batch = -(-config.batch // devices) * devices
    return compile_batches([compile_at], config, batch=batch, step=devices)

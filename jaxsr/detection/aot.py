"""`python -m jaxsr.detect … --aot v5e:2x4`: a detector's batch compiled ahead of time."""

from jaxsr.data.input_form import InputForm
from jaxsr.detection.config import DetectConfig
from jaxsr.interop.aot.compile import Ahead
from jaxsr.models.load import load_model
from jaxsr.runtime.aot import compile_batches, prepare
from jaxsr.runtime.jax_runner import open_ahead


def run(config: DetectConfig) -> int:
    """What the command does with `--aot`; returns its exit status."""
    topology = prepare(config)
    loaded = load_model(
        config.model, kind="detector", weights=config.weights, options=config.class_options()
    )
    runner = open_ahead(loaded.network, topology, config, lane_folding=config.lane_folding)
    side = config.base or InputForm.from_description(loaded.metadata or {}).base
    devices = len(topology.devices)

    def compile_at(rows: int) -> Ahead:
        return runner.lower((rows, 3, side, side), topology, name=f"detect {side}x{side}")

    batch = -(-config.batch // devices) * devices
    return compile_batches([compile_at], config, batch=batch, step=devices)

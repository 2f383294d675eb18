"""`python -m jaxsr.restore … --aot v5e:2x4`: tiles of a network compiled ahead of time."""

from jaxsr.interop.aot.compile import Ahead
from jaxsr.restoration.around_tiles import around_tiles
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.restorer import BATCH_ELSEWHERE, configured_model, make_tiler
from jaxsr.runtime.aot import Compile, compile_batches, prepare
from jaxsr.runtime.jax_runner import open_ahead


def run(config: RestoreConfig) -> int:
    """What the command does with `--aot`; returns its exit status."""
    topology = prepare(config)
    model = configured_model(config)
    sizes = config.sizes()
    tiler = make_tiler(model, config, sizes)
    shapes = {tiler.plan(size).shape for size in sizes} if sizes else {(tiler.side, tiler.side)}
    around = around_tiles(model.value_range, ensemble=config.ensemble)
    runner = open_ahead(
        model.network, topology, config, around=around, lane_folding=config.lane_folding
    )

    def program(height: int, width: int) -> Compile:
        def compile_at(rows: int) -> Ahead:
            shape = (rows, model.channels, height, width)
            return runner.lower(shape, topology, name=f"restore {width}x{height}")

        return compile_at

    devices = len(topology.devices)
    batch = (config.batch or tiler.at_once(BATCH_ELSEWHERE)) * devices
    programs = [program(*shape) for shape in sorted(shapes)]
    return compile_batches(programs, config, batch=batch, step=devices)

"""`python -m jaxsr.restore … --aot v5e:2x4`: tiles of a network compiled ahead of time."""

from functools import partial

from jaxsr.interop.aot.chips import Topology
from jaxsr.interop.aot.compile import Ahead
from jaxsr.interop.folding.policy import Choice
from jaxsr.restoration.around_tiles import around_tiles
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import RestorationModel
from jaxsr.restoration.restorer import BATCH_ELSEWHERE, configured_model
from jaxsr.restoration.tiling import Tiler
from jaxsr.runtime.aot import compile_batches, prepare
from jaxsr.runtime.jax_runner import open_ahead


def compile_tiles(
    model: RestorationModel,
    topology: Topology,
    *,
    shape: tuple[int, int],
    batch: int,
    ensemble: bool = False,
    dtype: str = "float32",
    lane_folding: Choice = "auto",
) -> Ahead:
    """Compiles a batch of tiles, split over all of the topology's devices.

    Args:
      model: the network.
      topology: where to.
      shape: height and width of a tile in pixels.
      batch: tiles over all devices.
      ensemble: as in `jaxsr.restore`.
      dtype: of the computation.
      lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.
    """
    around = around_tiles(model.value_range, ensemble=ensemble)
    runner = open_ahead(
        model.network, topology, dtype=dtype, around=around, lane_folding=lane_folding
    )
    name = f"restore {shape[1]}x{shape[0]}"
    return runner.lower((batch, model.channels, *shape), topology, name=name)


def run(config: RestoreConfig) -> int:
    """What the command does with `--aot`; returns its exit status."""
    topology = prepare(config)
    model = configured_model(config)
    tiler = Tiler(model.reach, tile=config.tile, approximate=config.tiling == "approximate")
    sizes = config.sizes()
    shapes = {tiler.plan(size).shape for size in sizes} if sizes else {(tiler.side, tiler.side)}
    devices = len(topology.devices)

    def compile_at(rows: int, *, shape: tuple[int, int]) -> Ahead:
        return compile_tiles(
            model,
            topology,
            shape=shape,
            batch=rows,
            ensemble=config.ensemble,
            dtype=config.dtype,
            lane_folding=config.lane_folding,
        )

    return compile_batches(
        [partial(compile_at, shape=shape) for shape in sorted(shapes)],
        config,
        batch=(config.batch or BATCH_ELSEWHERE) * devices,
        step=devices,
    )

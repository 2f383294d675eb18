"""Tiles of a network compiled for a TPU that is not there: `jaxsr.restore … --aot v5e:2x4`."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxsr.interop import mesh as meshes
from jaxsr.interop.aot.chips import Topology
from jaxsr.interop.aot.compile import Ahead, abstract, compile_ahead
from jaxsr.interop.aot.search import largest_batch
from jaxsr.interop.folding.policy import Choice, choose_folding
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.jax_engine import tile_function
from jaxsr.restoration.models import RestorationModel
from jaxsr.restoration.session import BATCH_ELSEWHERE, model_of
from jaxsr.restoration.tiling import Tiler
from jaxsr.runtime.aot import conclude, prepare


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
    mesh = meshes.make_mesh(len(topology.devices), topology.devices)
    rows = meshes.batch_sharding(mesh)
    converted, run = tile_function(
        model.network,
        value_range=model.value_range,
        ensemble=ensemble,
        dtype=dtype,
        folding=choose_folding(lane_folding, topology.devices[0]),
    )
    tiles = jax.ShapeDtypeStruct((batch, model.channels, *shape), jnp.float32)
    state: Any = (converted.params, converted.buffers)
    return compile_ahead(
        jax.jit(run, out_shardings=rows),
        (abstract(state, meshes.replicated(mesh)), abstract(tiles, rows)),
        topology,
        name=f"restore {shape[1]}x{shape[0]}",
    )


def run(config: RestoreConfig) -> int:
    """What the command does with `--aot`; returns its exit status."""
    topology = prepare(config)
    model = model_of(config)
    tiler = Tiler(model.reach, tile=config.tile, approximate=config.tiling == "approximate")
    sizes = config.sizes()
    shapes = {tiler.plan((h, w)).shape for w, h in sizes} if sizes else {(tiler.side, tiler.side)}
    devices = len(topology.devices)
    batch = (config.batch or BATCH_ELSEWHERE) * devices
    reports, largest = [], {}
    for shape in sorted(shapes):

        def compile_at(rows: int, shape: tuple[int, int] = shape) -> Ahead:
            return compile_tiles(
                model,
                topology,
                shape=shape,
                batch=rows,
                ensemble=config.ensemble,
                dtype=config.dtype,
                lane_folding=config.lane_folding,
            )

        reports.append(compile_at(batch))
        if config.aot_largest:
            found, trials = largest_batch(
                compile_at, reports[-1], batch=batch, step=devices, precision=0.05
            )
            largest[reports[-1].name] = {"batch": found, "trials": trials}
    return conclude(reports, config, largest=largest)

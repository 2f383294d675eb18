"""A detector's batch compiled for a TPU that is not there: `jaxsr.detect … --aot v5e:2x4`."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxsr.data.input_form import InputForm
from jaxsr.detection.detect_files import DetectConfig
from jaxsr.interop import mesh as meshes
from jaxsr.interop.aot.chips import Topology
from jaxsr.interop.aot.compile import Ahead, abstract, compile_ahead
from jaxsr.interop.aot.search import largest_batch
from jaxsr.runtime.aot import conclude, prepare


def compile_batch(
    network: Any,
    topology: Topology,
    *,
    side: int,
    batch: int,
    lane_folding: Literal["auto", "on", "off"] = "auto",
) -> Ahead:
    """Compiles a batch of square pictures, split over all of the topology's devices.

    Args:
      network: the torch module.
      topology: where to.
      side: of a picture in pixels.
      batch: pictures over all devices.
      lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.
    """
    from jaxsr.interop.folding.policy import choose_folding
    from jaxsr.interop.module import to_jax

    mesh = meshes.make_mesh(len(topology.devices), topology.devices)
    rows = meshes.batch_sharding(mesh)
    folding = choose_folding(lane_folding, topology.devices[0])
    model = to_jax(network.eval(), lane_folding=folding)
    pictures = jax.ShapeDtypeStruct((batch, 3, side, side), jnp.float32)
    return compile_ahead(
        jax.jit(lambda state, x: model.apply(*state, x)[0], out_shardings=rows),
        (
            abstract((model.params, model.buffers), meshes.replicated(mesh)),
            abstract(pictures, rows),
        ),
        topology,
        name=f"detect {side}x{side}",
    )


def run(config: DetectConfig) -> int:
    """What the command does with `--aot`; returns its exit status."""
    from jaxsr.models.load import load_model

    topology = prepare(config)
    loaded = load_model(config.weights, kind="detector")
    side = config.base or InputForm.from_description(loaded.metadata or {}).base
    devices = len(topology.devices)
    batch = -(-config.batch // devices) * devices

    def compile_at(rows: int) -> Ahead:
        return compile_batch(
            loaded.network, topology, side=side, batch=rows, lane_folding=config.lane_folding
        )

    report, largest = compile_at(batch), {}
    if config.aot_largest:
        found, trials = largest_batch(compile_at, report, batch=batch, step=devices, precision=0.05)
        largest[report.name] = {"batch": found, "trials": trials}
    return conclude([report], config, largest=largest)

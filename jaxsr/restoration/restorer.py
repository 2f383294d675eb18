"""Puts model, runner and tiler together as a configuration asks."""

import functools
from collections.abc import Callable, Iterable

import numpy as np
import torch

from jaxsr.restoration.around_tiles import around_tiles
from jaxsr.restoration.config import RestoreConfig, included_enlargers
from jaxsr.restoration.models import RestorationModel, find_model
from jaxsr.restoration.pipeline import Restorer
from jaxsr.restoration.tiling import Size, Tiler
from jaxsr.runtime.open_runner import open_runner
from jaxsr.runtime.runner import Runner
from jaxsr.runtime.torch_runner import TorchRunner

BATCH_ELSEWHERE = 8
"""Most tiles for an accelerator, which one leaves idle; on a CPU more only take memory."""


def configured_model(config: RestoreConfig, chosen: str = "") -> RestorationModel:
    """The network that the configuration names.

    Args:
      config: names it.
      chosen: name of included weights, if the configuration names no model. Default: those for
        clean images.
    """
    return find_model(
        (chosen or included_enlargers(config.scale)[0]) if config.chooses else config.model,
        weights=config.weights,
        options=config.class_options(),
        trust_builder=config.trust_builder,
        channels=config.channels,
        value_range=config.value_range,
    )


def make_tiler(
    model: RestorationModel,
    config: RestoreConfig,
    sizes: Iterable[Size],
    *,
    devices: int | None = None,
) -> Tiler:
    """The tiler for images of these sizes.

    Args:
      model: the network.
      config: settings of the run.
      sizes: the images' sizes, if known.
      devices: devices that each image has to itself, because images come one at a time.
    """
    return Tiler(
        model.reach,
        tile=config.tile,
        approximate=config.tiling == "approximate",
        uncut=config.tiling == "off",
        sizes=sizes,
        devices=devices,
    )


def open_tile_runner(model: RestorationModel, config: RestoreConfig) -> Runner:
    """The runner of tiles.

    Raises:
      DeviceError: fewer devices than the mesh needs, or torch finds no CUDA device.
    """
    around = around_tiles(model.value_range, ensemble=config.ensemble)
    return open_runner(model.network, config, around=around, lane_folding=config.lane_folding)


def tiles_at_once(config: RestoreConfig, tiler: Tiler, platform: str) -> int:
    """Tiles that a device of the platform computes at once."""
    return config.batch or (1 if platform == "cpu" else tiler.at_once(BATCH_ELSEWHERE))


def _on_host(model: RestorationModel) -> Callable[[np.ndarray], np.ndarray]:
    """The network for images in [0, 1] in torch, in the arithmetic that ranges are tried in."""

    @functools.cache
    def runner() -> Runner:
        return TorchRunner(model.network, around=around_tiles(model.value_range, ensemble=False))

    def network(images: np.ndarray) -> np.ndarray:
        with torch.backends.nnpack.flags(enabled=False):
            return runner().submit(images)()

    return network


def make_restorer(
    model: RestorationModel,
    config: RestoreConfig,
    *,
    sizes: Iterable[Size] = (),
    alone: bool = False,
    runner: Runner | None = None,
    progress: Callable[[int], None] = lambda pixels: None,
) -> tuple[Restorer, Runner, Tiler]:
    """The pipeline for images of these sizes, its runner and its tiler.

    Args:
      model: the network.
      config: settings of the run.
      sizes: the images' sizes, if known.
      alone: images come one at a time, and each has all devices to itself.
      runner: of the tiles. Default: a new one.
      progress: see `Restorer`.
    """
    tiler = make_tiler(model, config, sizes, devices=config.devices if alone else None)
    runner = runner or open_tile_runner(model, config)
    batch = tiles_at_once(config, tiler, runner.platform) * config.devices
    host, network = runner, None
    if config.engine == "jax":
        around = around_tiles(model.value_range, ensemble=config.ensemble)
        host = TorchRunner(model.network, around=around)
    if config.tiling == "auto" and model.reach.margin is not None and not model.states_its_margin:
        network = _on_host(model)
    restorer = Restorer(
        runner,
        host,
        tiler,
        scale=model.scale,
        channels=model.channels,
        batch=batch,
        outscale=config.outscale,
        insist=config.tiling == "off",
        tried_by=network,
        progress=progress,
    )
    return restorer, runner, tiler

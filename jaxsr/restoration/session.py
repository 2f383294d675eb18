"""Puts model, engine and tiler together as a configuration asks."""

from collections.abc import Callable, Iterable
from typing import Any

from jaxsr.errors import InputError
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import RestorationModel, find_model
from jaxsr.restoration.pipeline import Restorer
from jaxsr.restoration.tiling import Size, Tiler
from jaxsr.restoration.torch_engine import TorchEngine

# On an accelerator one tile leaves most of it idle; on a CPU more only take memory.
_BATCH = {"cpu": 1}
BATCH_ELSEWHERE = 8


def model_of(config: RestoreConfig) -> RestorationModel:
    """The network that the configuration names."""
    return find_model(
        config.model,
        weights=config.weights,
        options=config.class_options(),
        channels=config.channels,
        value_range=config.value_range,
    )


def make_engine(model: RestorationModel, config: RestoreConfig) -> tuple[Any, int]:
    """The engine, and the tiles it takes at once.

    Raises:
      DeviceError: fewer devices than the mesh needs.
      ValueError: a CUDA device was asked for and torch finds none.
    """
    shared = {
        "value_range": model.value_range,
        "ensemble": config.ensemble,
        "dtype": config.dtype,
    }
    if config.engine == "torch":
        device = _torch_device(config.platform)
        batch = config.batch or _BATCH.get(device, BATCH_ELSEWHERE)
        return TorchEngine(model.network, device=device, **shared), batch
    import jax

    from jaxsr.interop.mesh import make_mesh
    from jaxsr.restoration.jax_engine import JaxEngine

    mesh = make_mesh(config.mesh)
    batch = config.batch or _BATCH.get(jax.default_backend(), BATCH_ELSEWHERE)
    engine = JaxEngine(model.network, mesh=mesh, lane_folding=config.lane_folding, **shared)
    return engine, batch * config.mesh


def _torch_device(platform: str) -> str:
    import torch

    found = torch.cuda.is_available()
    if platform == "cuda" and not found:
        raise InputError(
            "platform=cuda, but torch finds no CUDA device; use --platform cpu or auto"
        )
    return "cuda" if found and platform in ("auto", "cuda") else "cpu"


def make_restorer(
    model: RestorationModel,
    config: RestoreConfig,
    *,
    sizes: Iterable[Size] = (),
    progress: Callable[[int], None] = lambda pixels: None,
) -> tuple[Restorer, Any, Tiler]:
    """The pipeline for pictures of these sizes, its engine and its tiler."""
    tiler = Tiler(
        model.reach,
        tile=config.tile,
        approximate=config.tiling == "approximate",
        whole=config.tiling == "off",
        sizes=sizes,
    )
    engine, batch = make_engine(model, config)
    host = TorchEngine(model.network, value_range=model.value_range, ensemble=config.ensemble)
    restorer = Restorer(
        engine,
        host if config.engine == "jax" else engine,
        tiler,
        scale=model.scale,
        channels=model.channels,
        batch=batch,
        outscale=config.outscale,
        insist=config.tiling == "off",
        progress=progress,
    )
    return restorer, engine, tiler

"""A trained detector on an engine: pictures in, logits out.

`jaxsr.data.input_form` says how pictures are prepared. A weights file that jaxsr exported says how
it was trained; for others the paper's way is assumed.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxsr.data.batched_network import PROGRAM_PX, PROGRAM_PX_ELSEWHERE, BatchedNetwork
from jaxsr.data.input_form import Form, InputForm
from jaxsr.errors import InputError
from jaxsr.models.load import load_model


class Detector(BatchedNetwork):
    """Runs a detector's network on an engine, over pictures of any sizes."""

    def __init__(
        self,
        network: Any,
        form: InputForm | None = None,
        *,
        engine: Literal["jax", "torch"] = "jax",
        mesh: int = 1,
        batch: int = 8,
        lane_folding: Literal["auto", "on", "off"] = "auto",
    ) -> None:
        """Args:
          network: the torch module.
          form: what it was trained to see. Default: the paper's way.
          engine: `jax` compiles a program for each shape, `torch` runs eagerly on the CPU.
          mesh: devices that a batch is split over.
          batch: pictures at once, a multiple of `mesh`.
          lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.

        Raises:
          ValueError: the batch cannot be split over the mesh.
        """
        if batch < 1 or mesh < 1 or batch % mesh:
            raise InputError(f"batch={batch} must be a positive multiple of mesh={mesh}")
        if engine not in ("jax", "torch"):
            raise InputError(f"engine must be 'jax' or 'torch', got {engine!r}")
        if engine == "torch":
            # Eager: a new size costs nothing, a larger canvas would.
            super().__init__(_torch_function(network), form, batch=batch, multiple=mesh)
            return
        import jax

        super().__init__(
            _jax_function(network, mesh, lane_folding),
            form,
            batch=batch,
            multiple=mesh,
            shared="size_B2" in inspect.signature(network.forward).parameters,
            program_px=PROGRAM_PX.get(jax.default_backend(), PROGRAM_PX_ELSEWHERE),
        )


def load_detector(
    weights: Path,
    *,
    engine: Literal["jax", "torch"] = "jax",
    mesh: int = 1,
    batch: int = 8,
    lane_folding: Literal["auto", "on", "off"] = "auto",
    evaluate: Form | None = None,
    base: int | None = None,
) -> Detector:
    """The detector of a weights file.

    Args:
      weights: a file that jaxsr exported, a published checkpoint, or a run folder.
      engine, mesh, batch, lane_folding: see `Detector`.
      evaluate: takes the place of what the file says.
      base: takes the place of what the file says.

    Raises:
      FileNotFoundError, ValueError: the file is missing, or not a detector's.
    """
    loaded = load_model(weights, kind="detector")
    form = InputForm.from_description(loaded.metadata or {})
    form = replace(form, evaluate=evaluate or form.evaluate, base=base or form.base)
    return Detector(
        loaded.network, form, engine=engine, mesh=mesh, batch=batch, lane_folding=lane_folding
    )


def _jax_function(
    network: Any, mesh: int, lane_folding: Literal["auto", "on", "off"]
) -> Callable[..., Any]:
    import jax

    from jaxsr.interop import mesh as meshes
    from jaxsr.interop.folding.policy import choose_folding
    from jaxsr.interop.module import to_jax

    devices = meshes.make_mesh(mesh)
    folding = choose_folding(lane_folding, devices.devices.flat[0])
    model = to_jax(network.eval(), lane_folding=folding)
    state = jax.device_put((model.params, model.buffers), meshes.replicated(devices))
    rows = meshes.batch_sharding(devices)
    run = jax.jit(lambda state, x, named: model.apply(*state, x, **named)[0], out_shardings=rows)
    return lambda x, **named: run(state, *jax.device_put((x, named), rows))


def _torch_function(network: Any) -> Callable[..., np.ndarray]:
    import torch

    network = network.eval()

    def run(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(x)).numpy()

    return run

"""A trained detector on an engine: pictures in, logits out.

`jaxsr.data.input_form` says how pictures are prepared. A weights file that jaxsr exported says how
it was trained; for others the paper's way is assumed.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from jaxsr.data.batched_network import PROGRAM_PX, PROGRAM_PX_ELSEWHERE, BatchedNetwork
from jaxsr.data.input_form import Form, InputForm
from jaxsr.models.load import load_model
from jaxsr.models.registry import LoadedModel
from jaxsr.runtime.open_runner import open_runner
from jaxsr.runtime.options import ComputeOptions
from jaxsr.runtime.runner import Runner

_DEFAULTS = ComputeOptions()


class Detector(BatchedNetwork):
    """Runs a detector's network on an engine, over pictures of any sizes."""

    def __init__(
        self,
        network: Any,
        form: InputForm | None = None,
        *,
        options: ComputeOptions = _DEFAULTS,
        batch: int = 8,
        lane_folding: Literal["auto", "on", "off"] = "auto",
        runner: Runner | None = None,
    ) -> None:
        """Args:
          network: the torch module.
          form: what it was trained to see. Default: the paper's way.
          options: who computes, and where.
          batch: pictures at once, a multiple of the mesh's devices.
          lane_folding: see `jaxsr.interop.folding.policy.choose_folding`.
          runner: of the network. Default: the one that `options` name.

        Raises:
          InputError: the batch cannot be split over the mesh.
          DeviceError: the machine does not have the devices.
        """
        options.check_batch(batch)
        runner = runner or open_runner(network, options, lane_folding=lane_folding)
        # torch is eager: a new size costs nothing, a larger canvas would.
        takes_sizes = "size_B2" in inspect.signature(network.forward).parameters
        super().__init__(
            runner.submit,
            form,
            batch=batch,
            multiple=options.devices,
            shared=options.engine == "jax" and takes_sizes,
            program_px=PROGRAM_PX.get(runner.platform, PROGRAM_PX_ELSEWHERE),
        )


def load_detector(
    model: str | Path | None,
    *,
    weights: Path | None = None,
    model_options: Mapping[str, Any] | None = None,
    trust_builder: bool = False,
    evaluate: Form | None = None,
    base: int | None = None,
    **options: Any,
) -> Detector:
    """The detector that a user names.

    Args:
      model, weights, model_options, trust_builder: see `jaxsr.models.load.load_model`.
      evaluate, base: take the place of what the weights file says.
      **options: see `Detector`.

    Raises:
      FileNotFoundError, ValueError: see `load_model`.
    """
    loaded = load_model(
        model,
        kind="detector",
        weights=weights,
        options=model_options,
        trust_builder=trust_builder,
    )
    return Detector(loaded.network, form_of(loaded, evaluate=evaluate, base=base), **options)


def form_of(loaded: LoadedModel, *, evaluate: Form | None, base: int | None) -> InputForm:
    """Form of the input that a network was trained on; see `load_detector`."""
    form = InputForm.from_description(loaded.metadata or {})
    return replace(
        form, evaluate=evaluate or form.evaluate, base=form.base if base is None else base
    )

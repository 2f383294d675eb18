"""Published weights of super-resolution networks, told apart and built by spandrel.

spandrel knows the architectures (ESRGAN, SwinIR, HAT, DAT, RCAN, …) by their weights' names and
shapes, and gives each one's input: channels, scale, multiples of sides. Images are in [0, 1].
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from jaxsr.errors import InputError, UserError, first_of, one_line
from jaxsr.interop.install import install_extra
from jaxsr.models.build_bound import bounded_build
from jaxsr.models.libraries import import_library
from jaxsr.models.registry import FAMILIES, LoadedModel, Weights
from jaxsr.models.weight_files import refuse_broken


def load_by_spandrel(
    path: Path, weights: Weights, *, name: str, refusals: Sequence[str] = ()
) -> LoadedModel:
    """The restorer of a weights file.

    Args:
      path: the file.
      weights: its tensors.
      name: by which the user named it.
      refusals: why families of jaxsr whose names it has do not take it.

    Raises:
      InputError: spandrel is missing, does not know the weights, or cannot build their network; or
        the network takes a mask, returns other channels than it takes, or only square images.
    """
    unknown = (
        f"{path} is of no family that jaxsr knows ({', '.join(FAMILIES)}; its first names: "
        f"{', '.join([*weights][:3])})"
    )
    workaround = (
        f"give --model package.module:Class --weights {path}, or add the family in "
        "jaxsr/models/registry.py"
    )
    unknown = first_of(refusals, 1) or unknown
    try:
        spandrel = import_library("spandrel")
    except InputError as error:
        raise InputError(
            f"{unknown}; {workaround}; or {install_extra('spandrel')}, which knows many "
            f"architectures ({error})"
        ) from error
    try:
        size, tensors = path.stat().st_size, len(weights)
        with warnings.catch_warnings(), bounded_build(path, size=size, tensors=tensors):
            # torch warns about a default of meshgrid in their code
            warnings.filterwarnings("ignore", "torch.meshgrid")
            descriptor = spandrel.ModelLoader("cpu").load_from_state_dict(dict(weights))
    except spandrel.UnsupportedModelError:
        raise InputError(f"{unknown}, nor one that spandrel knows; {workaround}") from None
    except UserError:
        raise
    except Exception as error:  # whatever a network's constructor raises at sizes that do not fit
        raise InputError(
            f"{path} cannot be loaded by spandrel ({type(error).__name__}: {one_line(error)}); "
            "get the file again"
        ) from error
    architecture = descriptor.architecture.name
    if not isinstance(descriptor, spandrel.ImageModelDescriptor):
        raise InputError(
            f"{path} is a {architecture}, which fills a mask; restoring needs one image in"
        )
    if descriptor.input_channels != descriptor.output_channels:
        raise InputError(
            f"{path} is a {architecture} that takes {descriptor.input_channels} channels and "
            f"returns {descriptor.output_channels}; restoring needs the same number"
        )
    sides = descriptor.size_requirements
    if sides.square:
        raise InputError(f"{path} is a {architecture}, which takes only square images")
    refuse_broken(weights, {}, source=str(path))  # no network of spandrel has infinite buffers
    call = descriptor._call_fn
    # The default one only calls the network, which then keeps the names of its submodules.
    plain = call.__qualname__.startswith("ImageModelDescriptor.")
    network = descriptor.model
    if not plain:  # under the network's name, which lines about it have
        network = type(type(network).__name__, (_Called,), {})(network, call)
    return LoadedModel(
        network=freeze_merged(network.float().eval()),
        name=name,
        family=architecture,
        kind="restorer",
        channels=descriptor.input_channels,
        least_side=max(sides.minimum, 1),
        side_multiple=sides.multiple_of,
    )


class _Called(nn.Module):
    """A network whose result spandrel prepares, such as the first of two."""

    def __init__(self, network: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self._call = network, call

    def forward(self, image: Tensor) -> Tensor:
        return self._call(self.network, image)


def freeze_merged(network: nn.Module) -> nn.Module:
    """Merges SPAN's three convolutions into one, once and for all.

    Its `Conv3XC` merges them at each forward in evaluation mode, writing into the parameters of its
    `eval_conv`, which a pure function cannot do.
    """
    for module in network.modules():
        update: Any = getattr(module, "update_params", None)
        if callable(update) and isinstance(getattr(module, "eval_conv", None), nn.Conv2d):
            update()
            module.update_params = _do_nothing  # type: ignore[assignment]
    return network


def _do_nothing() -> None:
    pass

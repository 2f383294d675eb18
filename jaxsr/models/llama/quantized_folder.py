"""Puts the quantised layers of a Hugging Face folder into a network of any family."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.models.llama.group_formats import (
    InputOrder,
    check_forms,
    dequantize_mxfp4,
    reading_layer,
    take_layer,
)
from jaxsr.models.llama.quantization_config import Quantization, read_quantization
from jaxsr.models.llama.quantized import Float8Activations, ScaledLinear, W8A8Linear

_FP8 = {torch.float8_e4m3fn: 0x7E, torch.float8_e5m2: 0x7B}
"""Bits of the largest finite number by dtype; those of infinity and NaN are greater."""


def swap_quantized(network: nn.Module, tensors: dict[str, Tensor], stated: Any) -> None:
    """Puts the checkpoint's quantised layers in, taking their tensors out of `tensors`.

    Args:
      network: with its layers under the checkpoint's names.
      tensors: of the checkpoint.
      stated: `quantization_config` of its `config.json`.

    Raises:
      InputError: a key, a value or a tensor that is not computed here.
    """
    if not isinstance(stated, Mapping):
        raise InputError(
            f"config.json has quantization_config {stated!r:.60}, which is not an object; get it "
            "again"
        )
    quantization = read_quantization(stated)
    if quantization.layout == "scaled":
        _swap_scaled(network, tensors, quantization)
        return
    swapped = quantization.layout == "mxfp4" and dequantize_mxfp4(tensors)
    for name, module in list(network.named_modules()):
        if type(module) is not nn.Linear or quantization.layout == "mxfp4":
            continue
        layer = take_layer(quantization.layout, name, tensors, **dict(quantization.options))
        if layer is not None:
            _check_sizes(name, module, layer, quantization)
            network.set_submodule(name, layer)
            swapped = True
    if not swapped:
        raise InputError(
            f"config.json says {stated.get('quant_method')!r:.40}, but no layer has tensors "
            "of this kind; use a checkpoint that is not quantised"
        )


def _check_sizes(
    name: str, module: nn.Linear, layer: nn.Module, quantization: Quantization
) -> None:
    linear: Any = layer.layer if isinstance(layer, InputOrder) else layer
    sizes = [(x.out_features, x.in_features) for x in (linear, module)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"{name} has {sizes[0]} outputs and inputs, but config.json makes it {sizes[1]}"
        )
    if module.bias is not None and linear.bias is None:
        raise InputError(f"the checkpoint lacks {name}.bias; get the folder again")
    group = linear.in_features if quantization.group == "all" else quantization.group
    if group is not None and linear.in_features // linear.group_count != group:
        raise InputError(
            f"config.json's quantization_config has group_size = {quantization.group}, but {name} "
            f"has groups of {linear.in_features // linear.group_count} inputs; get the folder again"
        )


def _swap_scaled(
    network: nn.Module, tensors: dict[str, Tensor], quantization: Quantization
) -> None:
    for name, module in list(network.named_modules()):
        scale_names = (f"{name}.weight_scale_inv", f"{name}.weight_scale")
        scale_name = next((n for n in scale_names if n in tensors), None)
        if not isinstance(module, nn.Linear) or scale_name is None:
            continue
        with reading_layer(name):
            layer = _scaled_layer(name, scale_name, tensors, quantization)
            _check_sizes(name, module, layer, quantization)
        network.set_submodule(name, layer)


def _scaled_layer(
    name: str, scale_name: str, tensors: dict[str, Tensor], quantization: Quantization
) -> ScaledLinear:
    block, activations = quantization.block, quantization.activations
    scale = tensors.pop(scale_name)
    weight = tensors.pop(f"{name}.weight", None)
    if weight is None or (weight.dtype not in _FP8 and weight.dtype != torch.int8):
        what = "is missing" if weight is None else f"is {weight.dtype}"
        raise InputError(f"{name}.weight has a scale but {what}; int8 and float8 are computed")
    if f"{name}.weight_zero_point" in tensors:
        raise InputError(f"{name} has a zero point; only symmetric quantisation is computed")
    if weight.ndim != 2 or not weight.numel():
        raise InputError(f"{name}.weight has the shape {tuple(weight.shape)}; get the folder again")
    if weight.dtype in _FP8 and (weight.view(torch.uint8) & 0x7F).max() > _FP8[weight.dtype]:
        raise InputError(f"{name}.weight has NaN or infinity; get the folder again")
    bias = tensors.pop(f"{name}.bias", None)
    check_forms({} if bias is None else {"bias": bias})
    if not scale.is_floating_point() or not torch.isfinite(scale.float()).all():
        raise InputError(f"{scale_name} has numbers that are no scales; get the folder again")
    input_scale = None
    if isinstance(activations, Float8Activations) and activations.static:
        input_scale = _input_scale(name, tensors)
    if (weight.dtype == torch.int8) != (activations == "int8") and activations is not None:
        raise InputError(
            f"{name}.weight is {weight.dtype}, but config.json rounds activations to "
            f"{'int8' if activations == 'int8' else 'float8'}; both must be of one kind"
        )
    if activations == "int8":
        return W8A8Linear(weight, scale, bias=bias)
    # One scale, or one per output, is not a block whatever the stated block size.
    unblocked = scale.numel() in (1, weight.shape[0]) and scale.shape != _blocks(weight, block)
    return ScaledLinear(
        weight,
        scale,
        block=None if unblocked else block,
        activations=activations,
        input_scale=input_scale,
        bias=bias,
    )


def _input_scale(name: str, tensors: dict[str, Tensor]) -> Tensor:
    """The one scale of a layer's activations: compressed-tensors' name, or transformers'."""
    places = [f"{name}.input_scale", f"{name}.activation_scale"]
    scales = [tensors.pop(place) for place in places if place in tensors]
    is_one = len(scales) == 1 and scales[0].numel() == 1 and scales[0].is_floating_point()
    if not is_one or not 0 < float(scales[0]) < math.inf:
        raise InputError(
            f"config.json says that activations have a static scale, but {name} has no positive "
            "input_scale; get the folder again"
        )
    return scales[0].float().reshape(())


def _blocks(weight: Tensor, block: tuple[int, int] | None) -> tuple[int, int] | None:
    if block is None:
        return None
    return (-(-weight.shape[0] // block[0]), -(-weight.shape[1] // block[1]))

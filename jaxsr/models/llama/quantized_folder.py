"""Puts the quantised layers of a Hugging Face folder into a network of any family."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.models.llama.group_formats import InputOrder, dequantize_mxfp4, take_layer
from jaxsr.models.llama.quantization_config import Quantization, read_quantization
from jaxsr.models.llama.quantized import Float8Activations, ScaledLinear, W8A8Linear

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


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
        if quantization.layout == "bitsandbytes":
            layer = _int8_layer(name, tensors)
        else:
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
    group = quantization.group
    if group is not None and linear.in_features // linear.group_count != group:
        raise InputError(
            f"config.json's quantization_config has group_size = {group}, but {name} has groups "
            f"of {linear.in_features // linear.group_count} inputs; get the folder again"
        )


def _int8_layer(name: str, tensors: dict[str, Tensor]) -> nn.Module | None:
    """A layer of bitsandbytes' LLM.int8(): SCB is the largest magnitude of each output."""
    largest = tensors.pop(f"{name}.SCB", None)
    if largest is None:
        return None
    row_major = tensors.pop(f"{name}.weight_format", None)
    if row_major is not None and int(row_major) != 0:
        raise InputError(f"{name} has a weight_format other than rows; use another checkpoint")
    weight = tensors.pop(f"{name}.weight", None)
    if weight is None or weight.dtype != torch.int8:
        raise InputError(f"{name} has SCB but no int8 weight; get the folder again")
    bias = tensors.pop(f"{name}.bias", None)
    return ScaledLinear(weight, largest.float()[:, None] / 127, bias=bias)


def _swap_scaled(
    network: nn.Module, tensors: dict[str, Tensor], quantization: Quantization
) -> None:
    block, activations = quantization.block, quantization.activations
    for name, module in list(network.named_modules()):
        scale_names = (f"{name}.weight_scale_inv", f"{name}.weight_scale")
        scale_name = next((n for n in scale_names if n in tensors), None)
        if not isinstance(module, nn.Linear) or scale_name is None:
            continue
        scale = tensors.pop(scale_name)
        weight = tensors.pop(f"{name}.weight", None)
        if weight is None or (weight.dtype not in _FP8 and weight.dtype != torch.int8):
            what = "is missing" if weight is None else f"is {weight.dtype}"
            raise InputError(f"{name}.weight has a scale but {what}; int8 and float8 are computed")
        if f"{name}.weight_zero_point" in tensors:
            raise InputError(f"{name} has a zero point; only symmetric quantisation is computed")
        bias = tensors.pop(f"{name}.bias", None)
        input_scale = None
        if isinstance(activations, Float8Activations) and activations.static:
            input_scale = _input_scale(name, tensors)
        if (weight.dtype == torch.int8) != (activations == "int8") and activations is not None:
            raise InputError(
                f"{name}.weight is {weight.dtype}, but config.json rounds activations to "
                f"{'int8' if activations == 'int8' else 'float8'}; both must be of one kind"
            )
        if activations == "int8":
            layer = W8A8Linear(weight, scale, bias=bias)
        else:
            # One scale, or one per output, is not a block whatever the stated block size.
            unblocked = scale.numel() in (1, weight.shape[0]) and scale.shape != _blocks(
                weight, block
            )
            layer = ScaledLinear(
                weight,
                scale,
                block=None if unblocked else block,
                activations=activations,
                input_scale=input_scale,
                bias=bias,
            )
        network.set_submodule(name, layer)


def _input_scale(name: str, tensors: dict[str, Tensor]) -> Tensor:
    """The one scale of a layer's activations: compressed-tensors' name, or transformers'."""
    places = [f"{name}.input_scale", f"{name}.activation_scale"]
    scales = [tensors.pop(place) for place in places if place in tensors]
    if len(scales) != 1 or scales[0].numel() != 1 or not float(scales[0]) > 0:
        raise InputError(
            f"config.json says that activations have a static scale, but {name} has no positive "
            "input_scale; get the folder again"
        )
    return scales[0].float().reshape(())


def _blocks(weight: Tensor, block: tuple[int, int] | None) -> tuple[int, int] | None:
    if block is None:
        return None
    return (-(-weight.shape[0] // block[0]), -(-weight.shape[1] // block[1]))

"""Linear layers of folders that pack numbers: GPTQ, AWQ, compressed-tensors and bitsandbytes.

The first three mean `(level - zero point) · scale`, with a scale and a zero point for each group of
inputs; they differ in the order of the levels. Layouts: GPTQModel's `qlinear`, AutoAWQ's
`modules/linear/gemm.py` and compressed-tensors' `compressors/pack_quantized`. The four bits of
bitsandbytes are the numbers of 16 values (`functional.dequantize_4bit`).
"""

import json
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError, UserError, one_line
from jaxsr.models.llama.block_formats import Levels
from jaxsr.models.llama.quantized import CodebookLinear, LevelsLinear, ScaledLinear, joined

Tensors = dict[str, Tensor]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output of each four bits of an int32, from the lowest."""


_ONES = {4: 0x11111111, 8: 0x01010101}
"""A one in each level of an int32, by bits."""


class InputOrder(nn.Module):
    """A layer whose groups consist of inputs that are not adjacent."""

    order: Tensor

    def __init__(self, order: Tensor, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("order", order)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.index_select(-1, self.order))


_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WHOLE = (torch.int32, torch.int64)
_FORMS: Mapping[str, tuple[int, tuple[torch.dtype, ...]]] = {
    **dict.fromkeys(("qweight", "qzeros", "weight_packed", "weight_zero_point"), (2, _WHOLE[:1])),
    **dict.fromkeys(("scales", "weight_scale"), (2, _FLOATS)),
    **dict.fromkeys(("g_idx", "weight_shape"), (1, _WHOLE)),
    **dict.fromkeys(("weight.quant_map", "weight.nested_absmax", "SCB", "bias"), (1, _FLOATS)),
    **dict.fromkeys(_STATES, (1, (torch.uint8,))),
    "weight.nested_quant_map": (1, _FLOATS),
    "weight.absmax": (1, (*_FLOATS, torch.uint8)),
}
"""Number of dimensions and dtypes of a layer's tensors."""


def check_forms(parts: Tensors) -> None:
    """Refuses tensors of a layer that are of another form than their format's writers make."""
    for part, tensor in parts.items():
        dims, dtypes = _FORMS.get(part, (tensor.ndim, (tensor.dtype,)))
        if tensor.ndim != dims or tensor.dtype not in dtypes or not tensor.numel():
            raise InputError(
                f"{part} is {tensor.dtype} of shape {tuple(tensor.shape)}, where "
                f"{' or '.join(map(str, dtypes))} of {dims} dimensions is needed; get the folder "
                "again"
            )
        if part in _FORMS and tensor.dtype in _FLOATS and not torch.isfinite(tensor).all():
            raise InputError(f"{part} has NaN or infinity; get the folder again")


@contextmanager
def reading_layer(name: str) -> Generator[None]:
    """Makes whatever tensors that do not fit each other raise one line with the layer's name."""
    try:
        yield
    except UserError as error:
        if name in str(error):
            raise
        raise InputError(f"{name}: {error}") from error
    except (ValueError, LookupError, TypeError, RuntimeError, ArithmeticError) as error:
        raise InputError(
            f"{name} has tensors that do not fit each other ({type(error).__name__}: "
            f"{one_line(error)}); get the folder again"
        ) from error


def gptq_layer(
    name: str, parts: Tensors, *, bits: int, adds_one: bool, ordered: bool, symmetric: bool
) -> nn.Module:
    """A layer of GPTQ.

    Args:
      name: of the layer, for errors.
      parts: `qweight` (I · bits / 32, O), `qzeros` (G, O · bits / 32), `scales` (G, O), perhaps
        `g_idx` (I,), the group of each input, and `bias`.
      bits: of a level, 4 or 8.
      adds_one: whether a stored zero point is one too low, as in the first version.
      ordered: whether the configuration says that inputs have an order, which `g_idx` holds.
      symmetric: whether it says that every zero point is the middle level.
    """
    levels = _unpacked(parts["qweight"].T, bits)
    stored = parts["qzeros"]
    if adds_one:  # to whole int32 words, as the format's authors do: a zero point of 0 borrows
        stored = stored + _ONES[bits]
    zeros = _unpacked(stored, bits).T.int()
    scales = parts["scales"].T
    _check(name, levels, scales, zeros)
    if symmetric and not (zeros == 1 << (bits - 1)).all():
        raise _contradiction(name, "sym = True, but zero points other than the middle level")
    order = None
    groups = parts.get("g_idx")
    if groups is None and ordered:
        raise _contradiction(name, "desc_act = True, but no g_idx with the inputs' order")
    if groups is not None:
        known = (groups >= 0) & (groups < scales.shape[1])
        if groups.shape != levels.shape[1:] or not known.all():
            raise InputError(f"{name}.g_idx does not name a group for each input; get it again")
        sizes = groups.long().bincount(minlength=scales.shape[1])
        if int(sizes.min()) != int(sizes.max()):
            raise InputError(
                f"{name}.g_idx makes groups of {int(sizes.min())} to {int(sizes.max())} inputs; "
                "only groups of one size are computed: use another checkpoint"
            )
        order = groups.argsort(stable=True)
        if torch.equal(order, torch.arange(len(order))):
            order = None
        else:
            levels = levels[:, order]
    layer = _layer(levels, scales, zeros, bits=bits, bias=parts.get("bias"))
    return layer if order is None else InputOrder(order, layer)


def awq_layer(name: str, parts: Tensors) -> nn.Module:
    """A layer of AWQ, four bits.

    Args:
      name: of the layer, for errors.
      parts: `qweight` (I, O / 8), `qzeros` (G, O / 8), `scales` (G, O), perhaps `bias`.
    """
    inverse = torch.tensor(_AWQ_ORDER).argsort()

    def outputs(packed: Tensor) -> Tensor:
        return _unpacked(packed, 4).unflatten(1, (-1, 8))[..., inverse].flatten(1).T

    levels, zeros, scales = outputs(parts["qweight"]), outputs(parts["qzeros"]), parts["scales"].T
    _check(name, levels, scales, zeros)
    return _layer(levels, scales, zeros.int(), bits=4, bias=parts.get("bias"))


def compressed_layer(name: str, parts: Tensors, *, bits: int, symmetric: bool) -> nn.Module:
    """A layer of compressed-tensors' pack-quantized format.

    Args:
      name: of the layer, for errors.
      parts: `weight_packed` (O, I · bits / 32), `weight_scale` (O, G), `weight_shape`, perhaps
        `weight_zero_point` (O · bits / 32, G), `weight_g_idx` and `bias`.
      bits: of a level, 4 or 8.
      symmetric: whether the configuration says that there are no zero points.
    """
    outputs, inputs = (int(size) for size in parts["weight_shape"])
    if symmetric == ("weight_zero_point" in parts):
        article = "a" if symmetric else "no"
        raise _contradiction(name, f"symmetric = {symmetric}, but {article} weight_zero_point")
    if "weight_g_idx" in parts:
        raise InputError(
            f"{name} orders its inputs by weight_g_idx, which is not computed; use a checkpoint "
            "with actorder weight or none"
        )
    levels = _unpacked(parts["weight_packed"], bits)
    padding = levels.shape[1] - inputs
    if levels.shape[0] != outputs or not 0 <= padding < 32 // bits:
        raise InputError(
            f"{name}.weight_packed holds {tuple(levels.shape)} numbers, and weight_shape says "
            f"{(outputs, inputs)}; get the folder again"
        )
    levels = levels[:, :inputs]
    scales = parts["weight_scale"]
    # Levels and zero points are stored with half their range added.
    if "weight_zero_point" in parts:
        zeros = _unpacked(parts["weight_zero_point"].T, bits).T[:outputs].int()
    else:
        zeros = torch.full(scales.shape, 1 << (bits - 1), dtype=torch.int32)
    _check(name, levels, scales, zeros)
    return _layer(levels, scales, zeros, bits=bits, bias=parts.get("bias"))


def int8_layer(name: str, parts: Tensors) -> ScaledLinear:
    """A layer of bitsandbytes' LLM.int8(): `SCB` is the largest magnitude of each output."""
    if "weight_format" in parts and int(parts["weight_format"]) != 0:
        raise InputError(f"{name} has a weight_format other than rows; use another checkpoint")
    weight = parts.get("weight")
    if weight is None or weight.dtype != torch.int8:
        raise InputError(f"{name} has SCB but no int8 weight; get the folder again")
    return ScaledLinear(weight, parts["SCB"].float()[:, None] / 127, bias=parts.get("bias"))


def four_bit_layer(name: str, parts: Tensors) -> CodebookLinear:
    """A layer of bitsandbytes' four bits, nf4 or fp4.

    Args:
      name: of the layer, for errors.
      parts: `weight`, two weights a byte; `weight.absmax`, the largest magnitude of each block;
        `weight.quant_map`, the 16 values; a `weight.quant_state…` in JSON; for magnitudes that are
        quantised themselves `weight.nested_absmax` and `weight.nested_quant_map`; perhaps `bias`.
    """
    (text,) = [bytes(parts[n].tolist()) for n in _STATES if n in parts]
    state = json.loads(text)
    outputs, inputs = map(_size, state["shape"])
    packed = parts["weight"].contiguous().view(torch.uint8).flatten()
    largest, block = parts["weight.absmax"], _size(state["blocksize"])
    sizes = len(packed), len(largest), len(parts["weight.quant_map"])
    if sizes != (outputs * inputs // 2, -(-outputs * inputs // block), 16):
        raise ValueError(f"{sizes[0]} bytes and {sizes[1]} blocks for {outputs} x {inputs}")
    is_nested = "weight.nested_absmax" in parts
    if is_nested != (largest.dtype == torch.uint8):
        raise ValueError(f"absmax of {largest.dtype}, nested_absmax is there: {is_nested}")
    if is_nested:
        values, outer = (
            parts["weight.nested_quant_map"][largest.int()],
            parts["weight.nested_absmax"],
        )
        each, offset = _size(state["nested_blocksize"]), float(state["nested_offset"])
        if len(outer) != -(-len(values) // each) or not math.isfinite(offset):
            raise ValueError(f"{len(outer)} nested blocks of {each} for {len(values)}, {offset=}")
        outer = outer[:, None].expand(-1, min(each, len(values))).flatten()[: len(values)]
        largest = values * outer + offset
    return CodebookLinear(
        packed, parts["weight.quant_map"], largest, block=block, shape=(outputs, inputs),
        bias=parts.get("bias"),
    )  # fmt: skip


def _size(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r:.40} is not a size")
    return value


def _contradiction(name: str, what: str) -> InputError:
    return InputError(
        f"config.json's quantization_config has {what} in {name}; get the folder again"
    )


_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BLOCKS, _SCALES = "_blocks", "_scales"


def dequantize_mxfp4(tensors: Tensors) -> bool:
    """Replaces experts of gpt-oss (`…_blocks` and `…_scales`) by weights; whether it found any.

    A byte of blocks (E, O, G, 16) holds two numbers of FP4, the first in its low half. A scale is a
    power of 2. bfloat16 holds the products exactly.
    """
    values = torch.tensor((*_FP4, *(-value for value in _FP4)), dtype=torch.bfloat16)
    names = [name.removesuffix(_BLOCKS) for name in tensors if name.endswith(_BLOCKS)]
    for name in names:
        blocks, scales = tensors.pop(name + _BLOCKS), tensors.pop(name + _SCALES, None)
        fits = scales is not None and blocks.ndim == 4 and blocks.shape[:-1] == scales.shape
        if scales is None or not fits or {blocks.dtype, scales.dtype} != {torch.uint8}:
            raise InputError(
                f"{name}{_BLOCKS} and {name}{_SCALES} do not fit; get the folder again"
            )
        numbers = torch.stack((blocks & 15, blocks >> 4), -1).flatten(3)
        weights = torch.ldexp(values[numbers.int()], scales[..., None].int() - 127)
        tensors[name] = weights.flatten(2).mT.contiguous()
    return bool(names)


LAYERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], Callable[..., nn.Module]]] = {
    "gptq": (("qweight", "qzeros", "scales"), ("g_idx", "bias"), gptq_layer),
    "awq": (("qweight", "qzeros", "scales"), ("bias",), awq_layer),
    "bitsandbytes": (("SCB",), ("weight", "weight_format", "bias"), int8_layer),
    "four-bit": (
        ("weight.absmax", "weight.quant_map"),
        ("weight", "weight.nested_absmax", "weight.nested_quant_map", *_STATES, "bias"),
        four_bit_layer,
    ),
    "pack-quantized": (
        ("weight_packed", "weight_scale", "weight_shape"),
        ("weight_zero_point", "weight_g_idx", "bias"),
        compressed_layer,
    ),
}
"""Layout -> tensors that a layer must have, that it may have, and the layer's constructor."""


def take_layer(layout: str, name: str, tensors: Tensors, **options: Any) -> nn.Module | None:
    """Makes a layer of its tensors and takes them out of the table; None where they are absent.

    Raises:
      InputError: some are there and some are not, or they do not fit each other.
    """
    needed, optional, make = LAYERS[layout]
    present = [part for part in needed if f"{name}.{part}" in tensors]
    if not present:
        return None
    if len(present) < len(needed):
        absent = next(part for part in needed if part not in present)
        raise InputError(f"the checkpoint lacks {name}.{absent}; get the folder again")
    names = [part for part in (*needed, *optional) if f"{name}.{part}" in tensors]
    parts = {part: tensors.pop(f"{name}.{part}") for part in names}
    with reading_layer(name):
        check_forms(parts)
        return make(name, parts, **options)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """The numbers along the last axis of int32, from the lowest bits on, as uint8."""
    steps = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((packed[..., None] >> steps) & ((1 << bits) - 1)).to(torch.uint8).flatten(-2)


def _check(name: str, levels: Tensor, scales: Tensor, zeros: Tensor) -> None:
    outputs, inputs = levels.shape
    if scales.shape != zeros.shape or len(scales) != outputs or inputs % scales.shape[1]:
        raise InputError(
            f"{name} has {outputs} outputs and {inputs} inputs, but scales {tuple(scales.shape)} "
            f"and zero points {tuple(zeros.shape)}; get the folder again"
        )


def _layer(
    levels: Tensor, scales: Tensor, zeros: Tensor, *, bits: int, bias: Tensor | None
) -> LevelsLinear:
    inputs = levels.shape[1]
    if bits == 4:
        levels = joined(levels)
    else:
        levels, zeros = (levels.int() - 128).to(torch.int8), zeros - 128
    return LevelsLinear(
        inputs,
        Levels(
            levels=levels.contiguous(),
            scale=scales.contiguous(),
            zero=-scales.contiguous(),
            sub_zero=zeros.to(torch.int16).contiguous(),
        ),
        bits=bits,
        bias=bias,
    )

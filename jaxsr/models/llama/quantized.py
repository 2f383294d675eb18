"""Linear layers whose weights stay quantised in memory, and how they get into a network.

Each stands where an `nn.Linear` stood, under its name, and computes `x Wᵀ + b` from
`dequantized()`, up to rounding; the tests compare the two. Weights have shape (O, I), O outputs and
I inputs. Formats that come from checkpoints keep those checkpoints' tensor names.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxsr.errors import InputError
from jaxsr.models.llama.block_formats import Levels

Scheme = Literal["int8", "int4"]


@dataclass(frozen=True, kw_only=True)
class Float8Activations:
    """Activations rounded to float8_e4m3fn as they come, each run with a scale of its own."""

    group: int | None = None
    """Features that share a scale. None: all of a token's."""
    bound: float | None = None
    """Largest magnitude that a scale takes into account; greater ones saturate."""
    static: bool = False
    """The checkpoint has one scale for all activations of a layer."""

    def round(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """The rounded activations, float32; `scale` is that of the checkpoint."""
        if scale is not None:
            levels = (x.float() / scale).clamp(-_FLOAT8_MAX, _FLOAT8_MAX)
            return levels.to(torch.float8_e4m3fn).float() * scale
        runs = x.float().unflatten(-1, (-1, self.group or x.shape[-1]))
        largest = runs.abs().amax(-1, keepdim=True)
        if self.bound is not None:
            largest = largest.clamp(max=self.bound)
        scale = torch.where(largest == 0, 1.0, largest / _FLOAT8_MAX)
        levels = (runs / scale).clamp(-_FLOAT8_MAX, _FLOAT8_MAX).to(torch.float8_e4m3fn)
        return (levels.float() * scale).flatten(-2)


_FLOAT8_MAX = 448.0  # of float8_e4m3fn


class QuantizedLinear(nn.Module):
    """The base of the formats; a subclass holds `weight` and decodes it."""

    bias: Tensor | None

    def __init__(self, inputs: int, outputs: int, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        if bias is not None and bias.shape != (outputs,):
            raise InputError(
                f"{outputs} outputs have a bias of shape {tuple(bias.shape)}; get the file again"
            )
        self.register_buffer("bias", bias)

    def dequantized(self) -> Tensor:
        """The weight that the stored numbers stand for, (O, I), float32."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self._biased(F.linear(x, self.dequantized().to(x.dtype)))

    def _biased(self, y: Tensor) -> Tensor:
        return y if self.bias is None else y + self.bias.to(y.dtype)


class ScaledLinear(QuantizedLinear):
    """int8 or float8 weights times a scale per tensor, per output channel or per block.

    Args:
      weight: int8, float8_e4m3fn or float8_e5m2.
      scale: (1, 1), (O, 1), or one per block of `block`; the last row and column of blocks may be
        cut short.
      block: (rows, columns) of a block; None unless the scale is per block.
      activations: the rounding of the inputs. None: they stay.
      input_scale: of all inputs, where it is static.
    """

    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        *,
        block: tuple[int, int] | None = None,
        activations: Float8Activations | None = None,
        input_scale: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        outputs, inputs = weight.shape
        super().__init__(inputs, outputs, bias)
        group = activations.group if activations else None
        if group is not None and inputs % group:
            raise InputError(
                f"activations are rounded in groups of {group}, which {inputs} inputs are "
                "not a multiple of"
            )
        self.activations = activations
        if block is None:
            if scale.numel() not in (1, outputs):
                raise InputError(
                    f"a weight of shape {(outputs, inputs)} needs one scale or {outputs}, "
                    f"got shape {tuple(scale.shape)}"
                )
            scale = scale.reshape(-1, 1)
        else:
            want = (-(-outputs // block[0]), -(-inputs // block[1]))
            if tuple(scale.shape) != want:
                raise InputError(
                    f"a weight of shape {(outputs, inputs)} in blocks of {block} needs scales "
                    f"{want}, got {tuple(scale.shape)}"
                )
            # A block is repeated in full, and a configuration may state any size of it.
            block = (min(block[0], outputs), min(block[1], inputs))
        self.block = block
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", scale.float())
        self.register_buffer("input_scale", input_scale)

    def dequantized(self) -> Tensor:
        scale = self.weight_scale
        if self.block is not None:
            (rows, columns), (high, wide) = scale.shape, self.block
            scale = scale[:, None, :, None].expand(rows, high, columns, wide)
            scale = scale.reshape(rows * high, columns * wide)
            scale = scale[: self.out_features, : self.in_features]
        return self.weight.float() * scale

    def forward(self, x: Tensor) -> Tensor:
        if self.activations is not None:
            x = self.activations.round(x, self.input_scale).to(x.dtype)
        if self.block is not None:
            return super().forward(x)
        # The scale belongs to the output: one product per output instead of one per weight.
        y = F.linear(x, self.weight.to(x.dtype))
        return self._biased((y.float() * self.weight_scale[:, 0]).to(x.dtype))


class W8A8Linear(ScaledLinear):
    """int8 weights per channel; activations are rounded to int8 per token as they come.

    The sums are those of integers: products of int8 values are exact in float32 and in bfloat16
    multiplication, and a run of `_EXACT` of them adds up exactly in float32.
    """

    _EXACT = 1024  # 1024 · 127 · 128 < 2²⁴

    def forward(self, x: Tensor) -> Tensor:
        levels, scale = quantize_tokens(x)
        total = torch.zeros((), device=x.device)
        for start in range(0, self.in_features, self._EXACT):
            part = slice(start, start + self._EXACT)
            total = total + F.linear(levels[..., part], self.weight[:, part].float())
        return self._biased((total * scale * self.weight_scale[:, 0]).to(x.dtype))


def quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 levels of each token, as float32, and their scale (…, 1).

    The scale is compressed-tensors' dynamic one: the largest magnitude over half of 255 steps.
    """
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True) / 127.5
    scale = torch.where(scale == 0, torch.finfo(torch.float32).eps, scale)
    return (x / scale).round().clamp(-128, 127), scale


PARTS = ("levels", "scale", "sub_scale", "zero", "sub_zero")
"""Arrays of a `LevelsLinear`."""


class LevelsLinear(QuantizedLinear):
    """`x Wᵀ + b` of levels and scales in arrays of their own.

    Levels of four bits lie in pairs: input i in the low half of a byte, i + I/2 in the high one.
    Engines store all arrays inputs first, see `level_arrays`.
    """

    levels: Tensor
    scale: Tensor
    sub_scale: Tensor | None
    zero: Tensor | None
    sub_zero: Tensor | None

    def __init__(self, inputs: int, levels: Levels, *, bits: int, bias: Tensor | None) -> None:
        super().__init__(inputs, levels.scale.shape[0], bias)
        self.bits, self.offset = bits, levels.offset
        for name in PARTS:
            self.register_buffer(name, getattr(levels, name))

    def unpacked(self, index: Tensor | None = None) -> Levels:
        """The matrix, or some of its rows, with a byte for each level."""
        parts: dict[str, Any] = {n: getattr(self, n) for n in PARTS}
        if index is not None:
            parts = {n: None if t is None else t.index_select(0, index) for n, t in parts.items()}
        if self.bits == 4:
            parts["levels"] = torch.cat((parts["levels"] & 15, parts["levels"] >> 4), 1)
        return Levels(offset=self.offset, **parts)

    @property
    def group_count(self) -> int:
        """Groups of inputs with a scale."""
        return max(t.shape[1] for n, t in self._arrays() if t is not None and n != "levels")

    def dequantized(self) -> Tensor:
        return self.unpacked().dequantized()

    def forward(self, x: Tensor) -> Tensor:
        if self.bits == 8 or any(t is not None and t.shape[1] % 2 for _, t in self._arrays()):
            y = F.linear(x.float(), self.dequantized())
        else:
            # A product for each half of the inputs: a TPU's compiler would store them joined.
            halves: dict[str, Any] = {
                n: None if t is None else t.chunk(2, 1) for n, t in self._arrays() if n != "levels"
            }
            y: Any = 0
            for i, levels in enumerate((self.levels & 15, self.levels >> 4)):
                part: dict[str, Any] = {n: None if t is None else t[i] for n, t in halves.items()}
                weight = Levels(levels=levels, offset=self.offset, **part).dequantized()
                y = y + F.linear(x.chunk(2, -1)[i].float(), weight)
        return self._biased(y.to(x.dtype))

    def _arrays(self) -> list[tuple[str, Tensor | None]]:
        return [(name, getattr(self, name)) for name in PARTS]

    def rows(self, index: Tensor) -> Tensor:
        """Some rows of the matrix, float32."""
        return self.unpacked(index).dequantized()


def joined(levels: Tensor) -> Tensor:
    """Levels of four bits (O, I) in pairs, as `LevelsLinear` has them."""
    low, high = levels.chunk(2, 1)
    return low | (high << 4)


class CodebookLinear(QuantizedLinear):
    """Four bits per weight, each the number of one of 16 values, which a scale multiplies.

    Args:
      packed: (O · I / 2,) uint8, row after row; the first weight of a byte is in its high half.
      book: the 16 values.
      scale: one for each `block` weights, row after row; the last may have fewer.
    """

    packed: Tensor
    book: Tensor
    weight_scale: Tensor

    def __init__(
        self,
        packed: Tensor,
        book: Tensor,
        scale: Tensor,
        *,
        block: int,
        shape: tuple[int, int],
        bias: Tensor | None = None,
    ) -> None:
        super().__init__(shape[1], shape[0], bias)
        self.block = min(block, shape[0] * shape[1])  # which is repeated in full
        self.register_buffer("packed", packed)
        self.register_buffer("book", book.float())
        self.register_buffer("weight_scale", scale.float())

    def dequantized(self) -> Tensor:
        numbers = torch.stack((self.packed >> 4, self.packed & 15), 1).flatten()
        scale = self.weight_scale[:, None].expand(-1, self.block).flatten()[: len(numbers)]
        return (self.book[numbers.int()] * scale).view(self.out_features, self.in_features)


def quantize_int8(linear: nn.Linear) -> ScaledLinear:
    """Weight-only int8, one scale per output channel."""
    weight = linear.weight.detach().float()
    scale = weight.abs().amax(1, keepdim=True) / 127
    scale = torch.where(scale == 0, 1.0, scale)
    levels = (weight / scale).round().clamp(-127, 127).to(torch.int8)
    return ScaledLinear(levels, scale, bias=_bias(linear))


def quantize_int4(linear: nn.Linear, *, group: int = 32) -> LevelsLinear:
    """Weight-only int4, one scale per `group` inputs.

    Raises:
      ValueError: the inputs are not a multiple of the group, or odd.
    """
    weight = linear.weight.detach().float()
    outputs, inputs = weight.shape
    if inputs % group or inputs % 2:
        raise InputError(f"int4 needs an even number of inputs in groups of {group}, got {inputs}")
    grouped = weight.view(outputs, -1, group)
    scale = grouped.abs().amax(2) / 7
    scale = torch.where(scale == 0, 1.0, scale)
    levels = (grouped / scale[..., None]).round().clamp(-8, 7).add(8).to(torch.uint8)
    packed = Levels(levels=joined(levels.view(outputs, inputs)), offset=8, scale=scale)
    return LevelsLinear(inputs, packed, bits=4, bias=_bias(linear))


def _bias(linear: nn.Linear) -> Tensor | None:
    return None if linear.bias is None else linear.bias.detach()


def dequantize(model: nn.Module) -> nn.Module:
    """Swaps every quantised linear layer for one of the weights that it stands for, in place."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, QuantizedLinear):
            plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
            plain.weight.data = layer.dequantized()
            if layer.bias is not None:
                plain.bias.data = layer.bias.float()
            model.set_submodule(name, plain.requires_grad_(False).eval())
    return model


def quantize(model: nn.Module, scheme: Scheme, *, skip: Collection[str] = frozenset()) -> nn.Module:
    """Swaps every linear layer of the blocks for a quantised one, in place.

    Embedding, head and experts that share one tensor stay, and the layers named in `skip`.

    Raises:
      ValueError: an unknown scheme, a layer that is quantised already, or no linear layer.
    """
    make: dict[str, Callable[[nn.Linear], QuantizedLinear]] = {
        "int8": quantize_int8,
        "int4": quantize_int4,
    }
    if scheme not in make:
        raise InputError(f"quantisation must be one of {', '.join(make)}; got {scheme!r}")
    layers = dict(model.named_modules())
    for name, module in layers.items():
        if isinstance(module, QuantizedLinear):
            raise InputError(f"{name} is quantised already; leave {scheme} out")
        in_block = any(part.isdecimal() for part in name.split("."))
        if in_block and name not in skip and _is_linear(module):
            model.set_submodule(name, make[scheme](_as_linear(module)))
    if not any(isinstance(module, QuantizedLinear) for module in model.modules()):
        raise InputError(
            f"{scheme}: the {type(model).__name__} has no linear layers in its blocks; leave "
            f"{scheme} out"
        )
    return model


def _is_linear(module: nn.Module) -> bool:
    # transformers' `Conv1D` is a linear layer with its weight turned; `FalconLinear` one by name.
    return type(module) is nn.Linear or type(module).__name__ in ("Conv1D", "FalconLinear")


def _as_linear(module: Any) -> nn.Linear:
    if isinstance(module, nn.Linear):
        return module
    weight = module.weight.detach().T.contiguous()
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(module.bias.detach())
    return linear

"""Layers with int8 weights as products of int8 numbers, which CPUs and TPUs multiply natively.

Sums of such products are exact, so that a token's result does not depend on the rest of the batch.
Tensors and their names are those of the layers that these stand for.
"""

import torch
from torch import Tensor, nn

from jaxsr.models.llama.quantized import ScaledLinear, W8A8Linear, quantize_tokens

# The largest number of three digits of base 256 between -127 and 127.
_REACH = 127 * (65536 + 256 + 1)


class IntegerW8A8Linear(W8A8Linear):
    """`W8A8Linear` with its integers multiplied as integers."""

    def forward(self, x: Tensor) -> Tensor:
        levels, scale = quantize_tokens(x)
        sums = _product(levels.to(torch.int8).flatten(0, -2), self.weight)
        sums = sums.view(*x.shape[:-1], -1).float()
        return self._biased((sums * scale * self.weight_scale[:, 0]).to(x.dtype))


class DigitLinear(ScaledLinear):
    """Weight-only int8: each activation is three int8 digits of a whole number, 24 bits with sign.

    For a token's largest activation that is float32's own precision.
    """

    def forward(self, x: Tensor) -> Tensor:
        digits, scale = integer_digits(x.float().flatten(0, -2))
        sums = _product(digits.flatten(0, 1), self.weight).view(3, len(scale), -1).float()
        y = (sums[0] * 65536 + sums[1] * 256 + sums[2]) * scale * self.weight_scale[:, 0]
        return self._biased(y.view(*x.shape[:-1], -1).to(x.dtype))


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    # A CPU multiplies a single row by itself, element by element: two are many times faster.
    alone = len(rows) == 1
    product = torch._int_mm(torch.cat((rows, rows)) if alone else rows, weight.t())
    return product[:1] if alone else product


def integer_digits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Digits (3, N, I) of base 256, the highest first, int8, and each row's scale (N, 1).

    A row that is not finite gets a scale that is not, and so a result that is not.
    """
    scale = x.abs().amax(-1, keepdim=True) / _REACH
    scale = torch.where(scale == 0, 1.0, scale)
    # The quotient may round to just beyond the reach.
    digits = (x / scale).round().clamp(-_REACH, _REACH).to(torch.int32)
    low = ((digits + 128) & 255) - 128
    digits = (digits - low) >> 8
    middle = ((digits + 128) & 255) - 128
    high = (digits - middle) >> 8
    return torch.stack((high, middle, low)).to(torch.int8), scale


def multiply_integers(network: nn.Module, *, weight_only: bool) -> None:
    """Swaps the layers with int8 weights, in place.

    Args:
      network: on any device; tensors are kept.
      weight_only: also those whose activations are not rounded; pays where products with few
        tokens are bound by the size of the weights.
    """
    for name, module in list(network.named_modules()):
        if type(module) is W8A8Linear:
            kind = IntegerW8A8Linear
        elif (
            weight_only
            and type(module) is ScaledLinear
            and module.block is None
            and module.weight.dtype == torch.int8
        ):
            kind = DigitLinear
        else:
            continue
        network.set_submodule(name, kind(module.weight, module.weight_scale, bias=module.bias))

"""The block formats of GGUF files: whole numbers, and the scales that make weights of them.

A weight is `(level - offset) · scale · sub_scale + zero · sub_zero`, with a level for each weight,
scales and zeros for each block, and sub-scales and sub-zeros, where there are, for each group.
Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h; the tests compare with the
`gguf` package.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# O outputs, B blocks of a row, N weights of a block, G groups of a block


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """A matrix as its file stores it."""

    kind: int
    """Number of the format, see `FORMATS`."""
    rows: np.ndarray
    """Bytes of each row, (outputs, bytes)."""
    shape: tuple[int, ...]
    """(outputs, inputs)."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """A matrix as whole numbers and scales."""

    levels: Tensor
    """uint8 or int8, (O, I)."""
    offset: int = 0
    """Level of a weight 0, before zeros are added."""
    scale: Tensor
    """Scale of each block, (O, B)."""
    sub_scale: Tensor | None = None
    """Whole numbers that multiply the scale, (O, B · G); None for 1."""
    zero: Tensor | None = None
    """Added to each weight, (O, B); None for 0."""
    sub_zero: Tensor | None = None
    """Whole numbers that multiply the zero, (O, B · G); None for 1."""

    def of_groups(self) -> tuple[Tensor, Tensor]:
        """Scale and zero of each group, float32, (O, B · G)."""
        scale, zero = self.scale.float(), self.zero
        if self.sub_scale is not None:
            scale = _spread(scale, self.sub_scale) * self.sub_scale.float()
        if zero is None:
            return scale, torch.zeros_like(scale)
        zero = zero.float()
        if self.sub_zero is not None:
            zero = _spread(zero, self.sub_zero) * self.sub_zero.float()
        return scale, zero

    def dequantized(self) -> Tensor:
        """The matrix, float32, (O, I)."""
        scale, zero = self.of_groups()
        # Groups before floats: a TPU's compiler would write the numbers of all weights otherwise.
        levels = self.levels.unflatten(1, (scale.shape[1], -1))
        product = (levels.float() - self.offset) * scale[..., None]
        return (product if self.zero is None else product + zero[..., None]).flatten(1)


def _spread(of_blocks: Tensor, of_groups: Tensor) -> Tensor:
    return of_blocks.repeat_interleave(of_groups.shape[1] // of_blocks.shape[1], 1)


@dataclass(frozen=True, kw_only=True)
class Format:
    """One block format."""

    weights: int
    """Weights of a block."""
    size: int
    """Bytes of a block."""
    bits: int
    """4 where all levels lie from 0 to 15, else 8."""
    unpack: Callable[[Tensor], Levels]
    """From the bytes of all blocks, (O, B, size)."""

    def levels(self, rows: Tensor) -> Levels:
        """From the bytes of each row, (O, B · size)."""
        return self.unpack(rows.unflatten(1, (-1, self.size)))


def _half(bytes_OB2: Tensor) -> Tensor:
    return bytes_OB2.contiguous().view(torch.float16)[..., 0]


def _nibbles(bytes_OBn: Tensor) -> Tensor:
    """The low halves of all bytes, then the high ones, as (O, I)."""
    return torch.cat((bytes_OBn & 15, bytes_OBn >> 4), -1).flatten(1)


def _shifted(bytes_OBn: Tensor, run: int, shifts: tuple[int, ...], mask: int) -> Tensor:
    """Runs of bytes, each once for each shift, (O, B, …)."""
    runs = bytes_OBn.unflatten(-1, (-1, 1, run))
    steps = torch.tensor(shifts, dtype=torch.uint8, device=bytes_OBn.device)[:, None]
    return ((runs >> steps) & mask).flatten(-3)


def _fifth_bits(bytes_OB4: Tensor) -> Tensor:
    """Bit i of 32, as 16, for weight i."""
    steps = torch.arange(8, dtype=torch.uint8, device=bytes_OB4.device)
    bits = (bytes_OB4[..., None] >> steps) & 1
    return (bits << 4).flatten(2).flatten(1)


def _q4_0(b: Tensor) -> Levels:
    return Levels(levels=_nibbles(b[..., 2:]), offset=8, scale=_half(b[..., :2]))


def _q4_1(b: Tensor) -> Levels:
    return Levels(levels=_nibbles(b[..., 4:]), scale=_half(b[..., :2]), zero=_half(b[..., 2:4]))


def _q5_0(b: Tensor) -> Levels:
    levels = _nibbles(b[..., 6:]) | _fifth_bits(b[..., 2:6])
    return Levels(levels=levels, offset=16, scale=_half(b[..., :2]))


def _q5_1(b: Tensor) -> Levels:
    levels = _nibbles(b[..., 8:]) | _fifth_bits(b[..., 4:8])
    return Levels(levels=levels, scale=_half(b[..., :2]), zero=_half(b[..., 2:4]))


def _q8_0(b: Tensor) -> Levels:
    return Levels(levels=b[..., 2:].flatten(1).view(torch.int8), scale=_half(b[..., :2]))


def _k_scales(b: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima of 6 bits in 12 bytes."""
    low, middle, high = b.split(4, -1)
    scales = torch.cat((low & 63, (high & 15) | ((low >> 2) & 48)), -1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 2) & 48)), -1)
    return scales.flatten(1), minima.flatten(1)


def _q4_k(b: Tensor) -> Levels:
    scales, minima = _k_scales(b[..., 4:16])
    return Levels(
        levels=_shifted(b[..., 16:], 32, (0, 4), 15).flatten(1),
        scale=_half(b[..., :2]),
        sub_scale=scales,
        zero=-_half(b[..., 2:4]),
        sub_zero=minima,
    )


def _q5_k(b: Tensor) -> Levels:
    scales, minima = _k_scales(b[..., 4:16])
    high = _shifted(b[..., 16:48], 32, tuple(range(8)), 1) << 4
    return Levels(
        levels=(_shifted(b[..., 48:], 32, (0, 4), 15) | high).flatten(1),
        scale=_half(b[..., :2]),
        sub_scale=scales,
        zero=-_half(b[..., 2:4]),
        sub_zero=minima,
    )


def _q6_k(b: Tensor) -> Levels:
    low = _shifted(b[..., :128], 64, (0, 4), 15)
    high = _shifted(b[..., 128:192], 32, (0, 2, 4, 6), 3) << 4
    return Levels(
        levels=(low | high).flatten(1),
        offset=32,
        scale=_half(b[..., 208:]),
        sub_scale=b[..., 192:208].contiguous().view(torch.int8).flatten(1),
    )


def _q2_k(b: Tensor) -> Levels:
    return Levels(
        levels=_shifted(b[..., 16:80], 32, (0, 2, 4, 6), 3).flatten(1),
        scale=_half(b[..., 80:82]),
        sub_scale=(b[..., :16] & 15).flatten(1),
        zero=-_half(b[..., 82:]),
        sub_zero=(b[..., :16] >> 4).flatten(1),
    )


def _q3_k(b: Tensor) -> Levels:
    low = _shifted(b[..., 32:96], 32, (0, 2, 4, 6), 3)
    high = _shifted(b[..., :32], 32, tuple(range(8)), 1) << 2
    fours = _shifted(b[..., 96:104], 8, (0, 4), 15)
    twos = _shifted(b[..., 104:108], 4, (0, 2, 4, 6), 3) << 4
    return Levels(
        levels=(low | high).flatten(1),
        offset=4,
        scale=_half(b[..., 108:]),
        sub_scale=((fours | twos).to(torch.int8) - 32).flatten(1),
    )


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Values of 4-bit codes; those of float4 doubled."""


def _looked_up(codes: Tensor, table: tuple[int, ...]) -> Tensor:
    return torch.tensor(table, dtype=torch.int8, device=codes.device)[codes.int()]


def _iq4_nl(b: Tensor) -> Levels:
    return Levels(levels=_looked_up(_nibbles(b[..., 2:]), _IQ4), scale=_half(b[..., :2]))


def _iq4_xs(b: Tensor) -> Levels:
    fours = torch.stack((b[..., 4:8] & 15, b[..., 4:8] >> 4), -1).flatten(-2)
    steps = torch.tensor((0, 2, 4, 6), dtype=torch.uint8, device=b.device)
    twos = ((b[..., 2:4, None] >> steps) & 3).flatten(-2) << 4
    return Levels(
        levels=_looked_up(_shifted(b[..., 8:], 16, (0, 4), 15).flatten(1), _IQ4),
        scale=_half(b[..., :2]),
        sub_scale=((fours | twos).to(torch.int8) - 32).flatten(1),
    )


def _mxfp4(b: Tensor) -> Levels:
    # The exponent's bias is 127; one less, as the table holds doubled values.
    exponent = b[..., 0].int() - 128
    scale = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)
    return Levels(levels=_looked_up(_nibbles(b[..., 1:]), _E2M1), scale=scale)


FORMATS: Mapping[int, Format] = {
    2: Format(weights=32, size=18, bits=4, unpack=_q4_0),
    3: Format(weights=32, size=20, bits=4, unpack=_q4_1),
    6: Format(weights=32, size=22, bits=8, unpack=_q5_0),
    7: Format(weights=32, size=24, bits=8, unpack=_q5_1),
    8: Format(weights=32, size=34, bits=8, unpack=_q8_0),
    10: Format(weights=256, size=84, bits=4, unpack=_q2_k),
    11: Format(weights=256, size=110, bits=4, unpack=_q3_k),
    12: Format(weights=256, size=144, bits=4, unpack=_q4_k),
    13: Format(weights=256, size=176, bits=8, unpack=_q5_k),
    14: Format(weights=256, size=210, bits=8, unpack=_q6_k),
    20: Format(weights=32, size=18, bits=8, unpack=_iq4_nl),
    23: Format(weights=256, size=136, bits=8, unpack=_iq4_xs),
    39: Format(weights=32, size=17, bits=8, unpack=_mxfp4),
}
"""Formats whose blocks stay packed in memory, by their number in GGUF files."""

"""`jaxsr.check` against float64: half precision, operators without float64, torch's own faults."""

from typing import Any

import pytest
import torch
from torch import nn

import jaxsr


class HalfLayer(nn.Module):
    """One layer of another precision, between float32."""

    def __init__(self, dtype):
        super().__init__()
        self.layer, self.dtype = nn.Linear(8, 8).to(dtype), dtype

    def forward(self, x):
        x = x.bfloat16() if self.dtype == torch.bfloat16 else x.half()
        return self.layer(x).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_of_half_precision_is_held_against_float64(dtype):
    result: Any = jaxsr.check(HalfLayer(dtype), torch.randn(4, 8), speed_s=0)
    assert result.referee == "float64" and result.ok, str(result)


def test_half_precision_is_held_against_float64():
    result: Any = jaxsr.check(nn.Linear(8, 8).bfloat16(), torch.ones(2, 8).bfloat16(), speed_s=0)
    assert result.ok, result
    assert result.row("forward").worst.torch_error > 1e-4


def test_experts_in_float64():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4, 8))

        def forward(self, x):
            ends = torch.tensor([2, 2, 6], dtype=torch.int32)
            return torch.nn.functional.grouped_mm(x, self.weight, offs=ends)

    result = jaxsr.check(Experts(), torch.randn(6, 4), vmap=False, mesh=1, speed_s=0)
    assert result.ok, result
    assert result.referee == "float64"


class PermutedNorm(nn.Module):
    """torch 2.13 computes a wrong gradient of it, in float64 too."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return self.norm(x).permute(2, 3, 0, 1)


def test_jax_is_not_blamed_for_torchs_gradient_of_batch_norm():
    result = jaxsr.check(PermutedNorm(), torch.randn(1, 8, 16, 16), train=False, speed_s=0)
    assert result.ok, result

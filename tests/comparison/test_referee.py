"""`jaxsr.check` against float64: half precision, operators without float64, torch's own faults."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import jaxsr
from jaxsr.comparison.measures import compare_arrays


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


def float32(**arrays):
    return {name: np.array(values, np.float32) for name, values in arrays.items()}


@pytest.mark.parametrize(
    ("torchs", "wrong"),
    [
        # Beside a much larger output, a mask of the least value, and another element.
        (float32(large=[1.1e9, 3e8], small=[0.7, 0.3]), {"small": [0.9, 0.3]}),
        (float32(mask=[np.finfo(np.float32).min, 0], count=[1]), {"count": [5]}),
        (float32(logits=[-1e9, 0.5, 1.5, -1e9]), {"logits": [-1e9, 0.7, 1.5, -1e9]}),
    ],
)
def test_a_value_is_judged_by_its_own_size(torchs, wrong):
    exact = {n: a * (1 + 1e-8 * (np.abs(a) < 2e9)) for n, a in torchs.items()}
    jaxs = torchs | {n: np.array(a, np.float32) for n, a in wrong.items()}
    assert all(one.ok for one in compare_arrays(torchs, torchs, exact, related=False))
    errors = compare_arrays(jaxs, torchs, exact, related=False)
    assert [one.name for one in errors if not one.ok] == [*wrong]


def test_whole_numbers_count_one_by_one():
    torchs = {"large": np.array([1e9], np.float32), "steps": np.array(1)}
    exact = torchs | {"large": np.array([1e9 + 9])}
    (_, steps) = compare_arrays(torchs | {"steps": np.array(5)}, torchs, exact)
    assert not steps.ok


class Returns(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.result = result

    def forward(self, x, input=0):
        return self.result(x, input)


class Holder:
    def __init__(self, value):
        self.value = value


def test_a_module_without_a_tensor_in_its_output_is_not_the_same():
    result: Any = jaxsr.check(Returns(lambda x, _: Holder(x)), torch.ones(2, 3), speed_s=0)
    assert not result.ok and "no tensor to compare" in str(result)


def test_outputs_of_one_name_and_a_keyword_called_input():
    module = Returns(lambda x, y: {"a.b": x, "a": {"b": x - 2 * y}})
    result: Any = jaxsr.check(module, torch.ones(2, 3), kwargs={"input": torch.rand(2, 3)}, mesh=3)
    assert result.ok, str(result)
    assert [one.name for one in result.row("forward").arrays] == ["a.b", "a.b'"]
    assert result.inputs == "input[0] float32[2,3], input float32[2,3]"
    assert result.row("mesh of 3").status == "ok"

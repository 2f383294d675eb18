"""Options that commands share: their checks, and one default everywhere."""

import dataclasses
from typing import Any

import pytest

from jaxsr.detection.config import DetectConfig, EvaluateConfig
from jaxsr.errors import InputError
from jaxsr.generation.config import GenerateConfig
from jaxsr.interop.train.step import StepConfig
from jaxsr.restoration.config import RestoreConfig
from jaxsr.runtime.options import AotOptions, ComputeOptions, LaneFoldingOptions
from jaxsr.training.config import RunConfig

CONFIGS = (DetectConfig, EvaluateConfig, GenerateConfig, RestoreConfig, RunConfig)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "tensorflow"}, "engine must be one of jax, torch, got 'tensorflow'"),
        ({"platform": "npu"}, "platform must be one of auto, tpu, cuda, cpu, got 'npu'"),
        ({"dtype": "float64"}, "dtype must be one of float32, bfloat16, got 'float64'"),
        ({"matmul_precision": "low"}, "matmul_precision must be one of default, high, highest"),
        ({"mesh": "0"}, "mesh axis data must be at least 1, got 0"),
        ({"mesh": "2x4"}, "mesh '2x4' is neither a number of devices"),
        ({"engine": "torch", "mesh": "2"}, "runs on one device, got mesh=2; .* --engine jax"),
        ({"engine": "torch", "platform": "tpu"}, "runs on cuda or cpu, got platform='tpu'"),
    ],
)
def test_what_cannot_be_is_refused(options: Any, message):
    with pytest.raises(InputError, match=message):
        ComputeOptions(**options)


def test_a_mesh_is_a_number_or_axes():
    assert ComputeOptions(mesh="4").devices == 4
    assert ComputeOptions(mesh="data=2,fsdp=3").devices == 6


def test_lane_folding_and_aot_are_checked():
    bad: Any = "maybe"
    with pytest.raises(InputError, match="lane_folding must be one of auto, on, off"):
        LaneFoldingOptions(lane_folding=bad)
    with pytest.raises(InputError, match="aot_largest needs aot"):
        AotOptions(aot_largest=True)


@pytest.mark.parametrize("config", CONFIGS)
def test_shared_options_have_one_declaration(config):
    """No command declares a shared option again, so its default and its help exist once."""
    shared = {field.name for field in dataclasses.fields(AotOptions)} | {"lane_folding"}
    for parent in config.__mro__:
        if parent not in (ComputeOptions, AotOptions, LaneFoldingOptions, StepConfig):
            assert not shared & set(vars(parent).get("__annotations__", ())), parent
    assert issubclass(config, ComputeOptions)
    assert {f.name: f.default for f in dataclasses.fields(config)}["matmul_precision"] == "default"

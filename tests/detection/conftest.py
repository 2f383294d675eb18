"""Weights of a small detector."""

import json

import pytest
import torch
from safetensors.torch import save_file

from jaxsr.models.mshnet.network import MSHNet
from tests.detection.detectors import THIN


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """An exported file whose metadata says how its network was trained."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "network.safetensors"
    described = {
        "family": json.dumps("mshnet"),
        "input": json.dumps({"mean": [0.4] * 3, "deviation": [0.2] * 3, "base": 32, "gray": True}),
    }
    save_file(MSHNet(THIN).state_dict(), path, metadata=described)
    return path

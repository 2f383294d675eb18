"""Networks of spandrel's architectures, found by their weights alone; skips where it is missing."""

import importlib

import numpy as np
import pytest
import torch

from jaxsr.restoration.models import find_model
from jaxsr.restore import restore

try:
    spandrel = importlib.import_module("spandrel")
    SRVGGNetCompact = importlib.import_module(
        "spandrel.architectures.Compact.__arch.SRVGG"
    ).SRVGGNetCompact
    RRDBNet = importlib.import_module("spandrel.architectures.ESRGAN.__arch.RRDB").RRDBNet
except Exception as error:  # torchvision, which it needs, may fail to import in many ways
    pytest.skip(f"spandrel is not usable here: {error}", allow_module_level=True)


def networks():
    torch.manual_seed(0)
    compact = SRVGGNetCompact(num_feat=16, num_conv=4, upscale=2)
    dense = RRDBNet(in_nc=3, out_nc=3, num_filters=16, num_blocks=1, scale=4)
    return {"Compact": (compact, 2), "ESRGAN": (dense, 4)}


@pytest.mark.parametrize("name", ["Compact", "ESRGAN"])
def test_a_published_layout_restores_as_spandrel_itself(tmp_path, name):
    network, scale = networks()[name]
    path = tmp_path / "weights.pth"
    torch.save(network.state_dict(), path)
    image = np.random.default_rng(0).integers(0, 256, (40, 52, 3), np.uint8)
    got = restore(image, str(path))
    descriptor = spandrel.ModelLoader("cpu").load_from_file(path)
    with torch.no_grad():
        planes = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
        want = descriptor(planes)[0].permute(1, 2, 0).clamp(0, 1).numpy() * 255
    assert find_model(str(path)).scale == scale
    # A value between two levels may be rounded either way.
    assert np.abs(got - want).max() <= 0.501

"""The U-Net of the examples trains as docs/own-network.md says."""

from pathlib import Path

import pytest

from jaxsr import train
from jaxsr.interop.weights import read_weights

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "unet"


@pytest.mark.slow
def test_it_trains_with_a_map_at_each_resolution(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    options = (
        "detection", "--network", "unet:UNet", "--network-args", '{"widths": [4, 8, 8]}',
        "--channels", 1, "--multiple", 16, "--scale-weights", 1, 0.5, "--batch", 4, "--steps", 2,
        "--crop-size", 32, "--base-size", 32, "--scenes", 16, "--no-tensorboard", "--no-check",
        "--out", tmp_path,
    )  # fmt: skip
    assert train.main([str(option) for option in options]) == 0
    assert read_weights(tmp_path / "network.safetensors")[1]["builder"] == "unet:UNet"

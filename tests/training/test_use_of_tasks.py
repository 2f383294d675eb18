"""Run folders of users' tasks in other commands, against the task's network in plain torch."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from jaxsr import compare, detect, restore, train
from jaxsr.errors import InputError
from jaxsr.models.load import load_model

DETECT = [
    *("picture.png", "--model", "runs/own", "--trust-builder"),
    *("--out", "marked", "--engine", "torch"),
]
"""Words of `jaxsr detect`."""
FILE = """
import jaxsr
import torch
from torch import nn
from torch.nn import functional as F


class Sharpening(jaxsr.Task):
    class Config(jaxsr.TaskConfig):
        steps = 2
        batch = 2
        width: int = 4

    metadata = {"channels": 3, "value_range": [-1, 1], "multiple": 4}
    sample_name = "crops"

    def network(self):
        return nn.Sequential(
            nn.PixelUnshuffle(4), nn.Conv2d(48, self.config.width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(self.config.width, 192, 3, padding=1), nn.PixelShuffle(8),
        )

    def loss(self, network, batch):
        return F.mse_loss(network(batch["x"]), batch["y"])

    def train_data(self):
        return {"x": torch.zeros(4, 3, 8, 8), "y": torch.ones(4, 3, 16, 16)}


class Marking(Sharpening):
    metadata = {}

    def network(self):
        return nn.Conv2d(3, 1, 3, padding=1)

    def train_data(self):
        return {"x": torch.zeros(4, 3, 8, 8), "y": torch.ones(4, 1, 8, 8)}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "door_tasks", raising=False)
    Path("door_tasks.py").write_text(FILE)
    picture = np.random.default_rng(0).integers(0, 256, (37, 30, 3), np.uint8)
    Image.fromarray(picture).save("picture.png")
    return tmp_path


def _train(task, *options):
    words = [f"door_tasks:{task}", "--engine", "torch", "--no-tensorboard", "--out", "runs/own"]
    assert train.main([*words, *options]) == 0
    (file,) = Path("runs/own").glob("*.safetensors")
    return file


@pytest.mark.usefixtures("folder")
def test_restore_and_compare_take_the_run_folder(capsys):
    file = _train("Sharpening", "--width", "6")
    assert "crops/s" in capsys.readouterr().out
    assert "crops_per_s" in json.loads(Path("runs/own/metrics.jsonl").read_text().splitlines()[0])
    words = [
        "picture.png",
        "--model",
        "runs/own",
        "--trust-builder",
        "--out",
        "out",
        "--engine",
        "torch",
    ]
    assert restore.main(words) == 0
    network = load_model("door_tasks:Sharpening", options={"width": 6}, weights=file).network
    # 37 × 30 mirrored to multiples of 4, as the metadata say, and cut again.
    picture = torch.from_numpy(np.array(Image.open("picture.png")))
    planes = (picture / 127.5 - 1).permute(2, 0, 1)[None]
    planes = torch.nn.functional.pad(planes, (0, 2, 0, 3), mode="reflect")
    with torch.no_grad():
        expected = network(planes)[0, :, :74, :60].permute(1, 2, 0).numpy() * 127.5 + 127.5
    restored = np.asarray(Image.open("out/picture.png"))
    assert restored.shape == (74, 60, 3)
    # Half a level, and float32's rounding.
    assert np.abs(restored - expected.clip(0, 255)).max() <= 0.505
    trace = ["trace", "--engine", "torch", "--platform", "cpu", "--out", "compared"]
    assert compare.main([*trace, "--model", "runs/own", "--trust-builder", "--size", "16"]) == 0


@pytest.mark.usefixtures("folder")
def test_detect_takes_the_run_folder():
    file = _train("Marking")
    assert detect.main([*DETECT, "--size", "native"]) == 0
    assert [*Path("marked").rglob("*.png")]
    network = load_model("runs/own", trust_builder=True).network
    for name, value in load_file(file).items():
        assert network.state_dict()[name].equal(value)


@pytest.mark.usefixtures("folder")
def test_detect_refuses_a_network_of_pictures(capsys):
    _train("Sharpening")
    assert detect.main(DETECT) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    # The network doubles the 256² that detectors see by default.
    assert "gives (1, 3, 512, 512) for images (1, 3, 256, 256), not logits (1, 1, 256, 256)" in line


def test_a_copy_elsewhere_names_the_command(folder, tmp_path, monkeypatch):
    file = _train("Marking")
    file.rename(folder / "copy.safetensors")
    with pytest.raises(InputError, match="runs no code of its choice") as error:
        load_model("copy.safetensors")
    assert "--model door_tasks:Marking --model-options '{" in str(error.value)
    monkeypatch.chdir(tmp_path.parent)
    (folder / "copy.safetensors").rename(folder / "runs/own/network.safetensors")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="nor defined below the current folder"):
        load_model(folder / "runs/own", trust_builder=True)


@pytest.mark.usefixtures("folder")
def test_a_refusal_does_not_repeat_all_options_of_a_task():
    _train("Sharpening")
    with pytest.raises(InputError, match="add --trust-builder") as error:
        load_model("runs/own")
    assert "--model-options" not in str(error.value)

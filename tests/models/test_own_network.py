"""Run folders and exported files of users' own networks: what may build them, and what may not."""

import json
import sys

import numpy as np
import pytest
import torch

from jaxsr.errors import InputError
from jaxsr.interop.sealed_json import seal
from jaxsr.interop.weights import export_weights
from jaxsr.models.build import build_network
from jaxsr.models.load import load_model

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4, scale=2, channels=3):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels * scale**2, 3, padding=1)
        self.up = nn.PixelShuffle(scale)
    def forward(self, x):
        return self.up(self.conv(x))

class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 3, padding=1)
    def forward(self, x):
        return self.conv(x)

def make(**options):
    network = Net(**options)
    network.register_buffer("window", torch.ones(2, dtype=torch.float64), persistent=False)
    return network
"""
SR = {"task": "super-resolution", "builder": "door_nets:Net", "builder_args": {"scale": 2},
      "scale": 2, "channels": 3, "value_range": [-1.0, 1.0]}  # fmt: skip
DETECTION = {
    "task": "detection",
    "builder": "door_nets:Detector",
    "builder_args": {},
    "input": {
        "mean": [0.5] * 3,
        "deviation": [0.25] * 3,
        "gray": False,
        "base": 32,
        "evaluate": "base",
    },
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Makes a run folder below the current one; returns a function of the metadata."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "door_nets", raising=False)
    (tmp_path / "door_nets.py").write_text(SOURCE)

    def make(notes, *, config=True):
        import door_nets  # pyright: ignore[reportMissingImports]

        folder = tmp_path / "runs" / "own"
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        network = (
            door_nets.Detector() if notes["builder"] == "door_nets:Detector" else door_nets.Net()
        )
        state = {name: value.numpy() for name, value in network.state_dict().items()}
        export_weights(folder / "network.safetensors", state, metadata=notes)
        if config:
            content = {"family": "own", "options": {"network": notes["builder"]}}
            (folder / "config.json").write_text(seal(content))
        return folder, network

    return make


def test_a_run_folder_builds_its_network(run):
    folder, network = run(SR)
    for place in (folder, folder / "network.safetensors"):
        loaded = load_model(str(place), kind="restorer")
        assert loaded.value_range == (-1, 1) and loaded.channels == 3
        picture = torch.rand(1, 3, 8, 8)
        with torch.no_grad():
            torch.testing.assert_close(loaded.network(picture), network(picture), rtol=0, atol=0)
    with pytest.raises(InputError, match="holds a Net, a restorer; give a detector"):
        load_model(folder, kind="detector")


def test_a_function_below_the_current_folder_may_build(run):
    folder, _ = run({**SR, "builder": "door_nets:make"})
    loaded = load_model(folder)
    assert loaded.family == "Net"
    assert loaded.network.window.dtype == torch.float32  # as in training


def test_a_file_elsewhere_runs_nothing(run, tmp_path):
    folder, _ = run(SR)
    elsewhere = tmp_path / "downloads" / "w.safetensors"
    elsewhere.parent.mkdir()
    (folder / "network.safetensors").rename(elsewhere)
    with pytest.raises(InputError, match="runs no code") as error:
        load_model(elsewhere)
    options = json.dumps({"scale": 2})
    command = f"--model door_nets:Net --model-options '{options}' --weights {elsewhere}"
    assert command in str(error.value)
    assert load_model("door_nets:Net", options={"scale": 2}, weights=elsewhere).value_range == (
        -1,
        1,
    )


def test_a_damaged_or_other_config_builds_nothing(run):
    folder, _ = run(SR)
    config = folder / "config.json"
    config.write_text(config.read_text().replace("door_nets:Net", "door_nets:Nut"))
    with pytest.raises(InputError, match="runs no code"):
        load_model(folder)
    run({**SR, "builder": "door_nets:Detector"})
    config.write_text(seal({"options": {"network": "door_nets:Net"}}))
    with pytest.raises(InputError, match="runs no code"):
        load_model(folder)


def test_a_run_folder_from_others_calls_no_function_of_the_system(run, tmp_path):
    notes = {**SR, "builder": "os:system", "builder_args": {"command": f"touch {tmp_path}/gone"}}
    folder, _ = run(notes)
    with pytest.raises(InputError, match=r"neither a torch\.nn\.Module nor defined below"):
        load_model(folder)
    for builder in ("builtins:exec", "torch:load", "subprocess:call", "numpy:load"):
        folder, _ = run({**SR, "builder": builder})
        with pytest.raises(InputError, match="neither a torch"):
            load_model(folder)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("changes", [{"task": "cooking"}, {"builder": 3}, {"builder_args": [1]},
                                     {"channels": "three"}, {"value_range": [1]}])  # fmt: skip
def test_metadata_that_nobody_writes_are_refused(run, changes):
    folder, _ = run({**SR, **changes})
    with pytest.raises(InputError, match=r"metadata that jaxsr\.train does not write"):
        load_model(folder)


def test_weights_that_do_not_fit_are_refused(run):
    folder, _ = run({**SR, "builder_args": {"scale": 3}})
    with pytest.raises(InputError, match="does not fit Net"):
        load_model(folder)


def test_builders_of_libraries_need_no_run_folder(tmp_path):
    try:
        network = build_network("timm:resnet18", {"num_classes": 3})
    except InputError as error:
        pytest.skip(f"timm is not usable here: {error}")
    state = {name: value.numpy() for name, value in network.state_dict().items()}
    notes = {**SR, "builder": "timm:resnet18", "builder_args": {"num_classes": 3}}
    export_weights(tmp_path / "w.safetensors", state, metadata=notes)
    assert load_model(tmp_path / "w.safetensors").family == "ResNet"


def test_every_command_takes_the_run_folder(run, tmp_path):
    from PIL import Image

    from jaxsr import check, compare, detect, restore

    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)
    Image.fromarray(pixels).save("a.png")
    folder, network = run(SR)
    model = ["--model", str(folder)]
    assert restore.main(["a.png", *model, "--out", "better"]) == 0
    with torch.no_grad():
        planes = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 127.5 - 1
        want = (network(planes)[0].permute(1, 2, 0).clamp(-1, 1) + 1) * 127.5
    assert np.abs(np.asarray(Image.open("better/a.png")) - want.numpy()).max() <= 0.505
    assert check.main([*model, "--eval-only", "--forward-only", "--input", "1,3,16,16"]) == 0
    assert compare.main(["engines", *model, "--size", "16", "--out", "compared"]) == 0
    folder, _ = run(DETECTION)
    assert detect.main(["a.png", *model, "--out", "found"]) == 0
    assert (tmp_path / "found" / "masks" / "a.png").is_file()

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
from jaxsr.models.builder_arguments import check_library_arguments, check_library_entry
from jaxsr.models.load import load_model
from jaxsr.models.transformers_files import config_of

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

    def make(notes):
        import door_nets  # pyright: ignore[reportMissingImports]

        folder = tmp_path / "runs" / "own"
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        network = (
            door_nets.Detector() if notes["builder"] == "door_nets:Detector" else door_nets.Net()
        )
        state = {name: value.numpy() for name, value in network.state_dict().items()}
        export_weights(folder / "network.safetensors", state, metadata=notes)
        content = {"family": "own", "options": {"network": notes["builder"]}}
        (folder / "config.json").write_text(seal(content))
        return folder, network

    return make


def test_a_run_folder_builds_its_network(run):
    folder, network = run(SR)
    for place in (folder, folder / "network.safetensors"):
        loaded = load_model(str(place), trust_builder=True, kind="restorer")
        assert loaded.value_range == (-1, 1) and loaded.channels == 3
        picture = torch.rand(1, 3, 8, 8)
        with torch.no_grad():
            torch.testing.assert_close(loaded.network(picture), network(picture), rtol=0, atol=0)
    with pytest.raises(InputError, match="holds a Net, a restorer; give a detector"):
        load_model(folder, trust_builder=True, kind="detector")


def test_a_function_below_the_current_folder_may_build(run):
    folder, _ = run({**SR, "builder": "door_nets:make"})
    loaded = load_model(folder, trust_builder=True)
    assert loaded.family == "Net"
    assert loaded.network.window.dtype == torch.float32  # as in training


def test_what_a_file_names_is_not_imported_unless_a_person_agrees(run):
    folder, _ = run(SR)
    sys.modules.pop("door_nets")
    options = json.dumps({"scale": 2})
    file = folder / "network.safetensors"
    command = f"--model door_nets:Net --model-options '{options}' --weights {file}"
    with pytest.raises(InputError, match=r"runs no code of its choice; .* add --trust-b") as error:
        load_model(folder)
    assert command in str(error.value)
    assert "door_nets" not in sys.modules
    loaded = load_model("door_nets:Net", options={"scale": 2}, weights=file)
    assert loaded.value_range == (-1, 1)


def test_code_that_lies_in_the_files_folder_is_never_imported(run, tmp_path):
    evil = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    folder, _ = run({**SR, "builder": "runs.own.evil:Net"})
    for place in (folder / "evil.py", folder / "deeper" / "__init__.py", tmp_path / "runs/a.py"):
        place.parent.mkdir(exist_ok=True)
        place.write_text(evil + SOURCE)
    (tmp_path / "runs" / "__init__.py").write_text(evil)
    for builder in ("runs.own.evil:Net", "runs.own.deeper:Net"):
        run({**SR, "builder": builder})
        for trust in (False, True):
            with pytest.raises(InputError, match="whose code lies in the same folder"):
                load_model(folder, trust_builder=trust)
    run({**SR, "builder": "runs.a:Net"})
    with pytest.raises(InputError, match="runs no code of its choice"):
        load_model(folder)
    assert not (tmp_path / "ran").exists()


LOADING = [
    ("timm:resnet10t", {"checkpoint_path": "readme.txt"}),
    ("timm:resnet10t", {"pretrained": True}),
    ("timm:resnet10t", {"pretrained_cfg": {"file": "x"}}),
    ("timm:resnet10t", {"pretrained_cfg_overlay": {"url": "http://x"}}),
    ("timm:resnet10t", {"kernels": {"deep": ["/etc/passwd"]}}),
    ("timm:resnet10t", {"anything": "readme.txt"}),
    ("timm:local-dir:/tmp/x", {}),
    ("timm:hf-hub:someone/model", {}),
    ("torchvision:resnet18", {"weights": "DEFAULT"}),
    ("torchvision:resnet18", {"weights_backbone": "DEFAULT"}),
    ("torchvision:resnet18", {"weights": True}),
    ("torchvision:resnet18", {"weights": {}, "pretrained": [[]]}),
    ("smp:Unet", {"encoder_weights": "imagenet"}),
    ("smp:Unet", {"encoder_name": "tu-resnet10t", "encoder_weights": False}),
    *[("smp:Unet", {"encoder_weights": value}) for value in (0, 1, 1.5, [], [1], {}, "")],
    ("torchvision:resnet18", {"weights": 1}),
    ("smp:Unet", {"encoder_name": "tu-hf-hub:someone/model"}),
    ("spandrel:SPAN", {"model_path": "x"}),
    *[("spandrel:SPAN", {name: "x"}) for name in
      ("modelPath", "ModelPath", "modelURL", "checkpointFile", "model-path", "HTTPUrl", "ckpt2",
       "model.path", "rootDir", "repo_id", "weights1")],
    ("torchvision:resnet18", {"backboneWeights": True}),
    ("timm:resnet10t", {"isPretrained": True}),
    ("timm:resnet10t", {"preTrained": True}),
]  # fmt: skip


@pytest.mark.parametrize(("builder", "arguments"), LOADING)
def test_arguments_that_make_a_library_open_files_are_refused(run, tmp_path, builder, arguments):
    (tmp_path / "readme.txt").write_text("cos\nsystem\n(S'touch ran'\ntR.")
    folder, _ = run({**SR, "builder": builder, "builder_args": arguments})
    with pytest.raises(InputError, match=r"may open a file or fetch|more than a network's name"):
        load_model(folder, trust_builder=True)


def test_arguments_that_are_data_pass(tmp_path):
    arguments = {"pretrained": False, "checkpoint_path": "", "drop_path_rate": 0.1, "act": "relu",
                 "use_checkpoint": True, "encoder_weights": None, "weight_init": "jax",
                 "dropPath": 0.1, "profile": "x", "pathological": "x", "weightInit": "jax",
                 "widths": [1, 2], "norm": {"name": "batch", "eps": 1e-5}}  # fmt: skip
    check_library_entry(tmp_path / "w.safetensors", "timm:vit_base.augreg_in1k", way_out="-")
    check_library_arguments(tmp_path / "w.safetensors", arguments, way_out="-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"network": "runs.own.evil:Net"}, r"runs\.own\.evil:Net, whose code lies in the same"),
        ({"loss": "l1=1,runs.own.evil:Net=2"}, "whose code lies in the same folder"),
        ({"network": "timm:a", "network_args": '{"checkpoint_path": "x"}'}, "may open a file"),
        ({"network": "timm:a", "network_args": ' {"checkpoint_path": "x"}'}, "may open a file"),
        ({"network": "timm:hf-hub:a/b", "network_args": "{}"}, "more than a network's name"),
    ],
)
def test_options_of_a_users_task_name_no_code_either(run, arguments, message):
    folder, _ = run({**SR, "builder_args": arguments})
    (folder / "evil.py").write_text("raise SystemExit")
    with pytest.raises(InputError, match=message):
        load_model(folder, trust_builder=True)


@pytest.mark.parametrize("inner", [lambda part: part, lambda part: {"backbone_config": part}])
def test_a_model_folders_configuration_has_timm_unpickle_nothing(inner):
    part = {"model_args": {"checkpoint_path": "w.pth"}}
    fields = {"model_type": "timm_wrapper", "architecture": "resnet18", **inner(part)}
    with pytest.raises(InputError, match=r"config\.json builds .*checkpoint_path="):
        config_of(fields)


def test_a_run_folder_from_others_calls_no_function_of_the_system(run, tmp_path):
    notes = {**SR, "builder": "os:system", "builder_args": {"command": f"touch {tmp_path}/gone"}}
    folder, _ = run(notes)
    with pytest.raises(InputError, match=r"neither a torch\.nn\.Module nor defined below"):
        load_model(folder, trust_builder=True)
    for builder in ("builtins:exec", "torch:load", "subprocess:call", "numpy:load"):
        folder, _ = run({**SR, "builder": builder})
        with pytest.raises(InputError, match="neither a torch"):
            load_model(folder, trust_builder=True)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("changes", [{"task": "cooking"}, {"builder": 3}, {"builder_args": [1]},
                                     {"channels": "three"}, {"value_range": [1]},
                                     {"channels": True}, {"channels": 0}, {"multiple": 10**30},
                                     {"value_range": "01"}])  # fmt: skip
def test_metadata_that_nobody_writes_are_refused(run, changes):
    folder, _ = run({**SR, **changes})
    with pytest.raises(InputError, match=r"metadata that jaxsr\.train does not write"):
        load_model(folder, trust_builder=True)


def test_weights_that_do_not_fit_are_refused(run):
    folder, _ = run({**SR, "builder_args": {"scale": 3}})
    with pytest.raises(InputError, match="does not fit Net"):
        load_model(folder, trust_builder=True)


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
    model = ["--model", str(folder), "--trust-builder"]
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

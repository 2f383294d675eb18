"""Weights by their names on the hub, for networks that are built otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save
from torch import nn

from jaxsr.errors import InputError
from jaxsr.models.libraries import import_library
from jaxsr.models.load import load_model
from jaxsr.models.weight_sources import weights_file
from tests.models.hub_server import Hub, serving

pytest.importorskip("huggingface_hub")


def process(code, environment, *arguments):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments], env=os.environ | environment,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.fixture
def line():
    network = nn.Linear(2, 3)
    return network, save({name: value.detach() for name, value in network.named_parameters()})


def test_training_starts_from_a_repository(line, tmp_path):
    network, content = line
    code = """
from pathlib import Path
from torch import nn
from jaxsr.errors import UserError
from jaxsr.models.load import load_model
from jaxsr.training.fine_tuning import initialise
import sys
for name in ("org/name", "org/name@v1", "hf:org/name:model.safetensors", "org/private"):
    network = nn.Linear(2, 3)
    try:
        print(initialise(network, Path(name))[0].split(" from ")[0], network.bias.sum().item())
    except UserError as error:
        print(error)
loaded = load_model("torch.nn:Linear", weights=Path("org/name"),
    options={"in_features": 2, "out_features": 3})
print(loaded.network.bias.sum().item())
"""
    files = {"config.json": b"{}", "model.safetensors": content, "pytorch_model.bin": b"a pickle"}
    with serving(tmp_path, files) as environment:
        *initialised, private, loaded = process(code, environment)
        assert initialised == [f"initialised 2 of 2 tensors {network.bias.sum().item()}"] * 3
        assert "org/private is not a folder here, and cannot be fetched (Repository" in private
        assert float(loaded) == network.bias.sum().item()
        assert not any(path.endswith(".bin") for path in Hub.requested)


def test_a_network_of_a_repository_is_named_as_the_user_does(tmp_path):
    path = Path(__file__).parents[2] / "jaxsr" / "weights" / "restore_x2.safetensors"
    code = """
from jaxsr.models.load import load_model
for name in ("org/name", "hf:org/name:model.safetensors"):
    model = load_model(name)
    print(model.name, model.family)
"""
    with serving(tmp_path, {"model.safetensors": path.read_bytes()}) as environment:
        names = process(code, environment)
    assert names == ["org/name span", "hf:org/name:model.safetensors span"]


def test_a_network_of_timm_with_its_pretrained_weights(tmp_path):
    try:
        timm = import_library("timm")
    except InputError as error:
        pytest.skip(str(error))
    network = timm.create_model("resnet18")
    code = """
from pathlib import Path
import torch
from jaxsr.models.build import build_network
from jaxsr.models.load import load_model
from jaxsr.training.fine_tuning import initialise
network = load_model("timm:resnet18", weights=Path("pretrained")).network
print(network.fc.weight.sum().item())
network = build_network("timm:resnet18", {"num_classes": 7})
print(*initialise(network, Path("pretrained"), named="timm:resnet18"), sep="|")
print(network.conv1.weight.sum().item())
"""
    files = {"config.json": b"{}", "model.safetensors": save(network.state_dict())}
    with serving(tmp_path, files) as environment:
        loaded, lines, initialised = process(code, environment)
        assert float(loaded) == network.fc.weight.sum().item()
        assert float(initialised) == network.conv1.weight.sum().item()
        assert "initialised 120 of 122 tensors" in lines
        assert "2 have another shape in the file: fc.bias" in lines
        assert any(
            path.startswith("/timm/resnet18.a1_in1k/") and path.endswith("/model.safetensors")
            for path in Hub.requested
        )


@pytest.mark.parametrize("network", [None, "torch.nn:Linear", "spandrel:SPAN"])
def test_pretrained_means_something_for_timm_alone(network):
    with pytest.raises(InputError, match=r"--init pretrained is for timm:NAME, and the network is"):
        weights_file(Path("pretrained"), network=network, option="--init")


def test_files_and_folders_are_taken_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pretrained").mkdir()
    Path("pretrained", "net.safetensors").write_bytes(b"")
    file = Path("pretrained", "net.safetensors")
    for source in (file, Path("pretrained")):
        assert weights_file(source, network=None, option="--init") == file


def test_a_transformers_folder_of_images_is_given_as_its_weights(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "swin2sr"}')
    with pytest.raises(InputError, match=f"--model {tmp_path} --weights {tmp_path}"):
        load_model(tmp_path, kind="restorer")

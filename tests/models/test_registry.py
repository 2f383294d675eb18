"""A family is one folder and one line: every command then knows it."""

import json
import os
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from jaxsr.errors import InputError
from jaxsr.models import registry
from jaxsr.models.build import is_configuration
from jaxsr.models.load import load_model
from jaxsr.models.registry import FAMILIES, Family, find_family, random_network
from jaxsr.training.find_task import TASKS, find_options, find_task


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """One convolution."""

    channels: int = 3


class Toy(nn.Module):
    """Returns a picture of its input's size."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        self.toy = nn.Conv2d(config.channels, config.channels, 3, padding=1)

    def forward(self, x):
        return self.toy(x)


def recognise(weights):
    return {"channels": weights["toy.weight"].shape[0]} if "toy.weight" in weights else None


@pytest.fixture
def toy(monkeypatch):
    """Registers a family in one line, as a folder with a `family.py` would be."""
    module = ModuleType("toy_family")
    module.FAMILY = Family(  # type: ignore[attr-defined]
        kind="restorer",
        config=ToyConfig,
        network=Toy,
        small=ToyConfig(),
        recognise=recognise,
    )
    monkeypatch.setitem(sys.modules, "toy_family", module)
    monkeypatch.setitem(registry.FAMILIES, "toy", "toy_family")
    monkeypatch.setitem(TASKS, "toy", ("span", "Span"))


def test_every_command_knows_a_registered_family(toy, tmp_path, capsys):
    from jaxsr import compare, train
    from jaxsr.doctor.models import check_models

    assert train.main(["toy", "--preset", "none"]) == 2
    assert "no preset 'none'" in capsys.readouterr().err
    words = ["trace", "--model", "toy", "--size", "16", "--engine", "torch"]
    assert compare.main([*words, "--platform", "cpu", "--out", str(tmp_path / "trace")]) == 0
    assert (tmp_path / "trace" / "trace.json").is_file()
    registered = dict(registry.FAMILIES)
    registry.FAMILIES.clear()
    try:
        registry.FAMILIES["toy"] = registered["toy"]
        (finding,) = check_models()
    finally:
        registry.FAMILIES.update(registered)
    assert finding.subject == "toy" and finding.status == "ok"


def test_a_registered_familys_weights_are_recognised(toy, tmp_path):
    network = Toy(ToyConfig(channels=1))
    path = tmp_path / "w.safetensors"
    save_file(network.state_dict(), path)
    loaded = load_model(path, kind="restorer")
    assert loaded.family == "toy" and loaded.value_range == (-1, 1)
    picture = torch.rand(1, 1, 8, 8)
    torch.testing.assert_close(loaded.network(picture), network(picture), rtol=0, atol=0)


@pytest.mark.parametrize("name", [*FAMILIES])
def test_small_networks_take_their_example(name):
    entry = find_family(name)
    with torch.no_grad():
        output = random_network(name)(entry.example())
    output = output[0] if isinstance(output, tuple) else output
    assert torch.isfinite(output).all() and output.std() > 0


@pytest.mark.parametrize("name", ["fast-srgan", "span", "mshnet"])
def test_weights_alone_tell_family_and_configuration(name, tmp_path):
    entry, network = find_family(name), random_network(name)
    state = {entry.prefix + n: v.clone() for n, v in network.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors", metadata={"format": "pt"})
    loaded = load_model(tmp_path / "w.safetensors", kind=entry.kind)
    assert loaded.family == name and loaded.kind == entry.kind
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.network(entry.example()), network(entry.example()), rtol=0, atol=0
        )


@pytest.mark.parametrize(
    ("name", "field", "value", "rule"),
    [
        ("span", "depth", "6", "a whole number"),
        ("span", "width", [48], "a whole number"),
        ("fast-srgan", "label_real", 1, "a list of 2 numbers"),
        ("mshnet", "widths", [16, None], "a list of whole numbers"),
        ("mshnet", "loss", {}, "one of paper, corrected"),
    ],
)
def test_a_configuration_of_another_type_is_refused_in_one_line(name, field, value, rule, tmp_path):
    """A file may state anything of its network."""
    metadata = {"family": json.dumps(name), "config": json.dumps({field: value})}
    state = random_network(name).state_dict()
    save_file({k: v.clone() for k, v in state.items()}, tmp_path / "w.safetensors", metadata)
    with pytest.raises(InputError, match=rf"config\.{field} must be {rule}, got") as error:
        load_model(tmp_path / "w.safetensors")
    assert "\n" not in str(error.value)


def test_another_kind_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(random_network("span").state_dict(), path)
    with pytest.raises(ValueError, match="holds a span, a restorer; give a detector instead"):
        load_model(path, kind="detector")
    with pytest.raises(ValueError, match="give a language model instead"):
        load_model(path, kind="language model")


def test_unknown_models_say_what_was_tried_and_where_to_add_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither a run folder.*families?|span") as error:
        load_model("resnet", random_weights=True)
    assert "package.module:Class" in str(error.value) and "fast-srgan" in str(error.value)
    save_file({"x": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"add the family in jaxsr/models/registry\.py"):
        load_model(tmp_path / "w.safetensors", kind="detector")
    with pytest.raises(ValueError, match=r"registry\.py says how to add one"):
        find_family("resnet")


def test_every_task_is_found():
    for name in TASKS:
        task = find_task(name)
        assert issubclass(task, find_options(name))
        assert {*task.default_presets} <= {*task.presets}
        assert all(type(config) is task.Config for config in task.presets.values())


def test_weights_that_spandrel_cannot_build_are_refused_in_one_line(tmp_path, monkeypatch):
    def load_from_state_dict(state):
        raise KeyError("body.0.weight\nand others")

    spandrel: Any = ModuleType("spandrel")
    spandrel.ModelLoader = lambda device: SimpleNamespace(load_from_state_dict=load_from_state_dict)
    spandrel.ImageModelDescriptor = spandrel.UnsupportedModelError = type("Other", (Exception,), {})
    monkeypatch.setitem(sys.modules, "spandrel", spandrel)
    save_file({"head.weight": torch.zeros(3, 3)}, tmp_path / "x4.safetensors")
    with pytest.raises(
        InputError, match=r"cannot be loaded by spandrel \(KeyError: .*get the file"
    ):
        load_model(tmp_path / "x4.safetensors")


def test_a_fifo_is_no_configuration(tmp_path):
    os.mkfifo(tmp_path / "model.json")
    assert not is_configuration(str(tmp_path / "model.json"))

"""`python -m jaxsr.check MODEL`: models by every name, inputs, exit statuses."""

import json
import re
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from jaxsr import check, export, restore
from jaxsr.models.example_inputs import example_inputs, parse_inputs
from jaxsr.models.registry import LoadedModel
from tests.restoration import networks

LINEAR = ("--model", "torch.nn:Linear", "--model-options", '{"in_features": 4, "out_features": 2}')


def test_a_class_with_arguments(capsys, tmp_path):
    page = tmp_path / "page.html"
    assert check.main([*LINEAR, "--input", "2,4", "--html", str(page)]) == 0
    output = capsys.readouterr().out
    assert "torch.nn:Linear: computes the same in JAX as in torch" in output
    assert re.search(r"mesh of 2 +ok", output)
    source = page.read_text()
    assert "<script" not in source
    assert "http" not in source
    assert "Speed" in source


def test_json(capsys):
    assert check.main([*LINEAR, "--input", "2,4", "--json", "--forward-only", "--eval-only"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["status"] == "ok"
    assert content["parameters"] == 10
    assert content["rows"][0]["name"] == "forward"
    assert content["rows"][0]["arrays"][0]["bound"] > 0
    assert not any("gradient" in row["name"] for row in content["rows"])


def test_a_family_finds_its_inputs(capsys):
    assert check.main(["--model", "fast-srgan", "--eval-only", "--forward-only"]) == 0
    assert "float32[1,3,32,32]" in capsys.readouterr().out


def test_weights_with_their_class(tmp_path, capsys):
    file = tmp_path / "linear.safetensors"
    save_file(nn.Linear(4, 2).state_dict(), file)
    arguments = [*LINEAR, "--weights", str(file), "--input", "2,4", "--eval-only"]
    assert check.main(arguments) == 0
    save_file({"other": torch.ones(2)}, file)
    assert check.main(arguments) == 2
    assert "jaxsr: " in capsys.readouterr().err


def test_a_hugging_face_configuration(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=50, intermediate_size=16, **sizes)
    config.save_pretrained(tmp_path)
    for path in (tmp_path, tmp_path / "config.json"):
        assert check.main(["--model", str(path), "--forward-only", "--eval-only", "--json"]) == 0
    decoder = json.JSONDecoder()
    content, _ = decoder.raw_decode(capsys.readouterr().out)
    assert content["rows"][0]["status"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nothing"], "no model 'nothing'"),
        (["--model", "nothing:Class"], "cannot import nothing"),
        (["--model", "torch.nn:Nothing"], "no class or function 'Nothing'"),
        (["--model", "torch.nn:Linear"], "does not take these arguments"),
        (["--model", "torch.nn:Linear", "--model-options", "[1]"], "must be a JSON object"),
        (["--model", "torch.nn:Linear", "--model-options", "{"], "model_options is not JSON"),
        (["timm:resnet18"], "--model timm:resnet18"),
        ([*LINEAR, "--args", "{}"], "--args is now --model-options JSON"),
        (["--model", "w.pth", "--class=own:Net"], "--class is now --model package.module:Class"),
        (["--forward-only"], "no model is named: give --model"),
        (["--weights", "w.pth"], "a run folder or a file by itself is --model w.pth"),
        ([*LINEAR], "give them as --input"),
        ([*LINEAR, "--input", "2,5"], "torch cannot run torch.nn:Linear on input float32"),
        ([*LINEAR, "--input", "2x4"], "input must be"),
        ([*LINEAR, "--input", "float99:2,4"], "input must be"),
        ([*LINEAR, "--input", "0,4"], "must have from 1 to"),
        ([*LINEAR, "--engine", "torch"], "check compares both engines"),
        ([*LINEAR, "--dtype", "bfloat16"], "check compares float32 programs"),
        ([*LINEAR, "--matmul-precision", "high"], "check computes float32 products in full"),
        ([*LINEAR, "--input", "2,4", "--mesh", "0"], "mesh"),
        (["--model", "torch.nn:Conv2d",
          "--model-options", '{"in_channels":1,"out_channels":1,"kernel_size":-1}'],
         "torch.nn:Conv2d"),
    ],
)  # fmt: skip
def test_what_a_user_can_correct_is_one_line(arguments, message, capsys):
    assert check.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("jaxsr: ")
    assert error.count("\n") == 1


def test_libraries_that_are_missing_or_know_no_such_name(capsys):
    assert check.main(["--model", "timm:no_such_model"]) == 2
    assert check.main(["--model", "torchvision:no_such_model"]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_inputs_have_names_dtypes_and_limits():
    args, kwargs = parse_inputs(["2,3", "ids=int64:2,16:5", "mask=bool:2,16"])
    assert args[0].dtype == torch.float32
    assert kwargs["ids"].shape == (2, 16)
    assert kwargs["ids"].max() < 5
    assert kwargs["mask"].dtype == torch.bool


@pytest.mark.parametrize(
    ("kind", "channels", "multiple", "shape"),
    [("detector", 3, 32, (2, 3, 64, 64)), ("restorer", 1, 1, (2, 1, 32, 32))],
)
def test_a_run_of_pictures_says_its_inputs(kind, channels, multiple, shape):
    network = torch.nn.Conv2d(channels, 1, 3)
    loaded = LoadedModel(
        network=network, name="runs/u", family="UNet", kind=kind, side_multiple=multiple
    )
    (pictures,), _ = example_inputs(loaded)
    assert pictures.shape == shape


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jaxsr.comparison.check_command.load", lambda config: pytest.fail("loaded"))
    assert check.main([*LINEAR, "--html", str(tmp_path / "absent" / "page.html")]) == 2
    assert "page.html: No such file or directory" in capsys.readouterr().err


def leave():
    sys.exit(0)


LEAVING = ["--model", "tests.restoration.networks:Leaving"]
SIZE = ["--input", "1,3,8,8"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (check, [*LEAVING, *SIZE]),
        (check, ["--model", "tests.comparison.test_check_command:leave", *SIZE]),
        (restore, ["image.png", *LEAVING, "--weights", "w.pth", "--out", "out"]),
        (export, [*LEAVING, *SIZE, "--out", "a.stablehlo"]),
    ],
)
def test_code_that_ends_the_program_is_an_error(command, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save("image.png")
    torch.save(networks.Small().state_dict(), "w.pth")
    assert command.main(words) == 2
    assert re.search(r"^jaxsr: .*ends the program.* \(\w+\.py:\d+\)", capsys.readouterr().err, re.M)

"""`python -m jaxsr.evaluate` as a user types it."""

import json
import shutil

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from jaxsr.data.scenes import open_scenes
from jaxsr.evaluate import main
from jaxsr.models.mshnet.config import MSHNetConfig
from jaxsr.models.mshnet.network import MSHNet

THIN = MSHNetConfig(widths=(4, 6, 8), blocks=(1, 1, 1), attention_ratio=2)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "network.safetensors"
    sized = {"mean": [0.4] * 3, "deviation": [0.2] * 3, "base": 64, "evaluate": "base"}
    described = {"family": json.dumps("mshnet"), "input": json.dumps(sized)}
    save_file(MSHNet(THIN).state_dict(), path, metadata=described)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The layout that users have: images, masks, and a list for each split."""
    folder, scenes = tmp_path_factory.mktemp("data"), open_scenes(6, side=64, seed=3)
    for kind in ("images", "masks"):
        (folder / kind).mkdir()
    for number in range(6):
        image, mask = scenes.read(number)
        Image.fromarray(image).save(folder / "images" / f"{number}.png")
        Image.fromarray((mask > 0).astype(np.uint8) * 255).save(folder / "masks" / f"{number}.png")
    (folder / "trainval.txt").write_text("0\n1\n")
    (folder / "test.txt").write_text("2\n3\n4\n5\n")
    (folder / "one.txt").write_text("5\n")
    return folder


def evaluated(*arguments):
    return main([str(a) for a in (*arguments, "--batch", 2, "--engine", "torch")])


@pytest.mark.parametrize(("split", "names"), [(None, "2345"), ("one.txt", "5")])
def test_figures_of_a_split(weights, data, tmp_path, capsys, split, names):
    chosen = ["--split", data / split] if split else []
    assert evaluated(data, "--model", weights, "--out", tmp_path, *chosen) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert sorted(row["name"] for row in report["rows"]) == list(names)
    assert {"iou", "niou", "precision", "recall", "f1", "pd", "fa_1e6"} <= report["figures"].keys()
    printed = capsys.readouterr().out
    assert "IoU" in printed and f"{len(names)} images of" in printed
    assert Image.open(tmp_path / "roc.png").size[0] > 400


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--split", "none.txt"], "none"),
        (["--threshold", "1"], "threshold must be"),
        (["--model", "none.pth"], "no weights file"),
        (["--lists", "nowhere"], "no folder nowhere"),
        (["--platform", "cuda"], "torch finds no CUDA device; use --platform cpu"),
        (["--mesh", "2"], "the torch engine runs on one device, got mesh=2"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    weights, data, tmp_path, capsys, monkeypatch, arguments, said
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command = arguments if "--model" in arguments else ["--model", weights, *arguments]
    assert evaluated(data, *command, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err.strip()
    assert said in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_settings_of_matplotlib_do_not_matter(weights, data, tmp_path):
    """A stranger's folder may have a `matplotlibrc`, by which LaTeX would run."""
    with matplotlib.rc_context({"text.usetex": True, "text.latex.preamble": r"\input{evil}"}):
        assert evaluated(data, "--model", weights, "--out", tmp_path / "a") == 0
    assert evaluated(data, "--model", weights, "--out", tmp_path / "b") == 0
    pictures = [(tmp_path / name / "roc.png").read_bytes() for name in "ab"]
    assert pictures[0] == pictures[1]


def test_a_table_of_the_users_is_not_replaced(weights, data, tmp_path, capsys):
    (tmp_path / "images.csv").write_text("mine")
    assert evaluated(data, "--model", weights, "--out", tmp_path) == 2
    assert "images.csv); choose another --out" in capsys.readouterr().err
    assert (tmp_path / "images.csv").read_text() == "mine"


@pytest.mark.filterwarnings("error")
def test_names_of_any_characters_are_drawn(weights, data, tmp_path):
    folder = tmp_path / "数据 a$x_$b"
    shutil.copytree(data, folder)
    assert evaluated(folder, "--model", weights, "--out", tmp_path / "out") == 0
    assert (tmp_path / "out/roc.png").stat().st_size > 1000

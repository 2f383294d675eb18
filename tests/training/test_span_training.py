"""SPAN in the training loop: the same steps in both engines, its presets, and its command."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxsr import train
from jaxsr.interop.weights import read_weights
from jaxsr.models.span.config import SpanConfig
from jaxsr.training.cli_options import parse_command_line
from jaxsr.training.span import SpanTask
from tests.training.running import take_steps

SMALL = dataclasses.replace(
    SpanTask.presets["quick"],
    model=SpanConfig(width=8, depth=2, expansion=None, pixel_loss="smooth_l1"),
    steps=12, batch=8, crop=32, lr=3e-5, warmup_steps=2,
)  # fmt: skip


def losses(config):
    """The loss of every step, and the averaged weights at the end."""
    metrics, weights = take_steps(SpanTask, config)
    return [step["generator/loss"] for step in metrics], weights


@pytest.mark.slow  # test_engines.py compares the engines, models/test_span.py the network
@pytest.mark.parametrize(
    "change",
    [
        {"block": "attention"},
        {"block": "attention", "expansion": 2},
        {"block": "residual"},
    ],
)
def test_jax_equals_torch(change):
    # Not with l1: in flat sky the error is 0 but for rounding, and its sign is all that l1 takes.
    config = dataclasses.replace(SMALL, model=dataclasses.replace(SMALL.model, **change))
    ours, our_weights = losses(config)
    theirs, their_weights = losses(dataclasses.replace(config, engine="torch"))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert our_weights.keys() == their_weights.keys()
    for name, weight in their_weights.items():
        # 12 steps of 3e-5: Adam turns the rounding of a gradient near 0 into part of a step.
        np.testing.assert_allclose(our_weights[name], weight, atol=6e-5, err_msg=name)


@pytest.mark.slow
def test_eight_devices_and_remat_change_nothing_but_rounding():
    one, _ = losses(SMALL)
    eight, _ = losses(dataclasses.replace(SMALL, mesh="8", remat=True))
    assert eight == pytest.approx(one, rel=1e-4)


@pytest.mark.parametrize("name", SpanTask.presets)
def test_presets_are_valid_and_enlarge_four_times(name):
    config = parse_command_line(["span", "--preset", name])[2]
    assert config.model.scale == 4
    assert config.bicubic == "matlab"  # validation's, so that training sees what it is judged on


@pytest.mark.parametrize(("resident_gb", "form"), [(1.0, "window"), (0.001, "image")])
def test_photos_that_fit_lie_on_the_device(resident_gb, form):
    task = SpanTask(dataclasses.replace(SMALL, resident_gb=resident_gb))
    assert task.train_data().form == form
    assert ("resident" in task.constants()) == (form == "window")


def test_a_data_folder_gets_the_longer_recipe():
    assert parse_command_line(["span", "--data", "photos"])[2] == dataclasses.replace(
        SpanTask.presets["restore"], data=Path("photos")
    )
    assert parse_command_line(["span"])[2] == SpanTask.presets["quick"]


def run(*arguments: object) -> int:
    return train.main([str(argument) for argument in arguments])


OPTIONS = (
    "span", "--steps", 4, "--batch", 4, "--crop", 32, "--log-every", 2, "--validate-every", 4,
    "--validation-px", 64, "--model.width", 4, "--model.depth", 2, "--no-tensorboard",
)  # fmt: skip


@pytest.mark.slow
def test_the_command_trains_on_a_folder_and_the_built_in_photos(tmp_path, capsys):
    photos = tmp_path / "photos"
    photos.mkdir()
    rng = np.random.default_rng(0)
    for index in range(4):
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)).save(photos / f"{index}.png")
    out = tmp_path / "run"
    assert run(*OPTIONS, "--preset", "restore", "--data", photos, "--out", out) == 0
    # 4 photos and 9 built-in ones, of which at least one and the two others are held out; each
    # also smaller, which does not make more photos of them.
    assert "training on 12 photos" in capsys.readouterr().out
    arrays, notes = read_weights(out / "generator.safetensors")
    assert notes["family"] == "span"
    assert notes["config"]["width"] == 4
    assert {"skimage/data/chelsea.png", "sklearn/datasets/images/china.jpg"} < set(
        notes["held_out"]
    )
    assert len(notes["held_out"]) == 3
    assert arrays["conv_cat.weight"].shape == (4, 16, 1, 1)

    from jaxsr.restoration.models import find_model

    model = find_model(out)
    assert model.scale == 4
    assert model.value_range == (-1.0, 1.0)
    figures = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert figures[-1]["validation/bicubic_psnr_y"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--crop", 30), "crop=30 must be a positive multiple of the model's scale=4"),
        (("--model.depth", 1), "depth must be at least 2, got 1"),
        (("--preset", "best"), "no preset 'best'; there are quick, restore"),
        (("--held-out", 2, "--data", "HERE"), "held_out must be a fraction between 0 and 1"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, capsys, options, said):
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    options = [tmp_path if option == "HERE" else option for option in options]
    assert run(*OPTIONS, "--out", tmp_path / "run", *options) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("jaxsr: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert not (tmp_path / "run").exists()

